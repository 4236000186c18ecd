"""Reasoning that ends at its budget: which tokens may come, worked out by hand over a small vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from imp.constrain.compiler import Compiler
from imp.constrain.tools import Vocabulary
from imp.constrain.vocab import vocabulary_tables
from imp.types import Constraint, ConstraintKind, ConstraintSpec, Reasoning

PIECES = [b"a", b"b", b"\xc3", b"\xa9", b"</th", b"ink>", b"<think>", b"</think>", b"\n", b"END"]
A, B, C3, A9, CLOSE1, CLOSE2, OPEN, CLOSE, LINE, EOS = range(10)
INSIDE, OUTSIDE = Reasoning("<think>", "</think>", True), Reasoning("<think>", "</think>", False)


@pytest.fixture(scope="module")
def compiler(code_folder: Path) -> Compiler:
    tables = vocabulary_tables(PIECES, {OPEN, CLOSE, EOS}, {EOS}, code_folder)
    vocabulary = Vocabulary({"<think>": OPEN, "</think>": CLOSE}, frozenset({OPEN, CLOSE}))
    return Compiler(lambda: tables, vocabulary=lambda: vocabulary, cache_dir=code_folder)


def allowed(compiler: Compiler, constraint: Constraint) -> set[int]:
    mask = np.zeros(compiler.tables.words, np.uint32)
    constraint.fill_mask(mask)
    bits = compiler.tables.rank
    return {token for token in range(len(PIECES)) if mask[bits[token] // 32] >> np.uint32(bits[token] % 32) & 1}


def start(compiler: Compiler, reasoning: Reasoning, budget: int, spec: ConstraintSpec | None = None) -> Constraint:
    grammar = compiler.thinking(reasoning, budget, [CLOSE], None if spec is None else compiler.compile(spec))
    assert grammar is not None
    return grammar.start()


def test_the_marker_is_the_last_token_of_the_budget(compiler):
    constraint = start(compiler, INSIDE, 4)
    for _ in range(3):
        assert allowed(compiler, constraint) == set(range(10))
        assert constraint.accept(A)
    assert allowed(compiler, constraint) == {CLOSE} and constraint.forced() == [CLOSE]
    assert constraint.accept(CLOSE) and allowed(compiler, constraint) == set(range(10))
    assert constraint.accept(OPEN) and allowed(compiler, constraint) == set(range(10)) and not constraint.done


def test_a_character_is_completed_first(compiler):
    constraint = start(compiler, INSIDE, 3)
    constraint.accept(A)
    constraint.accept(C3)
    assert allowed(compiler, constraint) == set(range(10))
    constraint.accept(A9)
    assert allowed(compiler, constraint) == {CLOSE}


def test_drafts_are_taken_back(compiler):
    constraint = start(compiler, INSIDE, 3)
    for token in (A, B, CLOSE, A):
        assert constraint.accept(token)
    constraint.rollback(2)
    assert allowed(compiler, constraint) == {CLOSE}
    constraint.rollback(1)
    assert allowed(compiler, constraint) == set(range(10))


@pytest.mark.parametrize(("tokens", "thinks"), [((OPEN, A), True), ((LINE, OPEN), True), ((A, OPEN), False)])
def test_only_a_text_that_begins_with_the_marker_thinks(compiler, tokens, thinks):
    constraint = start(compiler, OUTSIDE, 3)
    for token in tokens:
        constraint.accept(token)
    assert (allowed(compiler, constraint) == {CLOSE}) == thinks


def test_what_follows_has_its_constraint_from_the_first_token(compiler):
    spec = ConstraintSpec(ConstraintKind.REGEX, "ab", reasoning=INSIDE)
    constraint = start(compiler, INSIDE, 4, spec)
    assert A in allowed(compiler, constraint) and CLOSE in allowed(compiler, constraint)
    assert EOS not in allowed(compiler, constraint)
    for token in (B, B, B):
        assert constraint.accept(token)
    assert allowed(compiler, constraint) == {CLOSE}
    assert constraint.accept(CLOSE) and allowed(compiler, constraint) == {A, LINE}
    assert not constraint.accept(B)
    assert constraint.accept(A) and allowed(compiler, constraint) == {B}
    assert constraint.accept(B) and allowed(compiler, constraint) == {EOS}
    constraint.rollback(2)
    assert allowed(compiler, constraint) == {A, LINE}


def test_it_can_be_ended_from_outside(compiler):
    grammar = compiler.thinking(INSIDE, 1000, [CLOSE], None)
    constraint, other = grammar.start(), grammar.start()
    for token in (A, CLOSE):
        other.accept(token)
    constraint.accept(A)
    assert grammar.end() == 1 and allowed(compiler, constraint) == {CLOSE}
    assert constraint.accept(B), "a token that was drawn before the wish came"
    assert allowed(compiler, constraint) == {CLOSE} and allowed(compiler, other) == set(range(10))


def test_a_marker_that_the_tokenizer_cannot_write_is_not_forced(compiler):
    assert compiler.thinking(INSIDE, 3, [A], None) is None
