"""The arrays machine code works on: kept alive, and known to it by their addresses (layout.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from . import layout
from .pages import Stock, zeros

ALIGNED = 64
STOCKED = 1 << 20  # bytes from which on an array's memory is made ready for the next that grows like this
Forms = Mapping[int, tuple[tuple[int, ...], Any]]  # by slot, the shape and type of an array


class Piece:
    """Several arrays in one allocation: asking an array for its address takes longer than making it."""

    def __init__(self, forms: Forms, zeros: bool = False, keep: int = 0) -> None:
        """zeros: so the arrays begin; otherwise they are undefined.  keep: for how many a stock has memory."""
        self._forms = [(slot, shape, np.dtype(dtype)) for slot, (shape, dtype) in forms.items()]
        sizes = [-(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED for _, shape, dtype in self._forms]
        *starts, self._size = accumulate(sizes, initial=0)
        self._starts, self._at = starts, np.array(starts, np.int64)
        self._zeros, self._keep = zeros, keep
        self._slots = 2 * np.array(list(forms))
        self._rows = np.array([shape[0] for _, shape, _ in self._forms], np.int64)

    def make(self, context: np.ndarray, stock: Stock | None) -> dict[int, np.ndarray]:
        """New arrays, entered in the context."""
        memory = stock.take(self._size, self._keep) if stock and self._keep else None
        if memory is None:
            memory = (np.zeros if self._zeros else np.empty)(self._size, np.uint8)
        context[self._slots] = self._at + memory.__array_interface__["data"][0]
        context[self._slots + 1] = self._rows
        return {
            slot: np.ndarray(shape, dtype, memory, start)
            for (slot, shape, dtype), start in zip(self._forms, self._starts, strict=True)
        }


class Context:
    """One context and its arrays, by slot."""

    def __init__(self, stock: Stock | None = None) -> None:
        """stock: where large arrays come from."""
        self._stock = stock
        self.slots = np.zeros(2 * layout.SLOTS, np.int64)
        self.address: int = self.slots.__array_interface__["data"][0]
        self.size_bytes = 0
        self._arrays: dict[int, np.ndarray] = {}

    def __getitem__(self, slot: int) -> np.ndarray:
        return self._arrays[slot]

    def bind(self, slot: int, array: np.ndarray) -> None:
        """Put `array` (contiguous) into a slot, in the place of the one that was there."""
        self._keep(slot, array)
        layout.bind(self.slots, slot, array)

    def add(self, piece: Piece) -> None:
        for slot, array in piece.make(self.slots, self._stock).items():
            self._keep(slot, array)

    def reserve(self, slot: int, size: int) -> None:
        """See to it that the array in a slot has `size` rows; those that are new are zeros."""
        old = self._arrays[slot]
        if size > len(old):
            shape = (max(2 * len(old), size + size // 2), *old.shape[1:])
            new = np.ndarray(shape, old.dtype, self._memory(math.prod(shape) * old.itemsize))
            new[: len(old)] = old
            self.bind(slot, new)

    def _memory(self, size: int) -> np.ndarray:
        ready = self._stock.take(size) if self._stock and size >= STOCKED else None
        return zeros(size) if ready is None else ready

    def _keep(self, slot: int, array: np.ndarray) -> None:
        old = self._arrays.get(slot)
        self.size_bytes += array.nbytes - (0 if old is None else old.nbytes)
        self._arrays[slot] = array
