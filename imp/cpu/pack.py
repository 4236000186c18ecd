"""Weights in the order the matrix kernels read them: layouts, and how every file format gets into one.

Integer layouts hold 8 or 16 rows side by side (a *group*), as many as a vector of the machine has floats, in blocks of
32 columns: first the scales of the rows, then the columns in quads, so that one vector has 4 neighbouring columns of
each of the rows. Float layouts hold 16 rows side by side, column after column. Rows are filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import huge_pages
from ..weights.checkpoint import Weight
from ..weights.fields import BLOCK, Fields, reader, release
from .variants import NARROW, WIDE

CHUNK_BYTES = 8 << 20  # of weights repacked at a time


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """`record` is what lies in memory for `rows` rows of `columns` columns."""

    name: str
    rows: int
    columns: int
    record: np.dtype
    scales: int = 0  # of a row in a block; 0: the weights are floats
    bits: int = 0
    minimum: bool = False  # an offset is stored beside the scale
    bias: int = 0  # value = scale * (integer - bias) [+ minimum]

    @property
    def integers(self) -> bool:
        return self.scales > 0

    def largest(self, fields: Fields) -> float:
        """No magnitude of these weights is larger."""
        integer = (1 << self.bits) - 1 if self.minimum else 1 << (self.bits - 1)
        scale = max(float(np.abs(fields[name]).max(initial=0)) for name in ("d", "d1")[: self.scales])
        return scale * integer + (float(np.abs(fields["m"]).max(initial=0)) if self.minimum else 0.0)


def _integers(name: str, rows: int, scales: int, quads: int, minimum: bool = False, bias: int = 0) -> Layout:
    fields = [(field, "<f2", rows) for field in ("d", "d1")[:scales] + ("m",) * minimum]
    record = np.dtype([*fields, ("q", "<u4", (quads, rows))])
    return Layout(name, rows, BLOCK, record, scales, quads, minimum, bias)


def _of_rows(rows: int, suffix: str) -> tuple[Layout, ...]:
    return (
        # 4 bits: the low nibbles of vector v are quad v, the high ones quad v + 4
        _integers(f"int4{suffix}", rows, 1, 4, bias=8),
        _integers(f"int4_minimum{suffix}", rows, 1, 4, minimum=True),
        _integers(f"int8{suffix}", rows, 1, 8),
        _integers(f"int8_minimum{suffix}", rows, 1, 8, minimum=True),  # of integers 0 to 31
        _integers(f"int8_halves{suffix}", rows, 2, 8),  # one scale for each 16 columns
    )


NARROW_LAYOUTS = INT4, INT4_MINIMUM, INT8, INT8_MINIMUM, INT8_HALVES = _of_rows(NARROW, "")
WIDE_LAYOUTS = _of_rows(WIDE, "_wide")
FLOAT_LAYOUTS = FLOAT16, BFLOAT16, FLOAT32 = tuple(
    Layout(name, 16, 1, np.dtype([("w", kind, 16)])) for name, kind in (("f16", "<u2"), ("bf16", "<u2"), ("f32", "<u4"))
)
LAYOUTS = {layout.name: layout for layout in (*NARROW_LAYOUTS, *WIDE_LAYOUTS, *FLOAT_LAYOUTS)}


def layout_of(kind: str, lanes: int) -> Layout:
    """How a kind of fields.py lies where a vector has so many floats."""
    wide = f"{kind}_wide"
    return LAYOUTS[wide if lanes == WIDE and wide in LAYOUTS else kind]


class Packed:
    """A weight matrix in (or on its way into) the arena."""

    def __init__(self, weight: Weight, lanes: int = NARROW) -> None:
        """lanes: floats in a vector of the machine."""
        self.weight = weight
        kind, self.read = reader(weight)
        self.layout = layout_of(kind, lanes)
        self.outputs, self.inputs = weight.shape
        self.address = 0  # not packed yet
        self.largest = 0.0  # no weight of integers is larger, once it is packed

    @property
    def groups(self) -> int:
        return -(-self.outputs // self.layout.rows)

    @property
    def blocks(self) -> int:
        return -(-self.inputs // self.layout.columns)

    @property
    def group_bytes(self) -> int:
        return self.blocks * self.layout.record.itemsize

    @property
    def size(self) -> int:
        return self.groups * self.group_bytes


class Arena:
    """One mapping for all weights, so that it can have huge pages. Grows never; filled in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = huge_pages.reserve(size)
        self._free = self._memory

    def pack(self, packed: Packed) -> None:
        """Fill the next part of the arena and let the weight's own pages go."""
        assert packed.size <= len(self._free), "the arena was made for fewer weights"
        target, self._free = self._free[: packed.size], self._free[packed.size :]
        packed.address = target.ctypes.data
        layout, data = packed.layout, packed.weight.data
        out = target.view(layout.record).reshape(packed.groups, packed.blocks)
        step = max(1, CHUNK_BYTES // max(1, data.shape[1]) // layout.rows) * layout.rows
        for start in range(0, packed.outputs, step):
            rows = slice(start, start + step)
            fields = packed.read(packed.weight, rows)
            if layout.integers:
                packed.largest = max(packed.largest, layout.largest(fields))
            _fill(out[start // layout.rows : (start + step) // layout.rows], fields)
        release(data)


def _fill(out: np.ndarray, fields: Fields) -> None:
    """out: structures [groups, blocks]; the fields' rows go side by side, missing ones are zeros."""
    for name, values in fields.items():
        target = out[name]  # [groups, blocks, rows] or [groups, blocks, quads, rows]
        groups, side = target.shape[0], target.shape[-1]
        if len(values) < groups * side:
            values = np.concatenate([values, np.zeros((groups * side - len(values), *values.shape[1:]), values.dtype)])
        target[...] = np.moveaxis(values.reshape(groups, side, *values.shape[1:]), 1, -1)
