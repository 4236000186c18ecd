"""The automaton over bytes: what each kind of node means, worked out by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from imp.constrain.automaton import DeadEnd, Grammar, Limits, accepts
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.nfa import UNBOUNDED, Nfa
from imp.constrain.reference import Reference

from . import naive
from .languages import LANGUAGES


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


# ---- the fast form


def grammar_of(nfa: Nfa, start: int, code_folder: Path, **limits: float) -> Grammar:
    return Grammar(nfa, start, None, Limits(**{"seconds": 60.0, **limits}), code_folder)


def test_a_state_is_a_number_and_walking_it_is_what_the_automaton_means(code_folder: Path):
    for name, build in LANGUAGES.items():
        nfa = Nfa()
        start = build(nfa)
        grammar, reference, draw = grammar_of(nfa, start, code_folder), Reference(nfa, start), random.Random(name)
        for _ in range(8):
            state, expected, text = grammar.first, reference.first, b""
            for _ in range(60):
                likely = {edge[0] for config in expected if config for edge in nfa.nodes[config[0]].edges}
                byte = bytes([draw.choice(sorted(likely))]) if likely and draw.random() < 0.97 else draw.randbytes(1)
                state, expected, text = (
                    grammar.advance_bytes(state, byte),
                    reference.advance(expected, byte),
                    text + byte,
                )
                assert bool(expected) == (state != 0), (name, text)
                if not expected:
                    break
                assert grammar.accepting(state) == (None in expected), (name, text)


@pytest.mark.parametrize("seed", range(6))
def test_random_automata_do_what_the_naive_way_does(seed: int, code_folder: Path):
    draw, compared = random.Random(seed), 0
    for _ in range(60):
        nfa, start = naive.random_nfa(draw)
        try:
            grammar = grammar_of(nfa, start, code_folder)
        except ConstraintError as error:
            assert error.code is Code.TOO_LARGE
            with pytest.raises(naive.TooMany):
                naive.begin(nfa, start)
            continue
        for _ in range(6):
            compared += walk_both(draw, nfa, start, grammar)
    assert compared > 500


def walk_both(draw: random.Random, nfa: Nfa, start: int, grammar: Grammar) -> int:
    """How many steps were compared before the text died or the judge gave up."""
    state = grammar.first
    try:
        configs = naive.begin(nfa, start)
        for step in range(12):
            byte = draw.choice([b"a", b"a", b"b", b"c", b"d", b"\x80", b"\xc3"])
            state, configs = grammar.advance_bytes(state, byte), naive.feed(nfa, configs, byte)
            assert (state != 0) == naive.alive(nfa, configs)
            assert grammar.accepting(state) == naive.ends(nfa, configs)
            if state == 0:
                return step + 1
    except (naive.TooMany, DeadEnd):
        return 0
    return 12


def test_ambiguity_does_not_multiply_configurations(code_folder: Path):
    """Two closings for every opening: 2 ** 300 stacks, were they told apart."""
    nfa = Nfa()
    grammar = grammar_of(nfa, LANGUAGES["recursive"](nfa), code_folder)
    state = grammar.advance_bytes(grammar.first, b"a" * 300 + b"b" + b"xy yx" * 60)
    assert grammar.accepting(state)
    assert grammar.bytes_used < 8 << 20


def test_forced_bytes_end_where_there_is_a_choice(code_folder: Path):
    nfa = Nfa()
    start = nfa.literal(b"abc", nfa.eps(nfa.literal(b"de", nfa.ret), nfa.literal(b"df", nfa.ret)))
    grammar = grammar_of(nfa, start, code_folder)
    assert grammar.forced_bytes(grammar.first, 100) == b"abcd"
    assert grammar.forced_bytes(grammar.first, 2) == b"ab"
    last = grammar.advance_bytes(grammar.first, b"abcde")
    assert grammar.forced_bytes(last, 100) == b"" and grammar.finished(last)


def test_lowering_that_is_refused_when_the_grammar_is_made_is_the_refusal(code_folder: Path):
    def lower() -> int:
        raise ConstraintError(Code.UNSATISFIABLE, "#/a", "no value")

    nfa = Nfa()
    with pytest.raises(ConstraintError, match="#/a: no value"):
        grammar_of(nfa, nfa.lazy(lower), code_folder)


def test_budgets_are_refused_with_too_large(code_folder: Path):
    nfa = Nfa()
    start = nfa.literal(b"a" * 500, nfa.ret)
    with pytest.raises(ConstraintError, match="400 nodes") as refused:
        grammar_of(nfa, start, code_folder, nodes=400)
    assert refused.value.code is Code.TOO_LARGE

    def endless(nfa: Nfa) -> int:
        return nfa.lazy(lambda: endless(nfa))

    with pytest.raises(ConstraintError) as refused:
        grammar_of(nfa, endless(nfa), code_folder, seconds=0.05)
    assert refused.value.code is Code.TOO_LARGE


def test_nodes_in_use_get_no_more_edges(code_folder: Path):
    nfa = Nfa()
    start = nfa.eps(nfa.literal(b"a", nfa.ret))
    grammar_of(nfa, start, code_folder)
    with pytest.raises(AssertionError):
        nfa.link(start, nfa.literal(b"b", nfa.ret))
