"""Masks against brute force: every token of a published vocabulary tried, in states all over hand-written languages."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from imp.constrain import automaton, layout
from imp.constrain.automaton import Grammar, Limits
from imp.constrain.nfa import Nfa, special
from imp.constrain.schema import compile_schema
from imp.constrain.vocab import VocabTables

from .languages import LANGUAGES, one_of, quoted, string


def brute_force(grammar: Grammar, state: int) -> np.ndarray:
    """bool [tokens]: which tokens the automaton survives, and those that end where the text may end."""
    return np.array([grammar.advance(state, token) != 0 for token in range(len(grammar.tables.rank))])


def check(grammar: Grammar, state: int) -> np.ndarray:
    expected = brute_force(grammar, state)
    given = grammar.tables.token_bits(grammar.row(state))
    wrong = np.flatnonzero(given != expected)
    assert not wrong.size, [(grammar.tables.bytes_of(token), bool(given[token])) for token in wrong[:5]]
    return np.flatnonzero(expected)


def walk(grammar: Grammar, draw: random.Random, steps: int) -> int:
    """Check masks along one random text; how many states."""
    state = grammar.first
    for step in range(steps):
        allowed = check(grammar, state)
        assert allowed.size, "a dead end"
        following = grammar.advance(state, int(draw.choice(allowed)))
        if following == 1:
            return step + 1
        state = following
    return steps


@pytest.mark.parametrize("name", LANGUAGES)
def test_masks_are_what_brute_force_finds(name: str, gpt2_tables: VocabTables, code_folder: Path):
    nfa, draw = Nfa(), random.Random(name)
    grammar = Grammar(nfa, LANGUAGES[name](nfa), gpt2_tables, Limits(seconds=60), code_folder)
    assert sum(walk(grammar, draw, 5) for _ in range(2)) >= 2


def after(grammar: Grammar, text: bytes) -> int:
    state = grammar.advance_bytes(grammar.first, text)
    assert state
    return state


@pytest.mark.parametrize(
    ("name", "texts"),
    {
        "value": [b"", b'"', b'"a\\', b'"\\ud83d', b'"\xc3', b'{"a": [1, "', b"[[[", b"-", b"12", b'{"k"', b"[\n "],
        "object": [b'{"name": "', b'{"name": "abcdefgh', b'{"name": "abcdefghij', b'{"name": "a", "id": "00f'],
        "list of lists": [b'[["', b'[["a", "', b'[["a"], ["', b'[["a", "b", "c", "d"], ["', b'[["abcdefghijkl'],
        "exact string": [b'"', b'"1234', b'"12345', b'"12345", "', b'"12345", "' + b"x" * 38],
        "at least": [b'"', b'"123456', b'"1234567', b'"12345678'],
        "printable, many": [b'"', b'""', b'"a', b'"' + b"z" * 69, b'"' + b"z" * 30, b'"' + b'"' * 60],
        "printable, few": [b'"', b'"ab', b'"' + b"0" * 19],
        "runs": [b"", b"abcd", b"abcdefg", b"abcdefgh", b"1", b"1abcd", b"1abcdef", b"2ab", b"2abcdef", b"3", b"3abcdef", b"4", b"4abc", b"4abcdefgh", b"5", b"5abcdefg"],
        "raw text": [b"<parameter=a>\n", b"<parameter=a>\n\n", b"<parameter=a>\nx\n</para", b"<parameter=a>\n\xe2\x82"],
        "one or more": [b"a", b"a-", b"a-b"],
        "ambiguous": [b"", b"the", b"the c", b"\n"],
        "any bytes": [b"\xff\x00", b"." * 9],
    }.items(),
)
def test_masks_inside_of_tokens(name: str, texts: list[bytes], gpt2_tables: VocabTables, code_folder: Path):
    """States that lie within a token's bytes, or at a bound of a counter."""
    nfa = Nfa()
    grammar = Grammar(nfa, LANGUAGES[name](nfa), gpt2_tables, Limits(seconds=60), code_folder)
    for text in texts:
        check(grammar, after(grammar, text))


def test_control_tokens_only_where_they_are_named(gpt2, gpt2_tables: VocabTables, code_folder: Path):
    """GPT-2 has one control token, which ends a text: another is made of token 1000."""
    tables = VocabTables.build(gpt2.byte_table, [1000, *gpt2.special_ids], gpt2.eos_ids, code_folder)
    nfa = Nfa()
    start = nfa.repeat(0, 2, nfa.literal(special(1000), nfa.ret), lambda again: nfa.byte([(0, 127, again)]))
    grammar = Grammar(nfa, start, tables, Limits(seconds=60), code_folder)
    assert 1000 in check(grammar, grammar.first)
    state = grammar.advance(grammar.first, 1000)
    assert set(check(grammar, state)) == set(gpt2.eos_ids)
    wide = Nfa()
    anything = wide.repeat(0, -1, wide.ret, lambda again: wide.byte([(0, 254, again)]))
    grammar = Grammar(wide, anything, tables, Limits(seconds=60), code_folder)
    allowed = set(check(grammar, grammar.first))
    assert set(range(len(tables.rank))) - allowed == {1000, gpt2.byte_table.index(b"\xff")}


def test_tokens_of_equal_bytes_share_their_bit_and_empty_ones_have_none(code_folder: Path):
    tokens = [b"", b"a", b"b", b"a", b"ab", b"<end>", b"<other end>"]
    tables = VocabTables.build(tokens, [5, 6], [5, 6], code_folder)
    nfa = Nfa()
    grammar = Grammar(nfa, nfa.eps(nfa.ret, nfa.literal(b"ab", nfa.ret)), tables, Limits(seconds=60), code_folder)
    assert tables.token_bits(grammar.row(grammar.first)).tolist() == [False, True, False, True, True, True, True]
    state = grammar.advance(grammar.first, 3)
    assert tables.token_bits(grammar.row(state)).tolist() == [False, False, True, False, False, False, False]
    end = grammar.advance(grammar.first, 4)
    assert grammar.advance(end, 6) == grammar.advance(grammar.first, 5) == 1
    assert tables.token_bits(grammar.row(1)).tolist() == [False] * 5 + [True] * 2
    assert grammar.advance(state, 5) == grammar.advance(end, 1) == grammar.advance(1, 2) == 0
    assert grammar.advance(state, 7) == grammar.advance(state, -1) == grammar.advance(state, 0) == 0


@pytest.mark.parametrize("name", ["ambiguous", "list of lists", "object", "printable, many", "runs", "value"])
def test_walks_that_pause_find_the_same(name: str, gpt2_tables: VocabTables, code_folder: Path, monkeypatch):
    """What takes long is begun with the interpreter's lock held, goes on without it, and comes back again and again so
    that others get on: here after every few nodes."""
    nfa, draw = Nfa(), random.Random(name)
    grammar = Grammar(nfa, LANGUAGES[name](nfa), gpt2_tables, Limits(seconds=60), code_folder)
    provide, pauses = grammar.provide, []
    monkeypatch.setattr(automaton, "UNSHARED", 3)
    monkeypatch.setattr(automaton, "AT_ONCE", 7)
    monkeypatch.setattr(grammar, "provide", lambda refusal: (pauses.append(refusal == layout.PAUSED), provide(refusal)))
    for _ in range(3):
        walk(grammar, draw, 4)
    assert any(pauses)


def test_rows_of_strings_are_shared(gpt2_tables: VocabTables, code_folder: Path):
    """However long the string and its bound: what follows, and how near the bound is, is all that matters."""
    nfa = Nfa()
    grammar = Grammar(nfa, string(nfa, nfa.ret, 0, 50_000), gpt2_tables, Limits(seconds=60), code_folder)
    rows = {grammar.row(after(grammar, b'"' + b"a" * count)) for count in range(0, 2000, 100)}
    assert len(rows) == 1


def test_rows_within_a_frame_serve_every_stack(gpt2_tables: VocabTables, code_folder: Path):
    """The same rule from four places that go on alike: four states, one walk of its inside."""
    nfa = Nfa()
    word = quoted(nfa, b"abc", 1, 9, nfa.ret)
    places = [nfa.literal(bytes([65 + i]), nfa.call(word, nfa.literal(bytes([48 + i]), nfa.ret))) for i in range(4)]
    grammar = Grammar(nfa, nfa.eps(*places), gpt2_tables, Limits(seconds=60), code_folder)
    for place in (b"A", b"B", b"C", b"D"):
        check(grammar, after(grammar, place + b'"a'))


def test_masks_survive_growth_and_eviction(gpt2_tables: VocabTables, code_folder: Path):
    """A budget of nothing: everything but the states in use is dropped before every step."""
    nfa, draw = Nfa(), random.Random(3)
    grammar = Grammar(nfa, LANGUAGES["list of lists"](nfa), gpt2_tables, Limits(seconds=60, size_bytes=0), code_folder)
    grammar._budget = 0
    matchers = [grammar.start() for _ in range(3)]
    for _ in range(6):
        for matcher in matchers:
            allowed = check(grammar, matcher.state)
            grammar._budget = 0
            assert matcher.accept(int(draw.choice(allowed)))
    assert grammar.rebuilt >= 18
    for matcher in matchers:
        matcher.rollback(6)
        assert matcher.state == grammar.first


def test_every_first_byte_of_a_class_with_and_without_a_row(gpt2_tables: VocabTables, code_folder: Path):
    """Classes around the width from which they get rows of the vocabulary, each at several counts."""
    for width in (10, 23, 24, 25, 60, 95):
        nfa = Nfa()
        chars = bytes(range(32, 32 + width))
        start = nfa.repeat(
            2, 33, one_of(nfa, b"~\n", nfa.ret), lambda again, chars=chars, nfa=nfa: one_of(nfa, chars, again)
        )
        grammar = Grammar(nfa, start, gpt2_tables, Limits(seconds=60), code_folder)
        for count in (0, 1, 2, 30, 33):
            check(grammar, after(grammar, b"!" * count))


def test_masks_beside_declared_names(gpt2_tables: VocabTables, code_folder: Path):
    """At the start of a name and within one: the masks of any other name, but where declared ones go their own way."""
    values = {"name": {"type": "integer"}, "names": {"type": "null"}, "né": {"type": "null"}, 'q"': {"type": "null"}}
    nfa = Nfa()
    start = compile_schema({"type": "object", "properties": values, "additionalProperties": {"type": "string"}}, nfa)
    grammar = Grammar(nfa, start, gpt2_tables, Limits(seconds=60), code_folder)
    for text in ('{"', '{"n', '{"nam', '{"name', '{"names', '{"né', '{"q', '{"q\\', '{"other', '{"a": "b", "'):
        check(grammar, after(grammar, text.encode()))


def test_counted_classes_that_may_not_end_yet(gpt2_tables: VocabTables, code_folder: Path):
    """Hexadecimal digits that have to be 36: no token reaches the end from the beginning, some do from near it."""
    nfa = Nfa()
    grammar = Grammar(
        nfa, quoted(nfa, b"0123456789abcdef-", 36, 36, nfa.ret), gpt2_tables, Limits(seconds=60), code_folder
    )
    for count in (0, 1, 20, 33, 35, 36):
        check(grammar, after(grammar, b'"' + b"a" * count))


def test_counted_classes_that_go_on_behind_their_frame(gpt2_tables: VocabTables, code_folder: Path):
    """Eight digits and four, with or without a dash between: a token of digits may end the ones and begin the others."""
    nfa = Nfa()
    start = compile_schema({"type": "string", "pattern": "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}$"}, nfa)
    grammar = Grammar(nfa, start, gpt2_tables, Limits(seconds=60), code_folder)
    allowed = [check(grammar, after(grammar, b'"' + b"a" * count)) for count in range(13)]
    assert any(grammar.tables.bytes_of(token) == b"face" for token in allowed[6])


def test_what_is_prepared_aside_changes_no_mask(gpt2_tables: VocabTables, code_folder: Path):
    """The grammar is used at once, while another thread still lowers it: its masks are those of one that is not."""
    schema = {"type": "object", "properties": {f"k{i}": {"type": "object", "properties": {"x": {}}} for i in range(40)}}
    masks = []
    for aside in (False, True):
        nfa = Nfa()
        grammar = Grammar(nfa, compile_schema(schema, nfa), gpt2_tables, Limits(seconds=60), code_folder)
        if aside:
            grammar.prepare_aside(5)
        matcher, found = grammar.start(), []
        for text in (b'{"', b'k7": {', b'"x": [', b"1, {}]}", b', "'):
            matcher.states.append(grammar.advance_bytes(matcher.state, text))
            found.append(grammar.mask(matcher.state).copy())
        masks.append(np.array(found))
    assert (masks[0] == masks[1]).all()
