"""Which names can be there together: against all ways to choose them, and quickly where there are many."""

from __future__ import annotations

import json
import random
from itertools import product

import jsonschema
import pytest

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.schema.presence import MAX_TRIES, Presence
from tests.constrain.schemas import Writer, refusal

NONE: frozenset[int] = frozenset()


def a_clause(rng: random.Random, names: list[str], kind: str) -> frozenset[tuple[str, bool]]:
    chosen = rng.sample(names, 2 if kind == "pairs" else rng.randint(1, 3))
    signs = {
        "horn": [i == 0 and rng.random() < 0.7 for i in range(len(chosen))],
        "mirrored": [i > 0 or rng.random() < 0.3 for i in range(len(chosen))],
    }.get(kind, [rng.random() < 0.5 for _ in chosen])
    return frozenset(zip(chosen, signs, strict=True))


def tried(names: list[str], required: frozenset[str], clauses: frozenset, valueless: set[str]) -> set[int]:
    """Numbers of members of all choices that fulfil the clauses."""
    found = set()
    for choice in product((False, True), repeat=len(names)):
        there = dict(zip(names, choice, strict=True))
        allowed = all(not there[name] for name in valueless) and all(there[name] for name in required)
        if allowed and all(any(there[name] == wanted for name, wanted in clause) for clause in clauses):
            found.add(sum(choice))
    return found


@pytest.mark.parametrize("kind", ["horn", "mirrored", "pairs", "any"])
@pytest.mark.parametrize("low_matters", [False, True])
@pytest.mark.parametrize("high_matters", [False, True])
def test_groups_are_what_trying_all_finds(kind, low_matters, high_matters, monkeypatch):
    rng = random.Random(f"{kind} {low_matters} {high_matters}")
    names = list("abcdefg")
    for most in (MAX_TRIES, 0):  # small groups are tried, others resolved
        monkeypatch.setattr("imp.constrain.schema.presence.MAX_TRIES", most)
        for _ in range(150):
            clauses = frozenset(a_clause(rng, names, kind) for _ in range(rng.randint(1, 6)))
            required = frozenset(name for name in names if rng.random() < 0.1)
            valueless = {name for name in names if rng.random() < 0.1}
            presence = Presence(names, required, [NONE] * len(names), low_matters, high_matters)
            presence.know(lambda i, v=valueless: [] if names[i] in v else [NONE], lambda some: None if some else 0)
            try:
                presence.check(range(len(names)), clauses, NONE)
            except ConstraintError as error:
                assert error.code is Code.TOO_LARGE and most == 0 and (kind == "any" or low_matters or high_matters)
                continue
            counts = {0}
            for group in presence.groups(range(len(names)), clauses, NONE):
                found = presence.numbers(group)
                bits = {i for i in range(found.bit_length()) if found >> i & 1}
                spoken_of = {name for clause in group.clauses for name, _ in clause}
                members = [names[i] for i in group.names]
                assert set(members) == spoken_of
                wanted = tried(members, required & spoken_of, group.clauses, valueless & spoken_of)
                if most:
                    assert bits == wanted
                else:
                    assert bool(bits) == bool(wanted)
                    if wanted and low_matters:
                        assert bits == {max(wanted)}
                    elif wanted and high_matters:
                        assert bits == {min(wanted)}
                counts = {a + b for a in counts for b in wanted}


def test_members_that_fulfil_conditions():
    """Two conditions: a can fulfil both, b the second, other names the first."""
    both, second = frozenset([0, 1]), frozenset([1])
    presence = Presence(["a", "b"], frozenset(), [both, second], True, True)
    ways = [[NONE, frozenset([0]), second, both], [NONE, second]]
    presence.know(ways.__getitem__, lambda some: None if 1 in some else len(some))
    (group,) = presence.groups(range(2), frozenset(), both)
    found = presence.numbers(group)
    assert {i for i in range(found.bit_length()) if found >> i & 1} == {1, 2, 3}  # a, that is enough; with b, with others
    (group,) = presence.groups([1], frozenset(), both)
    assert presence.numbers(group) == 1 << 2


WIDE = [f"k{i}" for i in range(80)]
CLOSED = {"type": "object", "properties": {name: {"type": "integer"} for name in WIDE}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {**CLOSED, "dependentRequired": {name: sorted({WIDE[i * 7 % 80], WIDE[i * 3 % 80]}) for i, name in enumerate(WIDE)}},
        {**CLOSED, "dependentRequired": {name: [WIDE[(i + 1) % 80]] for i, name in enumerate(WIDE)}, "minProperties": 3},
        {**CLOSED, "dependentRequired": {name: WIDE[i + 1 : i + 3] for i, name in enumerate(WIDE)}, "maxProperties": 70},
        {**CLOSED, "allOf": [{"anyOf": [{"required": [WIDE[i]]}, {"required": [WIDE[79 - i]]}]} for i in range(30)], "minProperties": 2},
        {**CLOSED, "allOf": [{"not": {"required": WIDE[i : i + 2]}} for i in range(79)]},
    ],
    ids=["implications", "a circle, with a minimum", "implications, with a maximum", "choices, with a minimum", "no neighbours"],
)
def test_objects_of_many_tied_names_can_be_written(schema):
    """In every state an object can be in, whether it can be finished is found without a search."""
    writer = Writer(schema)
    rng = random.Random(1)
    for _ in range(3):
        jsonschema.validate(json.loads(writer.walk(rng, 200)), schema)


def test_groups_that_are_too_hard_are_refused_before_anything_is_written():
    rng = random.Random(3)
    rules = [{"anyOf": [{"required" if rng.random() < 0.5 else "not": None} for _ in range(3)]} for _ in range(60)]
    for rule in rules:
        rule["anyOf"] = [
            {"required": [rng.choice(WIDE)]} if "required" in each else {"not": {"required": [rng.choice(WIDE)]}}
            for each in rule["anyOf"]
        ]
    error = refusal({**CLOSED, "allOf": rules})
    assert error.code is Code.TOO_LARGE, error.message
