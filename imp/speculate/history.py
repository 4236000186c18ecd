"""Tokens in order, in which the continuation of a text can be found. Belongs to the engine thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np

from ..machine_code import MachineCode
from . import search
from .search import CHAIN, COUNT, CURSOR, CURSOR_AT, EXPECTED, LEAST, MASK, TABLE, TOKENS, WORDS

BUFFER = 1024  # tokens that pass through the buffer at once
SMALLEST = 256


class SearchCode:
    """Compiled once a version in some seconds, loaded in milliseconds. The buffer is shared: one thread."""

    def __init__(self, cache_dir: Path) -> None:
        code = MachineCode(cache_dir.expanduser(), [Path(search.__file__)], "speculate", nullcontext)
        signature = "int64(int64, int64, int64, int64, int64)"
        c = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)
        self.extend = c(code.address("speculate.extend", search.extend, signature))
        self.own = c(code.address("speculate.own", search.continue_own, signature))
        self.other = c(code.address("speculate.other", search.continue_other, signature))
        self.buffer = (ctypes.c_int32 * BUFFER)()
        self.address = ctypes.addressof(self.buffer)


@cache
def search_code(cache_dir: Path) -> SearchCode:
    return SearchCode(cache_dir)


class History:
    """Grows as it needs to: 8 bytes a token and at most 8 for the table."""

    __slots__ = ("_chain", "_header", "_table", "_tokens", "capacity", "code", "header")

    def __init__(self, code: SearchCode, least: int, capacity: int = SMALLEST) -> None:
        """least: tokens of the shortest run that is found again."""
        self.code = code
        self._header = np.zeros(WORDS, np.int64)
        self._header[LEAST], self._header[CURSOR] = least, -1
        self.header: int = self._header.ctypes.data
        self._tokens = np.zeros(0, np.int32)
        self.capacity = 0
        self._hold(capacity)

    def __len__(self) -> int:
        return int(self._header[COUNT])

    @property
    def tokens(self) -> np.ndarray:
        """int32, a view."""
        return self._tokens[: len(self)]

    def follow(self, expected: int) -> None:
        """The text begins behind these tokens and a gap: its first `expected` ones are what it may be."""
        self._header[EXPECTED], self._header[CURSOR], self._header[CURSOR_AT] = expected, 0, len(self)

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        given = np.ascontiguousarray(tokens, np.int32)
        self._hold(len(self) + len(given))
        self.code.extend(self.header, given.ctypes.data, len(given), 0, 0)

    def continuation(self, fresh: list[int], ahead: list[int], most: int) -> int:
        """Append `fresh`, guess what follows them and `ahead`. Returns a result as search.py packs it; the tokens
        stand in the code's buffer. Fewer than BUFFER tokens in all."""
        count = len(fresh) + len(ahead)
        self.code.buffer[:count] = fresh + ahead  # type: ignore[assignment]
        if self.capacity < int(self._header[COUNT]) + count:
            self._hold(int(self._header[COUNT]) + count)
        return int(self.code.own(self.header, self.code.address, len(fresh), len(ahead), most))

    def continuation_of(self, other: History, ahead: int, most: int) -> int:
        """The same for what ends with another history, which was just asked with so many tokens ahead."""
        return int(self.code.other(self.header, other.header, ahead, self.code.address, most))

    def newest(self, count: int) -> History:
        """A history of the last `count` tokens."""
        small = History(self.code, int(self._header[LEAST]), count)
        small.extend(self.tokens[-count:])
        return small

    def _hold(self, wanted: int) -> None:
        """Make room for `wanted` tokens and those looked at ahead of them."""
        if wanted <= self.capacity:
            return
        known = self.tokens.copy()
        self.capacity = 1 << (max(wanted, SMALLEST) - 1).bit_length()
        self._tokens = np.zeros(self.capacity, np.int32)
        self._chain = np.zeros(self.capacity + 1, np.int32)
        self._table = np.zeros(self.capacity, np.int32)
        self._header[MASK] = self.capacity - 1
        self._header[TOKENS] = self._tokens.ctypes.data
        self._header[CHAIN] = self._chain.ctypes.data
        self._header[TABLE] = self._table.ctypes.data
        self._header[COUNT] = 0
        self.code.extend(self.header, known.ctypes.data, len(known), 0, 0)

