"""Regular expressions and choices as constraints of a whole output, byte by byte."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain.compile import compile_choice, compile_regex
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.nfa import Nfa

from . import simulate
from .test_regex import CHARS, cases, judge, judged, random_pattern


def accepts(pattern: str, *texts: str) -> list[bool]:
    nfa = Nfa()
    start = compile_regex(pattern, nfa)
    return [simulate.accepts(nfa, start, text.encode()) for text in texts]


@pytest.mark.parametrize("case", cases("regex"))
def test_cases_of_the_specification(case):
    assert all(accepts(case["spec"], *case["accept"]))
    assert not any(accepts(case["spec"], *case["reject"]))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_random_patterns_byte_by_byte(seed):
    draw = random.Random(seed)
    pattern = random_pattern(draw, 3)
    found = judge.compile(judged(pattern))
    texts = ["".join(draw.choices(CHARS, k=draw.randint(0, 6))) for _ in range(12)]
    try:
        assert accepts(pattern, *texts) == [bool(found.fullmatch(text)) for text in texts], pattern
    except ConstraintError as error:
        assert error.code is Code.UNSATISFIABLE and not any(map(found.fullmatch, texts))


def test_anchors_are_allowed_and_the_match_is_whole_without_them():
    for pattern in ("a|bc", "^(?:a|bc)$", r"\A(?:a|bc)\Z"):
        assert accepts(pattern, "a", "bc", "abc", "xa", "") == [True, True, False, False, False]
    assert accepts("^a|b$", "a", "b", "ab") == [True, True, False]


def test_bounds_too_large_for_a_minimal_automaton_are_counted():
    nfa = Nfa()
    start = compile_regex("^(?:[a-z]{1,70000}-){2,500}x?$", nfa)
    assert len(nfa.nodes) < 100
    assert [simulate.accepts(nfa, start, text) for text in (b"ab-c-", b"a-b-c-x", b"a-", b"a--", b"a" * 400 + b"-b-x")] == [True, True, False, False, True]
    nfa = Nfa()
    start = compile_regex("(?:a?){30000}", nfa)
    assert simulate.accepts(nfa, start, b"a" * 2000) and not simulate.accepts(nfa, start, b"b")


@pytest.mark.parametrize("pattern", ["a^b", "[]", "x$y"])
def test_patterns_without_a_match_are_refused(pattern):
    with pytest.raises(ConstraintError) as caught:
        compile_regex(pattern, Nfa())
    assert caught.value.code is Code.UNSATISFIABLE


def test_a_long_output_is_followed():
    assert accepts(r"(?:\w+ )*\w+\.", "ab " * 33_000 + "c.", "ab " * 1000) == [True, False]


CHOICES = ["positive", "pos", "", "zażółć", "za", "😀", "😁", 'with "quotes"\n', "pos"]


def test_choices_are_exact_and_without_dead_ends():
    nfa = Nfa()
    start = compile_choice(CHOICES, nfa)
    for text in [*CHOICES, "po", "posi", "positivex", "zaż", "x", "😂", " "]:
        assert simulate.accepts(nfa, start, text.encode()) == (text in CHOICES)
    assert simulate.dead_ends(nfa, start) == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=4), min_size=1, max_size=8), st.lists(st.text(max_size=4), max_size=4))
def test_any_choices(choices, others):
    nfa = Nfa()
    start = compile_choice(choices, nfa)
    for text in choices + others:
        assert simulate.accepts(nfa, start, text.encode()) == (text in choices)


def test_many_and_long_choices():
    nfa = Nfa()
    choices = [f"{i:x}" * 10 for i in range(5000)] + ["x" * 100_000]
    start = compile_choice(choices, nfa)
    assert simulate.accepts(nfa, start, choices[77].encode()) and not simulate.accepts(nfa, start, b"xx")


@pytest.mark.parametrize(
    ("choices", "code"), [([], Code.UNSATISFIABLE), (["\ud800"], Code.INVALID), (["x" * 2_000_000], Code.TOO_LARGE)]
)
def test_choices_that_are_none(choices, code):
    with pytest.raises(ConstraintError) as caught:
        compile_choice(choices, Nfa())
    assert caught.value.code is code
