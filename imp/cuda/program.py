"""What a recorded forward consists of: ops over buffers, and launches, which is what they are in a program for a shape
of step. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.buffers import Buffer
from .entries import BF16, F16, F32, Entry
from .layouts import WIDE
from .step import Sections, Shape

SIZES = {F32: 4, F16: 2, BF16: 2}  # bytes of a number, by form


@dataclass(frozen=True, slots=True)
class Launch:
    entry: Entry
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program's step is: addresses of its arrays, by name as in step.Sections, and of the counts."""

    base: int
    sections: Sections
    shape: Shape

    def at(self, name: str) -> int:
        return self.base + 4 * getattr(self.sections, name)

    @property
    def counts(self) -> int:
        return self.base


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """launch: what it is in a program; buffers it touches, for their lifetimes."""

    launch: Callable[[Place], Launch]
    reads: Sequence[Buffer]
    writes: Sequence[Buffer]


class Constant:
    """Numbers that are uploaded once."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values)
        self.address = 0


def padded(columns: int) -> int:
    """Numbers from one row to the next."""
    return -(-columns // WIDE) * WIDE


class Activation:
    """What an op made: rows of float32 (`floats`), or nothing yet. As an operand it is asked for in a form; then `make`
    gives the op that writes it, which `put` records."""

    def __init__(
        self,
        rows: int,
        columns: int,
        put: Callable[[Op], None],
        make: Callable[[int, Buffer, Buffer], Op],
        floats: Buffer | None = None,
    ) -> None:
        self.rows, self.columns, self.floats = rows, columns, floats
        self._put, self._make = put, make
        self._operands: dict[int, tuple[Buffer, Buffer]] = {}

    @property
    def stride(self) -> int:
        return padded(self.columns)

    def operand(self, form: int) -> tuple[Buffer, Buffer]:
        """Its rows in this form with what fills them up zero, and what each row is to be multiplied by."""
        if form not in self._operands:
            made = Buffer(self.rows * self.stride * SIZES[form], "operand"), Buffer(self.rows * 4, "row scales")
            self._operands[form] = made
            self._put(self._make(form, *made))
        return self._operands[form]


class ScaledActivation(Activation):
    """Its float16 rows have scales of their own."""


def lifetimes(ops: Sequence[Op], lasting: Sequence[Buffer | None]) -> dict[Buffer, tuple[float, float]]:
    """First and last op of every buffer; of lasting ones the last is never."""
    lives: dict[Buffer, tuple[float, float]] = {}
    for i, op in enumerate(ops):
        for buffer in (*op.reads, *op.writes):
            lives[buffer] = lives.get(buffer, (i, i))[0], i
    return lives | {buffer: (0, float("inf")) for buffer in lasting if buffer is not None}
