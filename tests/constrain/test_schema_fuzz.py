"""Anything may arrive as a schema: it compiles, or it is refused with a ConstraintError; nothing else happens, and soon."""

from __future__ import annotations

import json
import random

import pytest

from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Nfa
from imp.constrain.schema import KEYWORDS, compile_schema
from tests.constrain.random_schemas import Schemas
from tests.constrain.schemas import Writer

WORDS = [*KEYWORDS, "#", "#/$defs/a", "#a", "http://x.test/a#b", "urn:x:y", "http://[x", "http://[x#y", "//[::1", "(", "[a-", "^a{2,}$", "date", "object", "integer", "é", "", "~1", "%zz", "\ud800"]
KEYWORDS_READ = ["minimum", "maximum", "minLength", "maxLength", "minItems", "enum", "const", "type", "properties", "required", "additionalProperties", "patternProperties", "allOf", "items", "prefixItems", "minContains"]
ODD = [None, True, False, 0, -1, 1.5, 1e308, 10**30, "", [], {}, [[]], [{}], {"a": {}}, ["a", "a"], "\ud800", {"$ref": "#"}, float("nan")]


def anything(rng: random.Random, depth: int) -> object:
    kind = rng.choice(["odd", "word", "list", "dict", "dict"] if depth else ["odd", "word"])
    if kind == "list":
        return [anything(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == "dict":
        return {rng.choice(WORDS): anything(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    return rng.choice(ODD if kind == "odd" else WORDS)


def broken(rng: random.Random, value: object) -> object:
    """The schema with one part, somewhere, replaced by something odd."""
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return rng.choice([*ODD, anything(rng, 2)])
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = broken(rng, copy[key])  # type: ignore[index]
    return copy


def compiles_or_is_refused(schema: object) -> None:
    nfa = Nfa()
    try:
        start = compile_schema(schema, nfa)
    except ConstraintError as error:
        assert error.message
        return
    for node in [start, *nfa.pending]:
        if node in nfa.pending:
            nfa.lower(node)


@pytest.mark.parametrize("seed", range(8))
def test_any_json(seed):
    rng = random.Random(seed)
    for _ in range(200):
        compiles_or_is_refused({rng.choice(WORDS): anything(rng, 3) for _ in range(rng.randint(1, 5))})
        compiles_or_is_refused(anything(rng, 3))


@pytest.mark.parametrize("seed", range(8))
def test_schemas_with_one_broken_part(seed):
    rng = random.Random(100 + seed)
    for _ in range(100):
        compiles_or_is_refused(broken(rng, Schemas(rng).document()))


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_after_a_schema(seed):
    """No bytes that are no JSON are accepted, whatever the schema."""
    rng = random.Random(seed)
    writer = Writer(True)
    for _ in range(300):
        data = bytes(rng.choice(b'{}[]",:0123456789.-+eE \\untrfalse\n\x00\x7f\x80\xc3\xff') for _ in range(rng.randint(1, 12)))
        if writer.accepts(data):
            json.loads(data)
    for good in (b"{}", b'{"a":[1,2.5e3,"\\u00e9",null]}', b"[[],[[]],{}]", b'"\\ud83d\\ude00"'):
        assert writer.accepts(good)


@pytest.mark.parametrize("seed", range(4))
def test_why_nothing_fulfils_a_schema_is_sought_among_anything(seed):
    """Keywords beside a reference of draft 7 are ignored, so they may be no keywords at all."""
    rng = random.Random(200 + seed)
    draft7 = "http://json-schema.org/draft-07/schema#"
    for _ in range(200):
        ignored = {keyword: anything(rng, 2) for keyword in rng.sample(KEYWORDS_READ, 4)}
        document = {"$schema": draft7, "definitions": {"no": {"allOf": [False]}}, **ignored, "$ref": "#/definitions/no"}
        with pytest.raises(ConstraintError) as caught:
            compile_schema(document, Nfa())
        assert caught.value.message
    for least in (1.0, 2, 1e308, 65537.0):
        with pytest.raises(ConstraintError):
            compile_schema({"type": "array", "prefixItems": [True, False], "minItems": least, "maxItems": 2, "contains": False}, Nfa())
