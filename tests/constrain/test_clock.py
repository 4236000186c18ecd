"""Whatever is compiled, it looks at the clock: it ends when its time is over or nobody wants it, and rests when told to."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from imp.constrain import unicode_sets
from imp.constrain.clock import timed
from imp.constrain.compile import compile_choice, compile_regex
from imp.constrain.compiler import build
from imp.constrain.context import Context, Piece
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.language import Language
from imp.constrain.nfa import Nfa
from imp.constrain.nodes import NODE_FORMS, NodeTables
from imp.types import ConstraintKind, ConstraintSpec

S, R, C, G = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.CHOICE, ConstraintKind.GRAMMAR
LONG = {
    "a schema": ConstraintSpec(S, json.dumps({"oneOf": [{"properties": {f"k{i}": {"minimum": i}}} for i in range(40)]})),
    "a list of values": ConstraintSpec(S, json.dumps({"enum": [{"a": i} for i in range(5000)]})),
    "a pattern in a schema": ConstraintSpec(S, json.dumps({"pattern": "^(a|b)*a(a|b){12}$"})),
    "a regular expression": ConstraintSpec(R, "(a|b)*a(a|b){11}c"),
    "a long one": ConstraintSpec(R, "[a-z]x?" * 3000),
    "a choice": ConstraintSpec(C, json.dumps([f"{i * 7919 % 100_003}" for i in range(20_000)])),
    "a grammar": ConstraintSpec(G, "root ::= r0\n" + "\n".join(f'r{i} ::= r{(i + 1) % 900} r{(i * 7 + 3) % 900} | "x"' for i in range(900))),
    "a literal": ConstraintSpec(G, 'root ::= "' + "ab" * 20_000 + '"'),
    "Lark": ConstraintSpec(G, "start: " + "[A] " * 3000 + '\nA: "a"'),
}


# how often at least: each was long without a look in some loop, and then had fewer
LOOKS = {
    "strings of two lists": (S, json.dumps({"enum": [f"{i:08}" for i in range(3000)], "not": {"enum": [f"{i:08}" for i in range(0, 3000, 2)]}}), 300),
    "numbers of two lists": (S, json.dumps({"enum": list(range(6000)), "not": {"enum": list(range(0, 6000, 2))}}), 200),
    "many objects": (S, json.dumps({"enum": [{"a": i} for i in range(3000)]}), 500),
    "letters of all scripts": (R, r"(?i:[a-z]+)\p{L}", 500),
    "a long way": (R, "[a-z]{0,3000}[0-9]{0,3000}", 650),
}


def forget() -> None:
    """What patterns were compiled before, and what is known of characters."""
    for cached in (Language.pattern.__globals__[name] for name in ("_pattern", "_of", "_lengths", "_intersection")):
        cached.cache_clear()
    for name in ("any_case", "property_set", "_categories", "_orbits", "_orbit_of"):
        getattr(unicode_sets, name).cache_clear()


@pytest.mark.parametrize("spec", LONG.values(), ids=LONG.keys())
def test_it_ends_soon_after_nobody_wants_it(spec):
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3

    forget()
    with pytest.raises(ConstraintError, match="cancelled") as caught, timed(stop=stop):
        build(spec, Nfa())
    assert caught.value.code is Code.TOO_LARGE and looks <= 6


@pytest.mark.parametrize("spec", LONG.values(), ids=LONG.keys())
def test_it_is_refused_when_its_time_is_over(spec):
    forget()
    with pytest.raises(ConstraintError, match=r"too large: compiling it takes more than 0\.005 s") as caught, timed(0.005):
        build(spec, Nfa())
    assert caught.value.code is Code.TOO_LARGE


@pytest.mark.parametrize("spec", LONG.values(), ids=LONG.keys())
def test_it_says_how_long_it_took(spec):
    """Often, and all of it."""
    times: list[float] = []
    forget()
    with suppress(ConstraintError), timed(30, rest=times.append):  # some are refused for their size
        build(spec, Nfa())
    assert len(times) > 5 and sum(times) > 0 and min(times) >= 0


@pytest.mark.parametrize(("kind", "text", "looks"), LOOKS.values(), ids=LOOKS.keys())
def test_none_of_its_loops_is_long_without_a_look(kind, text, looks):
    times: list[float] = []
    forget()
    with timed(60, rest=times.append):
        build(ConstraintSpec(kind, text), Nfa())
    assert len(times) > looks


def test_nodes_are_copied_into_arrays_in_pieces():
    nfa, times = Nfa(), list[float]()
    nfa.literal(b"ab" * 10_000, nfa.ret)
    context = Context()
    context.add(Piece(NODE_FORMS))
    with timed(60, rest=times.append):
        NodeTables(nfa, context)
    assert len(times) > len(nfa.nodes) / 300


def test_one_clock_for_all_that_is_compiled_together():
    def two() -> None:
        with timed(0.01):
            for _ in range(50):
                with timed(30):
                    compile_choice([f"{i}" for i in range(2000)], Nfa())

    with pytest.raises(ConstraintError, match=r"takes more than 0\.01 s"):
        two()
    compile_regex("a*", Nfa())  # and none is left behind
