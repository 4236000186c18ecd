"""Grammars that were made, kept for the next request with the same constraint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from .automaton import Grammar


class _Kept:
    __slots__ = ("grammar", "size_bytes")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.size_bytes = 0  # as last seen


class GrammarCache:
    """By key, least recently used dropped first when all together hold more than size_bytes. May be used by all
    threads. What is dropped lives on for the requests that have it, and gives its masks back after the last one.

    A key says everything the grammar was made of."""

    def __init__(self, size_bytes: int) -> None:
        self._limit_bytes, self._held_bytes = size_bytes, 0
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._used = set[_Kept]()  # since sizes were looked at: only these can have grown
        self._lock = Lock()

    def get(self, key: Hashable) -> Grammar | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            self._used.add(kept)
            return kept.grammar

    def put(self, key: Hashable, grammar: Grammar) -> Grammar:
        """Keep `grammar`; the one to use, which is another if two workers made it at once."""
        with self._lock:
            kept = self._kept.setdefault(key, new := _Kept(grammar))
            if kept is not new:
                self._kept.move_to_end(key)
            self._used.add(kept)
            self._measure()
            self._used.add(kept)  # now whoever asked for it begins
            while self._held_bytes > self._limit_bytes and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._held_bytes -= dropped.size_bytes
                self._used.discard(dropped)
            return kept.grammar

    def _measure(self) -> None:
        """See how large those are that may have grown."""
        for kept in self._used:
            size = kept.grammar.bytes_used
            self._held_bytes += size - kept.size_bytes
            kept.size_bytes = size
        self._used = {kept for kept in self._used if kept.grammar.in_use}
