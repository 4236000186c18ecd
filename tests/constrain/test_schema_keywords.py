"""Each keyword by itself and beside its neighbours. What is right, the `jsonschema` package says, with its format checkers."""

from __future__ import annotations

import itertools
import json

import jsonschema
import pytest

from imp.constrain.errors import Code
from imp.constrain.schema import KEYWORDS, PropertyOrder
from imp.constrain.schema.leaf import ARRAY_KEYWORDS, NUMBER_KEYWORDS, OBJECT_KEYWORDS, STRING_KEYWORDS
from imp.constrain.schema.parse import COMBINING
from tests.constrain.schemas import Writer, refusal

SCALARS = [None, True, False, 0, 1, -1, 2, 3, 7, 10, 12, 100, 0.5, -0.25, 2.5, 1e-7, "", "a", "b", "abc", "é😀", 'q"\\', "x\n"]
ARRAYS = [[], [1], ["a"], [1, 2], [1, "a"], ["a", 1], [2, 1, 2], [1, 1], [None, True], [1, 2, 3, 4], [[1], {"a": 1}], [0, False]]
OBJECTS = [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "c": "x"}, {"ab": 1}, {"a": {"a": 1}}, {"a": 1, "b": "x", "c": None}]
VALUES = SCALARS + ARRAYS + OBJECTS

SCHEMAS: dict[str, list[object]] = {
    "type": [{"type": t} for t in ("null", "boolean", "integer", "number", "string", "array", "object", ["null", "string"])],
    "enum": [{"enum": [1, "a", None, [1, 2], {"a": 1}, 0.5]}, {"enum": [[], {}]}, {"type": "integer", "enum": [1, "1", 2.5, 7]}],
    "const": [{"const": value} for value in (None, True, 0.5, "é😀", [1, "a"], {"a": 1, "b": 2}, "x\n")],
    "minimum": [{"minimum": 2}, {"minimum": 2.5}, {"type": "integer", "minimum": -1}, {"minimum": 1, "maximum": 10}, {"minimum": 1e-8}],
    "maximum": [{"maximum": 2}, {"maximum": -0.25}, {"type": "integer", "maximum": 7.5}],
    "exclusiveMinimum": [{"exclusiveMinimum": 0}, {"exclusiveMinimum": 2.5}, {"type": "integer", "exclusiveMinimum": 2}],
    "exclusiveMaximum": [{"exclusiveMaximum": 0}, {"exclusiveMaximum": 10}, {"minimum": 1, "exclusiveMaximum": 12}],
    "multipleOf": [{"multipleOf": 0.5}, {"multipleOf": 0.25}, {"multipleOf": 3}, {"type": "integer", "multipleOf": 5, "minimum": 1}],
    "minLength": [{"minLength": 2}, {"type": "string", "minLength": 1, "maxLength": 2}],
    "maxLength": [{"maxLength": 2}, {"maxLength": 0}],
    "pattern": [{"pattern": "b"}, {"pattern": "^a", "minLength": 2}, {"pattern": "^[^a]*$", "maxLength": 3}, {"pattern": '"'}],
    "properties": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": False, "a": True}}],
    "required": [{"required": ["a"]}, {"required": ["b", "a"]}, {"properties": {"a": {"type": "string"}}, "required": ["a", "c"]}],
    "additionalProperties": [
        {"additionalProperties": False},
        {"properties": {"a": True}, "additionalProperties": False},
        {"properties": {"a": True}, "additionalProperties": {"type": "string"}},
    ],
    "patternProperties": [
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 2}}, "additionalProperties": False},
        {"properties": {"a": {"maximum": 3}}, "patternProperties": {"a": {"minimum": 1}}},
    ],
    "propertyNames": [{"propertyNames": {"maxLength": 1}}, {"propertyNames": {"enum": ["a", "c"]}}, {"propertyNames": {"not": {"const": "a"}}}],
    "minProperties": [{"minProperties": 1}, {"minProperties": 2}, {"properties": {"a": True, "b": True}, "additionalProperties": False, "minProperties": 2}],
    "maxProperties": [{"maxProperties": 1}, {"maxProperties": 0}, {"required": ["a"], "maxProperties": 2, "minProperties": 2}],
    "dependentRequired": [{"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"a": ["b", "c"], "b": ["a"]}}],
    "dependentSchemas": [{"dependentSchemas": {"a": {"required": ["b"]}}}, {"dependentSchemas": {"b": {"properties": {"a": False}}}}],
    "items": [{"items": {"type": "integer"}}, {"items": False}, {"items": {"items": {"type": "integer"}}}],
    "prefixItems": [{"prefixItems": [{"type": "integer"}, {"type": "string"}]}, {"prefixItems": [{"const": 1}], "items": {"type": "string"}}],
    "minItems": [{"minItems": 1}, {"minItems": 2, "items": {"type": "integer"}}],
    "maxItems": [{"maxItems": 0}, {"maxItems": 2}, {"minItems": 2, "maxItems": 2}, {"maxItems": 4_000_000_000}],
    "contains": [{"contains": {"type": "string"}}, {"contains": {"const": 1}, "items": {"type": "integer"}}, {"contains": False}],
    "minContains": [{"contains": {"const": 1}, "minContains": 2}, {"contains": {"const": 1}, "minContains": 0}],
    "maxContains": [{"contains": {"const": 1}, "maxContains": 1}, {"contains": {"type": "integer"}, "minContains": 0, "maxContains": 0}],
    "uniqueItems": [
        {"items": {"enum": [1, 2, "a", None, True, 0, False]}, "uniqueItems": True},
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "maxItems": 2, "uniqueItems": True},
        {"items": {"type": "integer", "minimum": 0, "maximum": 4}, "uniqueItems": True, "minItems": 2},
        {"uniqueItems": False},
    ],
    "allOf": [{"allOf": [{"minimum": 1}, {"maximum": 3}]}, {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]}],
    "anyOf": [{"anyOf": [{"type": "string"}, {"minimum": 2}]}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}],
    "oneOf": [
        {"oneOf": [{"minimum": 2}, {"multipleOf": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"type": "string"}, {"maxLength": 1}, {"pattern": "b"}]},
        {"oneOf": [{"items": {"type": "integer"}}, {"minItems": 2}]},
    ],
    "not": [
        {"not": {"type": ["string", "object"]}},
        {"not": {"minimum": 2, "type": "number"}},
        {"not": {"required": ["a"]}},
        {"not": {"items": {"type": "integer"}}},
        {"not": {"additionalProperties": {"type": "integer"}}},
        {"not": {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}},
        {"not": {"contains": {"const": 1}}},
        {"not": {"enum": [1, "a", [1, 2], {"a": 1}]}},
        {"not": {"pattern": "^a", "maxLength": 2}},
        {"not": {"minProperties": 2}},
        {"not": {"propertyNames": {"maxLength": 1}}},
    ],
    "if": [
        {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": ["string", "array"]}},
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
        {"if": {"minItems": 2}, "else": {"not": {"type": "array"}}},
        {"then": False},
    ],
    "unevaluatedProperties": [
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
        {"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": True}}], "unevaluatedProperties": False},
        {"if": {"required": ["a"], "properties": {"a": True}}, "then": {"properties": {"b": True}}, "unevaluatedProperties": {"type": "string"}},
    ],
    "unevaluatedItems": [
        {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
        {"contains": {"type": "integer"}, "unevaluatedItems": {"type": "string"}},
        {"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [True, {"const": "a"}]}], "unevaluatedItems": False},
    ],
    "$ref": [
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}}, "maxProperties": 1},
        {"$defs": {"x": {"$anchor": "here", "type": "integer"}}, "$ref": "#here", "maximum": 7},
        {"$id": "https://example.test/s", "$defs": {"x": {"$id": "t", "minimum": 3}}, "$ref": "t"},
    ],
}
CASES = [(keyword, schema) for keyword, schemas in SCHEMAS.items() for schema in schemas]


@pytest.mark.parametrize(("keyword", "schema"), CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_the_judge_agrees(keyword, schema):
    validator = jsonschema.Draft202012Validator(schema)
    writer = Writer(schema, property_order=PropertyOrder.ANY)
    for value in VALUES:
        assert writer.accepts_value(value) == validator.is_valid(value), (keyword, schema, value)


def test_every_keyword_that_is_read_is_described():
    read = {*NUMBER_KEYWORDS, *STRING_KEYWORDS, *ARRAY_KEYWORDS, *OBJECT_KEYWORDS, *COMBINING, "unevaluatedItems", "unevaluatedProperties"}
    assert read <= KEYWORDS.keys()
    assert all(entry.enforced for entry in KEYWORDS.values())


# --- order, spelling --------------------------------------------------------------------------------------------------


def test_names_come_as_declared_then_required_then_others():
    schema = {"properties": {"b": True, "a": True}, "required": ["z", "a"], "additionalProperties": {"type": "null"}}
    writer = Writer(schema)
    texts = {order: "{" + ",".join(f'"{name}":null' for name in order) + "}" for order in itertools.permutations("bazq")}
    assert [order for order, text in texts.items() if writer.accepts(text)] == [("b", "a", "z", "q")]
    anyhow = Writer(schema, property_order=PropertyOrder.ANY)
    assert all(anyhow.accepts(text) for text in texts.values())
    assert not anyhow.accepts('{"a":1,"z":null,"a":2}')


def test_schemas_of_all_of_declare_in_the_order_they_are_written():
    schema = {"allOf": [{"properties": {"x": True}}, {"$ref": "#/$defs/y"}], "properties": {"w": True}, "$defs": {"y": {"properties": {"y": True}}}}
    writer = Writer(schema)
    assert writer.accepts('{"x":1,"y":1,"w":1}') and not writer.accepts('{"w":1,"x":1,"y":1}')


def test_names_of_a_condition_come_before_those_of_its_branches():
    writer = Writer({"if": {"properties": {"k": {"const": 1}}}, "then": {"properties": {"v": True}}, "else": {"properties": {"v": True}}})
    assert writer.accepts('{"k":1,"v":0}') and writer.accepts('{"k":2,"v":0}') and not writer.accepts('{"v":0,"k":2}')


@pytest.mark.parametrize("text", ["0.10", "1.0", "10e-1", "1E0", "0.1e1", "1.5e-07", "-0", "-0.0"])
def test_numbers_have_many_spellings(text):
    assert Writer({"type": "number"}).accepts(text)


def test_bounds_hold_for_every_spelling():
    writer = Writer({"type": "number", "exclusiveMinimum": 0.5, "maximum": 20})
    for text, wanted in {"0.5": 0, "0.50": 0, "0.500001": 1, "5.1e-1": 1, "5.0e-1": 0, "5e-1": 0, "2e1": 1, "2.1e1": 0, "2.0E+01": 1, "20.0": 1, "20.01": 0, "1e2": 0}.items():
        assert writer.accepts(text) == bool(wanted), text


@pytest.mark.parametrize("value", [1e-7, 1.5e22, 1e22, 2.5, 123456789012345678901234567890, 5])
def test_numbers_of_an_enum_are_spelled_as_json_writers_do(value):
    writer = Writer({"enum": [value, "x"]})
    assert writer.accepts(json.dumps(value))
    assert writer.accepts(json.dumps(int(value))) == (value == int(value) and (value < 10**20 or isinstance(value, int)))
    assert not writer.accepts(json.dumps(value * 2))


def test_a_key_cannot_be_smuggled_in_by_an_escape():
    writer = Writer({"properties": {"id": {"type": "integer"}}, "additionalProperties": {"type": "string"}})
    assert writer.accepts('{"id":1,"ie":"x","ié\\u0064":"x"}')
    for text in ('{"\\u0069d":"x"}', '{"i\\u0064":"x"}', '{"id":"x"}'):
        assert not writer.accepts(text), text


# --- drafts -----------------------------------------------------------------------------------------------------------

DRAFT_7, DRAFT_4 = "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"
OLD = [
    (jsonschema.Draft7Validator, {"$schema": DRAFT_7, "items": [{"type": "integer"}], "additionalItems": {"type": "string"}}),
    (jsonschema.Draft7Validator, {"$schema": DRAFT_7, "$ref": "#/definitions/x", "maximum": 1, "definitions": {"x": {"type": "integer"}}}),
    (jsonschema.Draft7Validator, {"$schema": DRAFT_7, "dependencies": {"a": ["b"], "c": {"properties": {"b": False}}}}),
    (jsonschema.Draft4Validator, {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": False}),
    (jsonschema.Draft4Validator, {"$schema": DRAFT_4, "id": "http://x.test/a", "definitions": {"b": {"id": "b", "type": "integer"}}, "allOf": [{"$ref": "b"}]}),
]


@pytest.mark.parametrize(("judge", "schema"), OLD)
def test_older_drafts(judge, schema):
    writer = Writer(schema, property_order=PropertyOrder.ANY)
    for value in VALUES:
        assert writer.accepts_value(value) == judge(schema).is_valid(value), value


def test_without_a_draft_the_older_forms_count():
    writer = Writer({"items": [{"type": "integer"}], "additionalItems": False, "dependencies": {"a": ["b"]}, "minimum": 1, "exclusiveMinimum": True})
    assert writer.accepts("[1]") and not writer.accepts("[1,2]") and not writer.accepts('["a"]')
    assert not writer.accepts('{"a":1}') and not writer.accepts("1") and writer.accepts("1.5")


# --- refusals ---------------------------------------------------------------------------------------------------------



def nested(levels: int) -> dict:
    schema: dict = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


REFUSED = [
    (Code.UNSUPPORTED, "#/properties/a", "$ref", {"properties": {"a": {"$ref": "https://example.test/other"}}}),
    (Code.UNSUPPORTED, "#", "itself", {"$ref": "#"}),
    (Code.UNSUPPORTED, "#/$defs/a", "itself", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
    (Code.UNSUPPORTED, "#/items", "uniqueItems", {"items": {"type": "array", "uniqueItems": True}}),
    (Code.UNSUPPORTED, "#/not", "uniqueItems", {"not": {"uniqueItems": True, "items": {"type": "integer"}}}),
    (Code.UNSUPPORTED, "#/properties/a~1b", "lookahead", {"properties": {"a/b": {"pattern": "(?=x)y"}}}),
    (Code.UNSUPPORTED, "#", "multipleOf", {"multipleOf": 1e-30}),
    (Code.UNSUPPORTED, "#", "format", {"format": "regex"}),
    (Code.INVALID, "#", "type", {"type": "strnig"}),
    (Code.INVALID, "#/properties/a", "minLength", {"properties": {"a": {"minLength": -1}}}),
    (Code.INVALID, "#/items", "maximum", {"items": {"maximum": "3"}}),
    (Code.INVALID, "#", "multipleOf", {"multipleOf": 0}),
    (Code.INVALID, "#", "required", {"required": "a"}),
    (Code.INVALID, "#", "enum", {"enum": 3}),
    (Code.INVALID, "#", "properties", {"properties": [1]}),
    (Code.INVALID, "#/properties/a", "schema", {"properties": {"a": 3}}),
    (Code.INVALID, "#", "anyOf", {"anyOf": []}),
    (Code.INVALID, "#", "pattern", {"pattern": "[a-"}),
    (Code.INVALID, "#", "patternProperties", {"patternProperties": {"(": True}}),
    (Code.INVALID, "#/$defs/a", "$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/nowhere"}}}),
    (Code.INVALID, "#", "items", {"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}),
    (Code.INVALID, "", "surrogate", {"const": "\ud800"}),
    (Code.INVALID, "", "surrogate", {"properties": {"a\udfff": True}}),
    (Code.UNSATISFIABLE, "#", "maximum", {"type": "integer", "minimum": 5, "maximum": 4}),
    (Code.UNSATISFIABLE, "#/properties/a", "maxLength", {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["a"]}),
    (Code.UNSATISFIABLE, "#", "enum", {"type": "string", "enum": [1, 2]}),
    (Code.UNSATISFIABLE, "#", "'a'", {"type": "object", "properties": {"a": False}, "required": ["a"]}),
    (Code.UNSATISFIABLE, "#", "false", False),
    (Code.UNSATISFIABLE, "#", "no value", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    (Code.UNSATISFIABLE, "#", "no value", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    (Code.UNSATISFIABLE, "#", "no value", {"allOf": [{"type": "integer"}, {"type": "string"}]}),
    (Code.UNSATISFIABLE, "#/properties/a/properties/b", "contradict", {"type": "object", "required": ["a"], "properties": {"a": {"type": "object", "required": ["b"], "properties": {"b": {"allOf": [{"type": "integer"}, {"type": "string"}]}}}}}),
    (Code.UNSATISFIABLE, "#", "no value", {"type": "integer", "minimum": 1, "maximum": 2, "not": {"enum": [1, 2]}}),
    (Code.TOO_LARGE, "", "nested", nested(300)),
    (Code.TOO_LARGE, "", "1 MB", {"enum": ["x" * 100 + str(i) for i in range(20_000)]}),
    (Code.INVALID, "#", "object or a boolean", "a string"),
    (Code.INVALID, "#", "object or a boolean", None),
    (Code.INVALID, "", "finite", {"minimum": float("inf")}),
    (Code.INVALID, "", "JSON type", {"const": object()}),
]


@pytest.mark.parametrize(("code", "where", "mention", "schema"), REFUSED)
def test_refusals_say_what_and_where(code, where, mention, schema):
    error = refusal(schema)
    assert (error.code, error.where) == (code, where)
    assert mention in error.message


def test_what_cannot_be_there_may_be_left_out():
    writer = Writer({"properties": {"a": {"minimum": 2, "maximum": 1, "type": "number"}, "b": {"$ref": "#/$defs/never"}, "c": True}, "$defs": {"never": {"type": "array", "items": {"$ref": "#/$defs/never"}, "minItems": 1}}})
    assert writer.accepts('{"c":1}') and writer.accepts("{}")
    assert not writer.begins('{"a":') and not writer.begins('{"b":')


def test_an_unreachable_schema_is_not_judged():
    assert Writer({"type": "integer", "$defs": {"a": {"pattern": "(?=x)"}, "b": {"type": "nothing"}}}).accepts("1")


def test_deep_schemas_within_the_limit():
    writer = Writer(nested(120))
    assert writer.accepts("[" * 120 + "]" * 120) and writer.accepts("[1,[null]]")


@pytest.mark.parametrize("name", ["int32", "phone", "idn-email"])
def test_unknown_formats_are_annotations(name):
    assert Writer({"type": "string", "format": name}).accepts('"anything"')
