"""Tokens that must not come because a text would then go on to a marker: reasoning that may not begin once more."""

from __future__ import annotations

import numpy as np

from .free import Symbols, symbols_of
from .vocab import VocabTables


class Bar:
    """Keeps a marker from being written, at the place where it can be told from others: behind its `head`.

    Shared by all requests of a model: immutable.
    """

    def __init__(self, tables: VocabTables, head: bytes, marker: bytes) -> None:
        """head: the beginning of the marker that others have too; b"": they have nothing in common."""
        self._marker, self._head = symbols_of(marker), len(symbols_of(head))
        self._borders = _borders(self._marker)
        self.longest = len(marker)  # bytes of the end of a text that matter
        barred = [np.zeros(32 * tables.words, bool) for _ in self._marker]
        firsts = {symbol[0] for symbol in self._marker}
        for token in range(len(tables.rank)):
            data = tables.bytes_of(token)
            if (data and data[0] in firsts) or marker[:1] in data:
                text = symbols_of(data)
                for place, bits in enumerate(barred):
                    bits[tables.rank[token]] |= self._reaches(place, text)
        self.masks = [np.packbits(bits, bitorder="little").view(np.uint32) if bits.any() else None for bits in barred]

    def mask(self, tail: bytes) -> np.ndarray | None:
        """uint32 [words], the tokens that must not come behind this text; None: all may."""
        place = 0
        for symbol in symbols_of(tail):
            place = self._next(place, symbol)
            if place == len(self._marker):  # it is there already
                place = 0
        return self.masks[place]

    def _reaches(self, place: int, text: Symbols) -> bool:
        for symbol in text:
            place = self._next(place, symbol)
            if place > self._head:
                return True
        return False

    def _next(self, place: int, symbol: bytes) -> int:
        """How much of the marker the text ends with (Knuth, Morris and Pratt 1977)."""
        while place and self._marker[place] != symbol:
            place = self._borders[place]
        return place + 1 if self._marker[place] == symbol else 0


def _borders(marker: Symbols) -> list[int]:
    """For each length, that of the longest shorter text that the beginning of this length both begins and ends with."""
    borders, border = [0, 0], 0
    for at in range(1, len(marker)):
        while border and marker[border] != marker[at]:
            border = borders[border]
        border += marker[border] == marker[at]
        borders.append(border)
    return borders
