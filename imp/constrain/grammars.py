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
        self._size_bytes = size_bytes
        self._grammars: OrderedDict[Hashable, Grammar] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Grammar | None:
        with self._lock:
            grammar = self._grammars.get(key)
            if grammar is not None:
                self._grammars.move_to_end(key)
            return grammar

    def put(self, key: Hashable, grammar: Grammar) -> Grammar:
        """Keep `grammar`; the one to use, which is another if two workers made it at once."""
        with self._lock:
            kept = self._grammars.setdefault(key, grammar)
            self._grammars.move_to_end(key)
            held = sum(each.bytes_used for each in self._grammars.values())
            while held > self._size_bytes and len(self._grammars) > 1:
                _, dropped = self._grammars.popitem(last=False)
                held -= dropped.bytes_used
            return kept
