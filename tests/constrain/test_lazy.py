"""What is written when it is reached is never refused then: whatever can be refused was, when the schema was compiled."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from imp.chat.formats.registry import FORMATS
from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Nfa
from imp.constrain.schema import PropertyOrder, SchemaOptions, compile_schema
from imp.constrain.schema.arguments import arguments
from tests.constrain.hostile import schema_bomb
from tests.constrain.random_schemas import Schemas

NODES = 1500  # written of each automaton, beyond what compiling wrote; more of more schemas: make acceptance-constrain
AT_ONCE = 25_000  # nodes written when one place is reached
PARAMETERS = [format.envelopes[0].parameters for format in FORMATS.values() if format.envelopes and format.envelopes[0].parameters]
NAMES = [f"name_{i}" for i in range(1000)]
CLOSED = {"type": "object", "additionalProperties": False}
INTEGERS = {name: {"type": "integer"} for name in NAMES}

# each was refused, or wrote for ever, only where a text came to it
LATE = [
    {"type": "integer", "multipleOf": 10**30, "minimum": 0, "not": {"multipleOf": 3}},
    {"enum": list(range(20_000))},
    {"enum": [{"a": i} for i in range(1200)]},
    {"enum": [[i, i] for i in range(1200)]},
    {"enum": [f"{i:040}" for i in range(4000)]},
    {"type": "number", "not": {"enum": list(range(250))}},
    {**CLOSED, "properties": INTEGERS},
    {**CLOSED, "properties": INTEGERS, "maxProperties": 4},
    {**CLOSED, "properties": dict(list(INTEGERS.items())[:60]), "dependentRequired": {name: [NAMES[i * 7 % 60]] for i, name in enumerate(NAMES[:60])}, "minProperties": 5},
    {"type": "array", "uniqueItems": True, "items": {"enum": list(range(64))}, "minItems": 60},
    {"type": "array", "allOf": [{"contains": {"minimum": i}, "minContains": 3, "maxContains": 5} for i in range(3)], "maxItems": 40},
    {"type": "array", "prefixItems": [{"const": i} for i in range(1000)]},
    {"type": "integer", "minimum": -(10**299), "maximum": 10**299},
    {"type": "string", "pattern": "^(\\p{L}|\\p{N}){3,40}\\p{Lu}$", "minLength": 10},
    {"type": "object", "not": {"patternProperties": {"5$": {"type": "string"}}}, "propertyNames": {"pattern": "^[a-z]+[0-9]{1,40}$"}},
    {"type": "string", "pattern": "^(a|b)*a(a|b){11}$", "maxLength": 40},
    {"type": "string", "minLength": 250, "maxLength": 255},
]


def automata(schema: object) -> Iterator[Nfa]:
    """Of one schema: JSON in both orders, and as parameters of a call. Those that are refused are left out."""
    for order in PropertyOrder:
        nfa, options = Nfa(), SchemaOptions(property_order=order)
        try:
            compile_schema(schema, nfa, options)
        except ConstraintError:
            continue
        yield nfa
    for texts in PARAMETERS[:1]:
        nfa = Nfa()
        try:
            arguments({"type": "object", "properties": {"a": schema}, "required": ["a"]})(nfa, nfa.ret, texts)
            yield nfa
            nfa = Nfa()
            arguments(schema)(nfa, nfa.ret, texts)
        except ConstraintError:
            continue
        yield nfa


def write_all(nfa: Nfa, rng: random.Random, nodes: int = NODES) -> int:
    """In any order."""
    count, most = 0, len(nfa.nodes) + nodes
    while nfa.pending and len(nfa.nodes) < most:
        before = len(nfa.nodes)
        nfa.lower(next(iter(nfa.pending)) if rng.random() < 0.5 else next(reversed(nfa.pending)))
        count += 1
        assert len(nfa.nodes) - before <= AT_ONCE
    return count


@pytest.mark.parametrize("schema", LATE, ids=range(len(LATE)))
def test_what_was_refused_late_is_not_any_more(schema):
    for nfa in automata({"type": "object", "properties": {"a": schema, "b": {"items": schema}}}):
        write_all(nfa, random.Random(1))


def write_random_schemas(seed: int, count: int, nodes: int) -> None:
    """And those in bad faith."""
    rng, written = random.Random(seed), 0
    for i in range(count):
        schema = Schemas(rng).document() if i % 2 else json.loads(schema_bomb(rng).text)
        for nfa in automata(schema):
            written += write_all(nfa, rng, nodes)
    assert written > count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_refused_late(seed):
    write_random_schemas(seed, 10, NODES)
