"""Values typed by the tool's schema. Expected values are worked out by hand from the schema."""

from __future__ import annotations

import ast
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imp.chat.formats.typed import KINDS, json_of, kinds, member

SCHEMA = {
    "type": "object",
    "properties": {
        "zip": {"type": "string"},
        "n": {"type": "integer"},
        "ratio": {"type": "number"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array"},
        "deep": {"type": "object"},
        "nothing": {"type": "null"},
        "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "list": {"type": ["integer", "null"]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "named": {"$ref": "#/$defs/count"},
        "round": {"$ref": "#/$defs/loop"},
        "color": {"enum": ["red", "1"]},
        "level": {"enum": [1, 2, None]},
        "fixed": {"const": 7},
        "both": {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]},
        "old": {"type": "integer", "nullable": True},
        "free": {},
        "anything": True,
    },
    "$defs": {"count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
}

VALUES = [
    # key, text, value
    *(("zip", text, text) for text in ("00731", "true", "null", "5", "[1]", " x ", "", '"q"', "a\nb")),
    ("n", "5", 5), ("n", "5.0", 5), ("n", " 5\n", 5), ("n", "1e2", 100), ("n", "-0", 0), ("n", "+3", 3), ("n", "007", 7),
    ("n", "123456789012345678901234567890", 123456789012345678901234567890),
    ("n", "5.5", "5.5"), ("n", "next Tuesday", "next Tuesday"), ("n", "1e999999999", "1e999999999"), ("n", "", ""),
    ("n", "null", "null"), ("n", "True", "True"), ("n", "1_000", "1_000"), ("n", "__import__('os')", "__import__('os')"),
    ("ratio", "1e2", 100.0), ("ratio", "30", 30), ("ratio", ".5", 0.5), ("ratio", "5.", 5.0), ("ratio", "1e999", "1e999"),
    ("ratio", "NaN", "NaN"), ("ratio", "-Infinity", "-Infinity"), ("ratio", "2.50", 2.5),
    ("ok", "true", True), ("ok", "True", True), ("ok", "FALSE", False), ("ok", "yes", "yes"), ("ok", "1", "1"),
    ("tags", "[1,2]", [1, 2]), ("tags", "['a', 'it\\'s', \"b\"]", ["a", "it's", "b"]), ("tags", "a, b", "a, b"),
    ("tags", "[1,", "[1,"), ("tags", "[True, None]", [True, None]), ("tags", "[" * 9000, "[" * 9000),
    ("tags", "[NaN]", "[NaN]"), ("tags", '{"a": 1}', '{"a": 1}'),
    ("deep", '{"a": {"b": "c"}}', {"a": {"b": "c"}}), ("deep", "{'a': {'b': None}}", {"a": {"b": None}}),
    ("deep", "{'a': \"it's\"}", {"a": "it's"}), ("deep", '{"a": "x\ny"}', {"a": "x\ny"}), ("deep", "no JSON", "no JSON"),
    ("deep", "{'a': 'None, True'}", {"a": "None, True"}), ("deep", r"{'a': '\x41\n\\'}", {"a": "A\n\\"}),
    ("nothing", "null", None), ("nothing", "None", None),
    ("opt", "null", None), ("opt", "None", None), ("opt", "nul", "nul"), ("opt", "5", "5"),
    ("list", "5", 5), ("list", "null", None), ("list", "x", "x"),
    ("either", "5", 5), ("either", "007", "007"), ("either", "5.0", 5), ("either", "+5", "+5"), ("either", "true", "true"),
    ("named", "5", 5), ("named", "x", "x"), ("round", "5", 5), ("color", "1", "1"), ("level", "1", 1), ("level", "null", None),
    ("fixed", "7", 7), ("both", "7", 7), ("both", "x", "x"), ("old", "null", None), ("old", "3", 3),
    ("free", "7", 7), ("free", "007", "007"), ("free", "null", None), ("free", "true", True), ("free", "a b", "a b"),
    ("free", '"q"', '"q"'), ("free", "[1]", [1]), ("anything", "1.5", 1.5), ("unknown", "7", 7),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "value"), VALUES)
def test_g02_04_and_05_a_text_becomes_what_the_schema_says_or_a_string(key, text, value):
    found = json.loads(json_of(text, kinds(member(SCHEMA, key, SCHEMA), SCHEMA)))
    assert (found, type(found)) == (value, type(value))
    properties = SCHEMA["properties"]
    if not isinstance(value, str) and isinstance(properties.get(key), dict) and key != "old":
        jsonschema.validate(found, properties[key] | {"$defs": {"count": SCHEMA["$defs"]["count"], "loop": True}})


@pytest.mark.parametrize("text", ["['" + "\\'" * 100_000 + "]", "[" + "'\\" * 100_000 + "]", "9" * 100_000, "[" + "T" * 200_000 + "]", "1." + "0" * 100_000 + "e"])
def test_long_texts_that_are_nothing_cost_no_more_than_they_are_long(text):
    """Done again for every quotation mark, they would take minutes."""
    assert json.loads(json_of(text, KINDS)) == text


def test_members_are_found_behind_references_and_combinations():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"properties": {"x": {"type": "string"}}}]}}}
    assert kinds(member(schema, "x", schema), schema) == {"string"}
    assert kinds(member({"additionalProperties": {"type": "string"}}, "y", {})) == {"string"}
    assert kinds(member({"additionalProperties": False}, "y", {})) == KINDS
    assert kinds({"$ref": "https://elsewhere"}) == kinds({"$ref": "#/no/where"}) == kinds({"type": "odd"}) == KINDS


def test_schemas_that_refer_to_each_other_without_end_are_looked_at_once():
    doubled = {"$defs": {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(31)}}
    doubled["$defs"]["a31"] = {"type": "integer"}
    looped = {"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "properties": {"x": {"type": "null"}}}}}
    for root in (doubled, looped):
        schema = {"$ref": "#/$defs/" + next(iter(root["$defs"]))}
        assert kinds(schema, root)
        assert member(schema, "y", root) is True
    assert member({"$ref": "#/$defs/a"}, "x", looped) == {"type": "null"}


@given(st.text() | st.from_regex(r"[-+0-9.eE_]{1,12}", fullmatch=True), st.sets(st.sampled_from(sorted(KINDS))))
def test_any_text_becomes_json_of_an_admitted_type_or_the_string_itself(text, admitted):
    value = json.loads(json_of(text, frozenset(admitted)))
    named = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    assert value == text if isinstance(value, str) else (named[type(value)] in admitted or "number" in admitted)


python_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(python_values) | st.dictionaries(st.text(), python_values))
def test_what_python_prints_is_read_as_python_reads_it(value):
    """The judge is ast.literal_eval, over values a template could print."""
    assert json.loads(json_of(str(value))) == ast.literal_eval(str(value)) == value
