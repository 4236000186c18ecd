"""One sequence in its grammar: accept, roll back, fork, forced tokens, batches, errors that latch."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from imp.constrain.automaton import Grammar, Limits
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.matcher import HISTORY, Matcher, step_together
from imp.constrain.nfa import Nfa, special
from imp.constrain.vocab import VocabTables

from .languages import LANGUAGES, string


@pytest.fixture(scope="session")
def build(gpt2, gpt2_tables: VocabTables, code_folder: Path):
    def grammar(make, **limits) -> Grammar:
        nfa = Nfa()
        encode = lambda data: gpt2.encode(data.decode("utf-8", "surrogateescape"), add_special=False)  # noqa: E731
        return Grammar(nfa, make(nfa), gpt2_tables, Limits(**{"seconds": 60, **limits}), code_folder, encode)

    return grammar


def allowed(matcher: Matcher) -> list[int]:
    """Tokens of `fill_mask`, by what its bits stand for."""
    tables = matcher.grammar.tables
    words = np.full(tables.words, 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(words)
    bits = [bit for bit in range(len(words) * 32) if words[bit // 32] >> np.uint32(bit % 32) & 1]
    tokens = [int(tables.bit_tokens[bit]) for bit in bits]
    return sorted(tokens + [token for token, bit in tables.bit_aliases.tolist() if bit in bits])


def write(matcher: Matcher, gpt2, text: str) -> None:
    for token in gpt2.encode(text, add_special=False):
        assert matcher.accept(token), (text, token)


def test_a_text_is_accepted_and_ends(gpt2, build):
    matcher = build(lambda nfa: string(nfa, nfa.ret)).start()
    end = next(iter(gpt2.eos_ids))
    assert not matcher.accept(end)
    write(matcher, gpt2, '"A \\u00e9 and a \\"quote\\""')
    assert matcher.done and allowed(matcher) == sorted(gpt2.eos_ids)
    assert not matcher.accept(gpt2.encode("a")[0])
    assert matcher.accept(end) and matcher.accept(end), "what follows the end is the end"
    assert matcher.done and allowed(matcher) == sorted(gpt2.eos_ids)


def test_where_more_may_follow_it_is_not_done(gpt2, build):
    matcher = build(LANGUAGES["numbers"]).start()
    write(matcher, gpt2, "[1, 2")
    assert not matcher.done
    write(matcher, gpt2, "5]")
    assert matcher.done


def test_the_mask_and_accept_agree(gpt2, build):
    matcher = build(LANGUAGES["object"]).start()
    write(matcher, gpt2, '{"name": "ab')
    mask = set(allowed(matcher))
    for token in range(0, len(gpt2.byte_table), 7):
        assert matcher.fork().accept(token) == (token in mask)


@pytest.mark.parametrize("name", ["value", "list of lists", "recursive"])
def test_random_walks_with_rollback_and_fork_keep_their_states(name: str, build):
    """Against the list of what was accepted: a state is a function of it."""
    grammar, draw = build(LANGUAGES[name]), random.Random(name)
    matchers: list[tuple[Matcher, list[int]]] = [(grammar.start(), [])]
    for _ in range(120):
        at = draw.randrange(len(matchers))
        matcher, history = matchers[at]
        move = draw.random()
        if move < 0.25 and history:
            count = draw.randrange(min(len(history), 5) + 1)
            matcher.rollback(count)
            del history[len(history) - count :]
        elif move < 0.35 and len(matchers) < 6:
            matchers.append((matcher.fork(), history.copy()))
        else:
            bits = np.flatnonzero(grammar.tables.token_bits(matcher.row()))
            token = int(draw.choice(bits))
            assert matcher.accept(token)
            history.append(token)
        state = grammar.first
        for token in history:
            state = grammar.advance(state, token)
        assert matcher.state == state


def test_history_is_bounded_and_deep_enough(gpt2, build):
    matcher = build(LANGUAGES["any text"]).start()
    token = gpt2.encode("a")[0]
    for _ in range(3 * HISTORY):
        assert matcher.accept(token)
    matcher.rollback(HISTORY)
    assert len(matcher.states) <= 2 * HISTORY


def test_eviction_in_the_middle_of_texts_changes_nothing(gpt2, build):
    """A budget that a few hundred states fill, and strings whose bound makes every character a state."""
    small = build(lambda nfa: string(nfa, nfa.ret, 0, 4000), size_bytes=3 << 20)
    large = build(lambda nfa: string(nfa, nfa.ret, 0, 4000))
    pair = small.start(), large.start()
    for matcher in pair:
        write(matcher, gpt2, '"')
    word = gpt2.encode(" word", add_special=False)[0]
    for step in range(700):
        assert all(matcher.accept(word) for matcher in pair)
        if step % 50 == 0:
            assert (small.mask(pair[0].state) == large.mask(pair[1].state)).all()
    assert small.rebuilt > 0 and large.rebuilt == 0
    assert small.bytes_used < 8 << 20
    pair[0].rollback(10)
    write(pair[0], gpt2, '"')
    assert pair[0].done


def test_forced_text_is_proposed_as_the_tokenizer_cuts_it(gpt2, build):
    def make(nfa: Nfa) -> int:
        two = nfa.eps(nfa.literal(b'"x"}', nfa.ret), nfa.literal(b'"y"}', nfa.ret))
        return nfa.literal(b'{"description": "a fixed text", "kind": ', two)

    matcher = build(make).start()
    proposed = matcher.forced()
    text = b'{"description": "a fixed text", "kind": "'
    whole = gpt2.encode(text.decode(), add_special=False)
    assert len(proposed) >= 8 and whole[: len(proposed)] == proposed
    rest = text[len(b"".join(gpt2.byte_table[token] for token in proposed)) :]
    assert rest, "the end is open: a token may go on into what is chosen"
    tail = next(token for token in whole[len(proposed) :])
    assert any(data.startswith(rest) and data != rest for data in gpt2.byte_table) or not tail
    for token in proposed:
        assert matcher.accept(token)
    assert not matcher.done


def test_nothing_is_proposed_where_there_is_a_choice_or_another_cut(gpt2, build):
    matcher = build(LANGUAGES["numbers"]).start()
    write(matcher, gpt2, "[1")
    assert matcher.forced() == []
    matcher = build(lambda nfa: nfa.literal(b" wonderful", nfa.ret)).start()
    assert matcher.accept(gpt2.encode(" w", add_special=False)[0])
    assert matcher.forced() == []  # the tokenizer makes one token of it all


def test_a_control_token_is_proposed_as_itself(gpt2, code_folder: Path):
    tables = VocabTables.build(gpt2.byte_table, [1000, *gpt2.special_ids], gpt2.eos_ids, code_folder)
    nfa = Nfa()
    encode = lambda data: gpt2.encode(data.decode(), add_special=False)  # noqa: E731
    start = nfa.literal(special(1000), nfa.literal(b"a", nfa.ret))
    grammar = Grammar(nfa, start, tables, Limits(seconds=60), code_folder, encode)
    matcher = grammar.start()
    assert matcher.forced() == [1000]
    assert matcher.accept(1000)


def test_a_batch_is_its_members_one_by_one(gpt2, build):
    draw = random.Random(9)
    grammars = [build(LANGUAGES[name]) for name in ("value", "object", "list of lists", "ambiguous")]
    together = [grammar.start() for grammar in grammars for _ in range(3)]
    alone = [matcher.fork() for matcher in together]
    tokens = [-1] * len(together)
    for _ in range(12):
        rows = step_together(together, tokens)
        for i, (one, other) in enumerate(zip(together, alone, strict=True)):
            if tokens[i] >= 0:
                assert other.accept(tokens[i]) == (rows[i] >= 0)
            assert one.states == other.states
            if rows[i] >= 0:
                assert rows[i] == other.row()
        tokens = []
        for matcher in together:
            bits = np.flatnonzero(matcher.grammar.tables.token_bits(matcher.row()))
            tokens.append(int(draw.choice(bits)) if draw.random() < 0.9 else draw.randrange(50_000))
    assert step_together([], []).size == 0


def test_errors_latch(gpt2, build):
    """Lowering that fails long after the request was admitted."""

    def lower() -> int:
        raise ConstraintError(Code.TOO_LARGE, "#", "no room")

    matcher = build(lambda nfa: nfa.literal(b"ab", nfa.lazy(lower))).start()
    assert matcher.accept(gpt2.byte_table.index(b"a"))
    assert not matcher.accept(gpt2.byte_table.index(b"b"))
    assert matcher.error == "#: no room" and matcher.done
    assert allowed(matcher) == [] and matcher.forced() == [] and matcher.row() is None
    assert not matcher.accept(gpt2.byte_table.index(b"b"))
    assert step_together([matcher, matcher.fork()], [5, -1]).tolist() == [-1, -1]


def test_lowering_happens_while_a_text_is_written(gpt2, build):
    matcher = build(lambda nfa: nfa.literal(b"ab", nfa.lazy(lambda: string(nfa, nfa.ret)))).start()
    write(matcher, gpt2, 'ab"cd"')
    assert matcher.done


def test_what_is_lazy_can_be_lowered_before(gpt2, build):
    lowered = []

    def lower(nfa: Nfa, depth: int) -> int:
        lowered.append(depth)
        return nfa.literal(b"a", nfa.lazy(lambda: lower(nfa, depth + 1))) if depth < 5 else nfa.ret

    grammar = build(lambda nfa: nfa.literal(b"b", nfa.lazy(lambda: lower(nfa, 0))))
    assert lowered == []
    grammar.prepare(0)
    assert lowered == []
    grammar.prepare(60)
    assert lowered == list(range(6))
    matcher = grammar.start()
    write(matcher, gpt2, "baaaaa")
    assert matcher.done and lowered == list(range(6))


def test_rows_go_back_to_the_pool(gpt2_tables: VocabTables, build):
    pool = gpt2_tables.pool
    grammar = build(LANGUAGES["value"])
    grammar.row(grammar.first)
    held = list(grammar._rows)
    assert held
    del grammar
    assert set(held) <= set(pool._returned)
    assert not any(pool[row].any() for row in pool.take(len(pool._free) + len(held))), "rows begin as zeros"
