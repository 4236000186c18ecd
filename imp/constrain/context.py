"""The arrays machine code works on: kept alive, and known to it by their addresses (layout.py)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from . import layout

ALIGNED = 64
Forms = Mapping[int, tuple[tuple[int, ...], Any]]  # by slot, the shape and type of an array


class Piece:
    """Several arrays in one allocation: asking an array for its address takes longer than making it.

    Memory for some may be made ready before, its pages touched. May be used by all threads."""

    def __init__(self, forms: Forms, cleared: Collection[int] = ()) -> None:
        """cleared: slots whose arrays begin as -1; what is in the others is undefined."""
        self._forms = [(slot, shape, np.dtype(dtype)) for slot, (shape, dtype) in forms.items()]
        sizes = [-(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED for _, shape, dtype in self._forms]
        *starts, self._size = accumulate(sizes, initial=0)
        self._starts, self._at = starts, np.array(starts, np.int64)
        self._ready: list[np.ndarray] = []
        self._cleared = tuple(cleared)
        self._slots = 2 * np.array(list(forms))
        self._rows = np.array([shape[0] for _, shape, _ in self._forms], np.int64)

    def stock(self, count: int) -> None:
        """See to it that memory for `count` is ready: in a worker, so that nobody waits for pages."""
        while len(self._ready) < count:
            self._ready.append(np.full(self._size, 0xFF, np.uint8))

    def make(self, context: np.ndarray) -> dict[int, np.ndarray]:
        """New arrays, entered in the context."""
        try:
            memory, clear = self._ready.pop(), True
        except IndexError:
            memory, clear = np.empty(self._size, np.uint8), False
        context[self._slots] = self._at + memory.__array_interface__["data"][0]
        context[self._slots + 1] = self._rows
        arrays = {
            slot: np.ndarray(shape, dtype, memory, start)
            for (slot, shape, dtype), start in zip(self._forms, self._starts, strict=True)
        }
        for slot in self._cleared if not clear else ():
            arrays[slot].fill(-1)
        return arrays


class Context:
    """One context and its arrays, by slot."""

    def __init__(self) -> None:
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
        for slot, array in piece.make(self.slots).items():
            self._keep(slot, array)

    def reserve(self, slot: int, size: int) -> None:
        """See to it that the array in a slot has `size` rows; those that are new are undefined."""
        old = self._arrays[slot]
        if size > len(old):
            new = np.empty((max(2 * len(old), size + size // 2), *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            self.bind(slot, new)

    def _keep(self, slot: int, array: np.ndarray) -> None:
        old = self._arrays.get(slot)
        self.size_bytes += array.nbytes - (0 if old is None else old.nbytes)
        self._arrays[slot] = array
