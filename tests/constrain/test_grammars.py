"""The cache of grammars: what is used stays, what is not goes when there is no room."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from imp.constrain import layout
from imp.constrain.automaton import Grammar, Limits
from imp.constrain.grammars import GrammarCache
from imp.constrain.nfa import Nfa


@pytest.fixture
def make(code_folder: Path):
    def grammar(text: bytes) -> Grammar:
        nfa = Nfa()
        return Grammar(nfa, nfa.literal(text, nfa.ret), None, Limits(seconds=60), code_folder)

    return grammar


def test_a_grammar_is_found_by_its_key(make):
    cache, grammar = GrammarCache(1 << 30), make(b"a")
    assert cache.get(b"a") is None
    assert cache.put(b"a", grammar) is grammar is cache.get(b"a")
    assert cache.put(b"a", make(b"a")) is grammar, "the first of two that were made at once"


def test_the_least_recently_used_goes_first(make):
    grammars = {key: make(key) for key in (b"a", b"b", b"c")}
    cache = GrammarCache(2 * grammars[b"a"].bytes_used)
    cache.put(b"a", grammars[b"a"])
    cache.put(b"b", grammars[b"b"])
    assert cache.get(b"a") is grammars[b"a"]
    cache.put(b"c", grammars[b"c"])
    assert cache.get(b"b") is None
    assert cache.get(b"a") is grammars[b"a"] and cache.get(b"c") is grammars[b"c"]


def test_what_grew_while_it_was_used_is_seen(make):
    """Sizes are looked at when something is added: of what requests stand in, and of what was used since."""
    grammars = {key: make(key) for key in (b"a", b"b", b"c")}
    size = grammars[b"a"].bytes_used
    cache = GrammarCache(4 * size)
    cache.put(b"a", grammars[b"a"])
    matcher = grammars[b"a"].start()
    cache.put(b"b", grammars[b"b"])
    while grammars[b"a"].bytes_used < 4 * size:
        grammars[b"a"]._grow(layout.CONFIGS)
    assert cache.get(b"b") is grammars[b"b"]
    cache.put(b"c", grammars[b"c"])
    assert cache.get(b"a") is None and cache.get(b"b") is grammars[b"b"] and cache.get(b"c") is grammars[b"c"]
    del matcher


def test_the_last_one_stays_however_large_and_requests_keep_theirs(make):
    cache, grammar = GrammarCache(1), make(b"a")
    cache.put(b"a", grammar)
    assert cache.get(b"a") is grammar
    matcher, dropped = grammar.start(), weakref.ref(grammar)
    del grammar
    cache.put(b"b", make(b"b"))
    assert cache.get(b"a") is None and dropped() is matcher.grammar
    del matcher
    gc.collect()
    assert dropped() is None
