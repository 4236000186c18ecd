"""Group 4 of the scenarios: structured outputs, without a server."""

from __future__ import annotations

import json
import random
import time

import jsonschema
import pytest

from imp.constrain.compiler import Compiler
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.schema import PropertyOrder, Whitespace
from imp.constrain.vocab import VocabTables
from imp.types import ConstraintKind, ConstraintSpec
from tests.constrain.schemas import Writer, refusal
from tests.text import toys

LIMIT_S = 5.0  # G04-02
SECONDS = 0.5  # what compiling may take here, of the thread's own time


# --- G04-01 -----------------------------------------------------------------------------------------------------------

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("where", ['{', '{"a"', '{"a":', '{"a":1', '{"a":1,'])
def test_g04_01_whitespace_ends(where):
    writer = Writer({**A, "additionalProperties": True})
    assert writer.begins(where + " ") and writer.begins(where + "\n" + " " * 40)
    for blanks in ("  ", "\n\n", " \n", "\n" + " " * 41, "\r", "\t", "\n" * 200):
        assert not writer.begins(where + blanks), (where, blanks)


def test_g04_01_none_before_and_after():
    for mode in Whitespace:
        writer = Writer(A, whitespace=mode)
        for text in (' {"a":1}', '\n{"a":1}', '{"a":1} ', '{"a":1}\n'):
            assert not writer.begins(text), (mode, text)


def test_g04_01_modes():
    pretty = json.dumps({"a": 1}, indent=4)
    wild = '{ \n\t\r "a"   :\n\n1\t}'
    texts = ('{"a":1}', '{"a": 1}', pretty, wild)
    accepted = {mode: [Writer(A, whitespace=mode).accepts(text) for text in texts] for mode in Whitespace}
    assert accepted == {
        Whitespace.COMPACT: [True, False, False, False],
        Whitespace.BOUNDED: [True, True, True, False],
        Whitespace.ANY: [True, True, True, True],
    }


def test_g04_01_a_writer_that_loves_blanks_still_ends():
    writer = Writer(A)
    text = b""
    for _ in range(400):
        liked = [byte for byte in b' \n}1"a:{' if writer.begins(text + bytes([byte]))]
        if not liked or writer.accepts(text):
            break
        text += bytes(liked[:1])
    assert json.loads(text) == {"a": 1} and len(text) < 200


# --- G04-02 -----------------------------------------------------------------------------------------------------------


def one_of(depth: int, i: int = 0) -> dict:
    if depth == 0:
        return {"type": "integer"}
    inner = one_of(depth - 1, i + 1)
    return {"oneOf": [{"type": "object", "properties": {name: inner}, "required": [name]} for name in (f"a{i}", f"b{i}")]}


def overlapping(depth: int) -> dict:
    schema: dict = {"type": "object", "properties": {"v": {"type": "integer"}}}
    for i in range(depth):
        schema = {"oneOf": [schema, {"type": "object", "properties": {f"b{i}": {"type": "string"}}}]}
    return schema


def arrays(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
BOMBS = [
    one_of(12),
    overlapping(12),
    arrays(22),
    arrays(5000),
    {"type": "array", "maxItems": 18446744073709551615},
    {"type": "array", "minItems": 18446744073709551615},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"enum": ["x" * 100 + str(i) for i in range(50_000)]},
    {"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d5000": {"type": "integer"}}},
    {"oneOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"}}} for i in range(200)]},
    {"allOf": [{"anyOf": [{"minLength": i}, {"maximum": j}]} for i in range(10) for j in range(10)]},
    {"dependentSchemas": {f"k{i}": {"properties": {f"k{i + 1}": {"type": "string", "maxLength": i}}} for i in range(40)}},
    {"pattern": "^(a|b)*a(a|b){24}$"},
    {"patternProperties": {f"a.*{i}": {"minimum": i} for i in range(12)}},
]


@pytest.mark.parametrize("schema", BOMBS, ids=range(len(BOMBS)))
def test_g04_02_bombs_compile_or_are_refused_by_name(schema):
    began = time.thread_time()
    try:
        Writer(schema, seconds=SECONDS)
    except ConstraintError as error:
        assert error.code in (Code.TOO_LARGE, Code.UNSUPPORTED), error.message
        assert "too large" in error.message or "itself" in error.message
    assert time.thread_time() - began < LIMIT_S


def test_g04_02_a_compilation_can_be_cancelled():
    error = refusal(one_of(12), cancelled=lambda: True)
    assert error.code is Code.TOO_LARGE and "cancelled" in error.message


# --- G04-03 -----------------------------------------------------------------------------------------------------------

# a schema, the value a careless model would write, one that is right
CARELESS = [
    ({"type": "integer", "minimum": 3, "maximum": 17}, 2, 3),
    ({"type": "number", "exclusiveMinimum": 0}, 0, 0.001),
    ({"type": "integer", "multipleOf": 5}, 7, 10),
    ({"const": "x"}, "y", "x"),
    ({"type": "string", "format": "date"}, "2023-02-30", "2024-02-29"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, [1, 1], [2, 1]),
    ({"type": "object", "patternProperties": {"^n": {"type": "integer"}}}, {"n1": "x"}, {"n1": 1, "m": "x"}),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, {"A": 1}, {"a": 1}),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, [1], ["a"]),
    ({"not": {"type": "string"}}, "x", 1),
    ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, 5, 4),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1}, {"a": 1, "b": 2}),
    ({"type": "object", "minProperties": 1}, {}, {"a": 1}),
    ({"type": "integer", "minimum": -12, "maximum": 105}, -13, -12),
    ({"type": "integer", "minimum": -12, "maximum": 105}, 106, 105),
]


@pytest.mark.parametrize(("schema", "wrong", "right"), CARELESS)
def test_g04_03_keywords_are_enforced(schema, wrong, right):
    writer = Writer(schema, property_order=PropertyOrder.ANY)
    assert writer.accepts_value(right) and not writer.accepts_value(wrong)
    rng = random.Random(json.dumps(schema))
    for _ in range(5):
        value = json.loads(writer.walk(rng))
        jsonschema.validate(value, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def test_g04_03_annotations_are_ignored():
    notes = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "description": "d", "default": "x"}
    notes |= {"examples": [1], "$comment": "c", "deprecated": True, "readOnly": True, "x-mine": {"type": "string"}}
    assert Writer({**notes, "type": "integer"}).accepts("5") and not Writer({**notes, "type": "integer"}).accepts('"x"')


def test_g04_03_integer_texts():
    writer = Writer({"type": "integer", "minimum": -12, "maximum": 105})
    accepted = [n for n in range(-200, 1200) if writer.accepts(str(n))]
    assert accepted == list(range(-12, 106))
    for text in ("007", "-0", "-00", "+4", "1.0", "1e1", "00"):
        assert not writer.accepts(text), text


# --- G04-04 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["-0", "1E-07", "0.0", "12E-2", "1e10", "3.5", "-1.25e+3"])
def test_g04_04_numbers_of_json(text):
    assert Writer({"type": "number"}).accepts(text)


@pytest.mark.parametrize("text", ["1e", "1e+", "-", "1."])
def test_g04_04_unfinished_numbers(text):
    writer = Writer({"type": "number"})
    assert writer.begins(text) and not writer.accepts(text)


@pytest.mark.parametrize("text", ["3.5.5", "01", ".5", "+1", "1e5.2", "--1", "1e5e", "NaN", "Infinity", "0x1"])
def test_g04_04_impossible_numbers(text):
    assert not Writer({"type": "number"}).begins(text)


def test_g04_04_numbers_end():
    writer = Writer({"type": "number"})
    assert not writer.begins("1" * 60) and not writer.begins("0." + "1" * 60) and not writer.begins("1e" + "1" * 10)
    assert not writer.begins("1e999")  # no float holds it


# --- G04-05 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b'"\n', b'"a\x00', b'"\x1f', b'"\\q', b'"\\u12"', b'"\\ud834"', b'"\\udd1e', b'"\xff', b'"\xc3"', b'"\xed\xa0\x80', b'"\xc0\x80'])
def test_g04_05_strings_are_json_and_utf_8(data):
    assert not Writer({"type": "string"}).begins(data)


def test_g04_05_escapes_in_the_schema_mean_characters():
    schema = json.loads('{"type":"object","properties":{"na\\u00efve":{"enum":["caf\\u00e9","\\ud83d\\ude38"]}},"required":["na\\u00efve"]}')
    writer = Writer(schema)
    assert writer.accepts('{"naïve":"café"}') and writer.accepts('{"naïve":"😸"}')
    assert not writer.begins('{"na?') and not writer.begins('{"naïve":"caf\\u')


# --- G04-08 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["[a-", "(?P<", "(?<=x)y", "(?=a)b", "\\1", "a{1000}{1000}", "*", "(?!x)"])
def test_g04_08_bad_patterns_are_refused(pattern):
    error = refusal({"properties": {"p": {"pattern": pattern}}})
    assert error.where == "#/properties/p" and "'pattern'" in error.message


@pytest.mark.parametrize(("pattern", "accepted", "rejected"), [("^(|.*)$", "x", "x\n"), ("^[\u0000-\u2e7f]+$", "é", "中"), ("", "", None)])
def test_g04_08_good_patterns_work(pattern, accepted, rejected):
    writer = Writer({"type": "string", "pattern": pattern})
    assert writer.accepts_value(accepted) and (rejected is None or not writer.accepts_value(rejected))


@pytest.mark.parametrize("schema", [{"type": "strnig"}, "a schema", 3, None, [], {"properties": 1}])
def test_g04_08_what_is_no_schema_is_refused(schema):
    assert refusal(schema).code is Code.INVALID


def test_g04_08_true_and_false_are_schemas():
    assert Writer(True).accepts('{"a":[1,null]}')
    assert refusal(False).code is Code.UNSATISFIABLE


# --- G04-14 -----------------------------------------------------------------------------------------------------------

TYPICAL_S, RARE_S, AGAIN_S = 1e-3, 1e-2, 5e-3  # of a mask at p50 and p99, and of compiling a second time


def test_g04_14_masks_of_a_large_vocabulary_take_microseconds(code_folder):
    """Twenty fields, strings that may hold anything among them, over 151,000 tokens; in time of this thread alone."""
    kinds = [({"type": "string"}, 'Grüße,\n "you"'), ({"type": "integer"}, 1234), ({"enum": ["red", "green"]}, "green"), ({"type": "array", "items": {"type": "number"}}, [1.5, -2])]
    fields = {f"field_{i}": kinds[i % len(kinds)] for i in range(20)}
    schema = {"type": "object", "properties": {name: kind for name, (kind, _) in fields.items()}, "required": list(fields), "additionalProperties": False}
    value = {name: value for name, (_, value) in fields.items()}
    jsonschema.validate(value, schema)
    words = toys.vocabulary("qwen2")
    tables = VocabTables.build(words.byte_table, words.special_ids, words.eos_ids, code_folder)
    compiler = Compiler(lambda: tables, words.encode, cache_dir=code_folder)
    compiler.warm()
    spec = ConstraintSpec(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    grammar = compiler.compile(spec)

    began = time.thread_time()
    assert compiler.compile(ConstraintSpec(ConstraintKind.JSON_SCHEMA, json.dumps(schema))) is grammar
    assert time.thread_time() - began < AGAIN_S

    matcher, seconds = grammar.start(), []
    for token in [*words.encode(json.dumps(value, ensure_ascii=False)), min(words.eos_ids)]:
        began = time.thread_time()
        matcher.row()
        seconds.append(time.thread_time() - began)
        assert matcher.accept(token)
    assert matcher.done and len(seconds) > 150
    seconds.sort()
    assert seconds[len(seconds) // 2] < TYPICAL_S and seconds[len(seconds) * 99 // 100] < RARE_S
