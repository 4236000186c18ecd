"""Constraints sent in bad faith are compiled or refused, in bounded time, and what is compiled can be followed."""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest

from imp.constrain.clock import Rest
from imp.constrain.compiler import Compiler
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.nfa import Nfa
from imp.types import ConstraintKind, ConstraintSpec
from tests.constrain.hostile import hostile
from tests.toylogits import compiler

CASES = 300
SMALL = 1000  # characters: what is longer has its time in tests/acceptance/test_hostile.py
LIMIT_S = 5.0  # of the thread's own time, G04-02


def walk(
    made: Compiler, spec: ConstraintSpec, draw: random.Random, steps: int, rest: Rest = lambda took_s: None
) -> str:
    """What became of a constraint: a code, or how its first tokens went. Whatever else it raises is a failure."""
    began = time.thread_time()
    try:
        matcher = made.compile(spec, rest=rest).start()
    except ConstraintError as error:
        assert error.message and len(error.message) < 2000
        return error.code.value
    finally:
        assert time.thread_time() - began < LIMIT_S, (spec.kind, spec.text[:300])
    for _ in range(steps):
        row = matcher.row()
        allowed = [] if row is None else np.flatnonzero(made.tables.token_bits(row))
        if matcher.error is not None:
            return "stuck"
        assert len(allowed), ("a dead end", spec.kind, spec.text[:300])
        if not matcher.accept(int(draw.choice(allowed))):
            assert matcher.error is not None
            return "stuck"
        if matcher.done:
            break
    return "followed"


@pytest.mark.slow
def test_g04_02_hostile_constraints_are_compiled_or_refused(code_folder):
    made, draw, counts = compiler(code_folder), random.Random(11), Counter[str]()
    for spec in hostile(draw):
        if len(spec.text) < SMALL:
            counts[walk(made, spec, draw, 4)] += 1
        if counts.total() == CASES:
            break
    assert counts["followed"] > CASES / 4
    for code in ("invalid_constraint", "unsupported_constraint", "unsatisfiable_constraint"):
        assert counts[code], counts


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec(ConstraintKind.GRAMMAR, 'root ::= "' + "a" * 120_000 + '"'),
        ConstraintSpec(ConstraintKind.JSON_SCHEMA, " " * (1 << 20) + "true"),
    ],
    ids=["one long literal", "text"],
)
def test_budgets_say_what_was_too_much(code_folder, spec):
    began = time.thread_time()
    with pytest.raises(ConstraintError) as caught:
        compiler(code_folder).compile(spec)
    assert caught.value.code.value == "constraint_too_large" and "too large: " in caught.value.message
    assert time.thread_time() - began < LIMIT_S


def test_lowering_that_fails_fails_for_the_next_one_as_well():
    """A grammar is shared: the second request that gets there is told the same."""

    def lower() -> int:
        raise ConstraintError(Code.TOO_LARGE, "", "no room")

    nfa = Nfa()
    node = nfa.lazy(lower)
    for _ in range(2):
        with pytest.raises(ConstraintError, match="no room"):
            nfa.lower(node)
