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
from ..weights.fields import BLOCK, Fields, has_five_bits, reader, release
from .variants import NARROW, WIDE, lanes, sums_bytes

CHUNK_BYTES = 8 << 20  # of weights repacked at a time

# Forms of activations that products take (activations.py)
FLOATS, BYTES, SHORTS = "floats", "bytes", "shorts"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """`record` is what lies in memory for `rows` rows of `columns` columns. An integer layout is `crossed` where sums
    are of 16 bits (short_products.py): then the columns of a quad, or of half a vector, are others."""

    name: str
    rows: int
    columns: int
    record: np.dtype
    scales: int = 0  # of a row in a block; 0: the weights are floats
    bits: int = 0
    minimum: bool = False  # an offset is stored beside the scale
    bias: int = 0  # value = scale * (integer - bias) [+ minimum]
    form: str = FLOATS
    crossed: bool = False

    @property
    def integers(self) -> bool:
        return self.scales > 0

    @property
    def in_pairs(self) -> bool:
        """Whether what lies side by side are 2 columns of each row, not 4."""
        return self.form == SHORTS

    def place(self, column: int, side: int) -> tuple[int, int]:
        """Of one column of a block and one of the rows side by side: the byte among the integers, and the bit in it."""
        width = 2 if self.in_pairs else 4
        half, inside = divmod(column, BLOCK // 2)
        if self.crossed and not self.in_pairs:
            group, byte = inside // 2, half * 2 + inside % 2
            vector, bit = (group // 2, group % 2 * 4) if self.bits == 4 else (group, 0)
        else:
            group, byte = divmod(column, width)
            vector, bit = (group % 4, group // 4 * 4) if self.bits == 4 else (group, 0)
        return (vector * self.rows + side) * width + byte, bit

    def largest(self, fields: Fields) -> float:
        """No magnitude of these weights is larger."""
        integer = (1 << self.bits) - 1 if self.minimum else 1 << (self.bits - 1)
        scale = max(float(np.abs(fields[name]).max(initial=0)) for name in ("d", "d1")[: self.scales])
        return scale * integer + (float(np.abs(fields["m"]).max(initial=0)) if self.minimum else 0.0)


def _integers(
    name: str, rows: int, scales: int, bits: int, minimum: bool = False, bias: int = 0, form: str = BYTES,
    crossed: bool = False,
) -> Layout:  # fmt: skip
    fields = [(field, "<f2", rows) for field in ("d", "d1")[:scales] + ("m",) * minimum]
    integers = ("q", "<u2", (BLOCK // 2, rows)) if form == SHORTS else ("q", "<u4", (bits, rows))
    return Layout(name, rows, BLOCK, np.dtype([*fields, integers]), scales, bits, minimum, bias, form, crossed)


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
# Two columns of the left half of a block and two of the right are a quad: low nibbles of vector v are quad 2 v, high
# ones quad 2 v + 1. Integers that are too large for that lie in pairs, column beside column
SHORT_LAYOUTS = (
    _integers("int4_short", NARROW, 1, 4, bias=8, crossed=True),
    _integers("int4_minimum_short", NARROW, 1, 4, minimum=True, crossed=True),
    _integers("int5_short", NARROW, 1, 8, bias=16, crossed=True),  # of integers 0 to 31
    _integers("int8_minimum_short", NARROW, 1, 8, minimum=True, crossed=True),  # of integers 0 to 31
    _integers("int8_short", NARROW, 1, 8, form=SHORTS, crossed=True),
    _integers("int8_halves_short", NARROW, 2, 8, form=SHORTS, crossed=True),
)
FLOAT_LAYOUTS = FLOAT16, BFLOAT16, FLOAT32 = tuple(
    Layout(name, 16, 1, np.dtype([("w", kind, 16)])) for name, kind in (("f16", "<u2"), ("bf16", "<u2"), ("f32", "<u4"))
)
LAYOUTS = {layout.name: layout for layout in (*NARROW_LAYOUTS, *WIDE_LAYOUTS, *SHORT_LAYOUTS, *FLOAT_LAYOUTS)}


def layout_of(weight: Weight, machine: str) -> Layout:
    """How a weight lies where code of this kind (variants.py) multiplies it."""
    kind, _ = reader(weight)
    if not sums_bytes(machine):
        kind, suffix = "int5" if has_five_bits(weight) else kind, "_short"
    else:
        suffix = "_wide" if lanes(machine) == WIDE else ""
    return LAYOUTS.get(kind + suffix) or LAYOUTS[kind]


class Packed:
    """A weight matrix in (or on its way into) the arena."""

    def __init__(self, weight: Weight, machine: str = "portable") -> None:
        """machine: the kind of code that will multiply it."""
        self.weight = weight
        _, self.read = reader(weight)
        self.layout = layout_of(weight, machine)
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
            if layout.crossed:
                fields["q"] = _crossed(layout, fields["q"])
            _fill(out[start // layout.rows : (start + step) // layout.rows], fields)
        release(data)


def _crossed(layout: Layout, q: np.ndarray) -> np.ndarray:
    """Fields' integers [rows, blocks, quads] in the order of a crossed layout."""
    if layout.in_pairs:
        return q.view("<u2")
    if layout.bits == 4:  # a byte has the same column of both halves
        low, high = q & 0x0F0F0F0F, q >> 4 & 0x0F0F0F0F
        left, right = ((half & 0xFFFF) | (half >> 12 & 0xFFFF) for half in (low, high))
        return left | right << 16
    if layout.bias:
        q = (q.view(np.uint8) + np.uint8(layout.bias)).view("<u4")
    left, right = np.split(q.view("<u2"), 2, axis=-1)
    return left | right.astype("<u4") << 16


def _fill(out: np.ndarray, fields: Fields) -> None:
    """out: structures [groups, blocks]; the fields' rows go side by side, missing ones are zeros."""
    for name, values in fields.items():
        target = out[name]  # [groups, blocks, rows] or [groups, blocks, quads, rows]
        groups, side = target.shape[0], target.shape[-1]
        if len(values) < groups * side:
            values = np.concatenate([values, np.zeros((groups * side - len(values), *values.shape[1:]), values.dtype)])
        target[...] = np.moveaxis(values.reshape(groups, side, *values.shape[1:]), 1, -1)
