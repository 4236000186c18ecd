"""The automaton over bytes: what each kind of node means, worked out by hand."""

from __future__ import annotations

import pytest

from imp.constrain.automaton import accepts
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.nfa import UNBOUNDED, Nfa


def a_run(nfa: Nfa, low: int, high: int, letter: bytes, after: int) -> int:
    return nfa.repeat(low, high, after, lambda again: nfa.literal(letter, again))


def test_a_literal_accepts_itself_alone():
    nfa = Nfa()
    start = nfa.literal(b"abc", nfa.ret)
    assert accepts(nfa, start, b"abc")
    for other in (b"", b"ab", b"abcd", b"abd", b"ABC"):
        assert not accepts(nfa, start, other)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (1, 1), (2, 5), (0, UNBOUNDED), (3, UNBOUNDED)])
def test_a_counted_loop_counts(low: int, high: int):
    nfa = Nfa()
    start = a_run(nfa, low, high, b"ab", nfa.ret)
    for rounds in range(9):
        assert accepts(nfa, start, b"ab" * rounds) == (low <= rounds and (high == UNBOUNDED or rounds <= high))


def test_a_loop_after_a_loop_counts_from_zero():
    nfa = Nfa()
    start = a_run(nfa, 2, 3, b"a", a_run(nfa, 3, 4, b"b", nfa.ret))
    accepted = [(a, b) for a in range(6) for b in range(6) if accepts(nfa, start, b"a" * a + b"b" * b)]
    assert accepted == [(2, 3), (2, 4), (3, 3), (3, 4)]


def test_a_call_has_a_counter_of_its_own():
    nfa = Nfa()
    inner = a_run(nfa, 2, 2, b"a", nfa.ret)
    start = nfa.repeat(2, 3, nfa.ret, lambda again: nfa.call(inner, nfa.literal(b";", again)))
    assert [n for n in range(6) if accepts(nfa, start, b"aa;" * n)] == [2, 3]
    assert not accepts(nfa, start, b"aa;a;")


def test_calls_nest():
    nfa = Nfa()
    start = nfa.eps(nfa.ret)
    nfa.link(start, nfa.literal(b"(", nfa.call(start, nfa.literal(b")", nfa.call(start, nfa.ret)))))
    for text, good in ((b"", True), (b"()", True), (b"(()())()", True), (b"(()", False), (b"())", False)):
        assert accepts(nfa, start, text) == good
    assert accepts(nfa, start, b"(" * 5000 + b")" * 5000)


def test_what_is_lazy_is_written_when_it_is_reached():
    nfa = Nfa()
    reached = []

    def lower() -> int:
        reached.append(True)
        return nfa.literal(b"b", nfa.ret)

    start = nfa.literal(b"a", nfa.lazy(lower))
    assert not accepts(nfa, start, b"") and not reached
    assert accepts(nfa, start, b"ab") and accepts(nfa, start, b"ab")
    assert reached == [True]


def test_loops_without_a_byte_end():
    nfa = Nfa()
    start = nfa.eps()
    nfa.link(start, nfa.eps(start, nfa.literal(b"a", nfa.ret)))
    assert accepts(nfa, start, b"a") and not accepts(nfa, start, b"")


def test_a_rule_that_calls_itself_before_any_text_is_refused():
    nfa = Nfa()
    start = nfa.eps(nfa.literal(b"a", nfa.ret))
    nfa.link(start, nfa.call(start, nfa.literal(b"b", nfa.ret)))
    with pytest.raises(ConstraintError) as refused:
        accepts(nfa, start, b"ab")
    assert refused.value.code is Code.TOO_LARGE
