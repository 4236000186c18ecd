"""The arrays machine code works on: kept alive, and known to it by their addresses (layout.py)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from . import layout
from .pages import Stock

ALIGNED = 64
Forms = Mapping[int, tuple[tuple[int, ...], Any]]  # by slot, the shape and type of an array


def address_of(array: np.ndarray) -> int:
    """Where an array that may be written to begins; in a quarter of the time that NumPy takes to say so."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


class Piece:
    """Several arrays in one allocation: asking an array for its address takes longer than making it."""

    def __init__(self, forms: Forms) -> None:
        sizes = {slot: math.prod(shape) * np.dtype(dtype).itemsize for slot, (shape, dtype) in forms.items()}
        *starts, self.size = accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes.values()), initial=0)
        self._slots, self._starts = 2 * np.array(list(forms)), np.array(starts, np.int64)
        self._rows = np.array([shape[0] for shape, _ in forms.values()], np.int64)
        self.sizes = sizes
        self.parts = {slot: (*form, start) for (slot, form), start in zip(forms.items(), starts, strict=True)}

    def enter(self, memory: np.ndarray, context: np.ndarray) -> None:
        """Let the context find the arrays."""
        context[self._slots] = self._starts + address_of(memory)
        context[self._slots + 1] = self._rows


class Context:
    """One context and its arrays, by slot."""

    def __init__(self, stock: Stock | None = None) -> None:
        """stock: where large arrays come from."""
        self._stock = stock
        self.slots = np.zeros(2 * layout.SLOTS, np.int64)
        self.address = address_of(self.slots)
        self.size_bytes = 0
        self._sizes: dict[int, int] = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._parts: dict[int, tuple[Piece, np.ndarray]] = {}  # of arrays nobody has asked for yet

    def __getitem__(self, slot: int) -> np.ndarray:
        array = self._arrays.get(slot)
        if array is None:
            piece, memory = self._parts.pop(slot)
            shape, dtype, start = piece.parts[slot]
            array = self._arrays[slot] = np.ndarray(shape, dtype, memory, start)
        return array

    def bind(self, slot: int, array: np.ndarray) -> None:
        """Put `array` (contiguous) into a slot, in the place of the one that was there."""
        self.size_bytes += array.nbytes - self._sizes.get(slot, 0)
        self._sizes[slot], self._arrays[slot] = array.nbytes, array
        self._parts.pop(slot, None)
        self.slots[2 * slot], self.slots[2 * slot + 1] = address_of(array), len(array)

    def add(self, piece: Piece) -> None:
        """Put new arrays, all zeros, into the slots of a piece."""
        memory = self._zeros(piece.size)
        piece.enter(memory, self.slots)
        for slot in self._arrays.keys() & piece.sizes.keys():
            del self._arrays[slot]
        self._sizes.update(piece.sizes)
        self._parts.update(dict.fromkeys(piece.sizes, (piece, memory)))
        self.size_bytes = sum(self._sizes.values())

    def reserve(self, slot: int, size: int) -> None:
        """See to it that the array in a slot has `size` rows; those that are new are zeros."""
        old = self[slot]
        if size > len(old):
            shape = (max(2 * len(old), size), *old.shape[1:])
            new = np.ndarray(shape, old.dtype, self._zeros(math.prod(shape) * old.itemsize))
            new[: len(old)] = old
            self.bind(slot, new)

    def _zeros(self, size: int) -> np.ndarray:
        return self._stock.take(size) if self._stock else np.zeros(size, np.uint8)
