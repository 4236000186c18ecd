"""Reasoning that ends at its budget: which tokens may come, worked out by hand over a small vocabulary."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from imp.constrain.bars import Bar
from imp.constrain.compiler import Compiler
from imp.constrain.tools import Vocabulary
from imp.constrain.vocab import vocabulary_tables
from imp.types import Constraint, ConstraintKind, ConstraintSpec, Headers, Reasoning

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


# -- reasoning that may come again: messages, as gpt-oss writes them ----------------------------------------------------

WORDS = [b"a", b"analysis", b"ana", b"final", b" x", b"lysis", b"<start>", b"<channel>", b"<message>", b"<end>", b"STOP"]
LETTER, ANALYSIS, ANA, FINAL, X, LYSIS, START, CHANNEL, MESSAGE, END, STOP = range(11)
CONTROLS = {"<start>": START, "<channel>": CHANNEL, "<message>": MESSAGE, "<end>": END}
MESSAGES = Reasoning("<channel>analysis<message>", "<end>", False, "<start>", again="<channel>")
HEADERS = Headers(("<start>", "<channel>"), ("<message>",))
BLOCK, ANSWER = [CHANNEL, ANALYSIS, MESSAGE], [START, CHANNEL, FINAL, MESSAGE]


@pytest.fixture(scope="module")
def speaker(code_folder: Path) -> Compiler:
    tables = vocabulary_tables(WORDS, {*CONTROLS.values(), STOP}, {STOP}, code_folder)
    vocabulary = Vocabulary(CONTROLS, frozenset(CONTROLS.values()))
    return Compiler(lambda: tables, vocabulary=lambda: vocabulary, cache_dir=code_folder)


def opened(speaker: Compiler, budget: int, *tokens: int) -> Constraint:
    grammar = speaker.thinking(MESSAGES, budget, [END], None, HEADERS, 4)
    assert grammar is not None
    constraint = grammar.start()
    for token in tokens:
        assert constraint.accept(token)
    return constraint


def choices(speaker: Compiler, constraint: Constraint) -> set[int]:
    mask = np.zeros(speaker.tables.words, np.uint32)
    constraint.fill_mask(mask)
    bits = speaker.tables.rank
    return {token for token in range(len(WORDS)) if mask[bits[token] // 32] >> np.uint32(bits[token] % 32) & 1}


@pytest.mark.parametrize("between", [[], [*ANSWER, X, END], [START, CHANNEL, X, MESSAGE, END]])
def test_a_further_block_goes_on_with_the_budget(speaker, between):
    first = [*BLOCK, X, END]  # 5 tokens
    constraint = opened(speaker, 12, *first, *between, START, *BLOCK)  # 9 tokens
    for _ in range(2):
        assert choices(speaker, constraint) == set(range(11))
        assert constraint.accept(X)
    assert choices(speaker, constraint) == {END}
    assert constraint.accept(END) and choices(speaker, constraint) == set(range(11))


def test_a_block_that_has_no_room_left_does_not_begin(speaker):
    for budget, barred in ((9, True), (10, True), (11, False)):  # 5 so far, 4 open it, one closes it, one is thought
        constraint = opened(speaker, budget, *BLOCK, X, END, START, CHANNEL)
        assert choices(speaker, constraint) == set(range(11)) - ({LETTER, ANA, ANALYSIS} if barred else set()), budget
    assert choices(speaker, opened(speaker, 9, *BLOCK, X, END, START)) == set(range(11))
    assert choices(speaker, opened(speaker, 9, *BLOCK, X, END, *ANSWER)) == set(range(11))


def test_a_header_that_has_begun_is_led_elsewhere(speaker):
    grammar = speaker.thinking(MESSAGES, 1000, [END], None, HEADERS, 4)
    constraint = grammar.start()
    for token in (*BLOCK, X, END, START, CHANNEL, ANA):
        assert constraint.accept(token)
    assert choices(speaker, constraint) == set(range(11))
    grammar.end()
    assert choices(speaker, constraint) == set(range(11)) - {LYSIS}
    constraint.rollback(1)
    assert choices(speaker, constraint) == set(range(11)) - {LETTER, ANA, ANALYSIS}


def test_what_was_closed_at_once_is_not_made_reasoning_beyond_the_budget(compiler):
    late = Reasoning("<think>", "</think>", True, late=True)
    everything = set(range(10))
    for said, barred in (((), False), ((A, A), False), ((A, A, A), True), ((A, A, A, B), True)):
        grammar = compiler.thinking(late, 4, [CLOSE], None)
        constraint = grammar.start()
        for token in (CLOSE, *said):
            constraint.accept(token)
        assert allowed(compiler, constraint) == everything - ({CLOSE} if barred else set()), said
    constraint = compiler.thinking(late, 4, [CLOSE], None).start()
    for token in (LINE, OPEN, A):
        constraint.accept(token)
    assert allowed(compiler, constraint) == {CLOSE}


@pytest.mark.parametrize("head", [b"", b"a", b"ab", b"aba"])
def test_bars_against_a_search(code_folder, head):
    """Against str.find: no token leads into the marker behind its head, and every other one may come."""
    draw = random.Random(head)
    marker, pieces = b"abaabb", [b"a", b"b", b"c", b"ab", b"ba", b"aa", b"bb", b"cab", b"abaab", b"aabb", b"abaabb", b"baabac"]
    bar = Bar(vocabulary_tables(pieces, set(), set(), code_folder), head, marker)
    tables = vocabulary_tables(pieces, set(), set(), code_folder)
    beyond = [marker[:size] for size in range(len(head) + 1, len(marker) + 1)]
    for _ in range(300):
        tail = bytes(draw.choices(b"abc", k=draw.randint(0, 8)))
        if marker in tail:
            continue
        mask = bar.mask(tail)
        for token, piece in enumerate(pieces):
            text = [(tail + piece)[:size] for size in range(len(tail) + 1, len(tail + piece) + 1)]
            leads = any(each.endswith(tuple(beyond)) for each in text)
            bit = tables.rank[token]
            found = mask is not None and bool(mask[bit // 32] >> np.uint32(bit % 32) & 1)
            assert found == leads, (tail, piece)
