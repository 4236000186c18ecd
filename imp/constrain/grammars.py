"""Grammars that were made, kept for the next request with the same constraint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from .automaton import Grammar


class GrammarCache:
    """By key, least recently used dropped first when all together hold more than size_bytes. May be used by all
    threads. What is dropped lives on for the requests that have it, and gives its masks back after the last one.

    A key says everything the grammar was made of."""

    def __init__(self, size_bytes: int) -> None:
        self._limit_bytes, self._held_bytes = size_bytes, 0
        self._grammars: OrderedDict[Hashable, Grammar] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}  # as last seen; the sum is _held_bytes
        self._used = set[Hashable]()  # since then: only these can have grown
        self._lock = Lock()

    def get(self, key: Hashable) -> Grammar | None:
        with self._lock:
            grammar = self._grammars.get(key)
            if grammar is not None:
                self._grammars.move_to_end(key)
                self._used.add(key)
            return grammar

    def put(self, key: Hashable, grammar: Grammar) -> Grammar:
        """Keep `grammar`; the one to use, which is another if two workers made it at once."""
        with self._lock:
            kept = self._grammars.setdefault(key, grammar)
            self._grammars.move_to_end(key)
            self._used.add(key)
            self._measure()
            self._used.add(key)  # now whoever asked for it begins
            while self._held_bytes > self._limit_bytes and len(self._grammars) > 1:
                dropped, _ = self._grammars.popitem(last=False)
                self._held_bytes -= self._sizes.pop(dropped)
                self._used.discard(dropped)
            return kept

    def _measure(self) -> None:
        """See how large those are that may have grown."""
        for key in self._used:
            size = self._grammars[key].bytes_used
            self._held_bytes += size - self._sizes.get(key, 0)
            self._sizes[key] = size
        self._used = {key for key in self._used if self._grammars[key].in_use}
