"""Weights in the order the matrix kernels read them: layouts, and how every file format gets into one.

Integer layouts hold 8 rows side by side (a *group*), in blocks of 32 columns: first the scales of the 8 rows, then the
columns in quads, so that one 32-byte vector has 4 neighbouring columns of each of the 8 rows. Float layouts hold 16
rows side by side, column after column. Rows are filled up with zeros.

What repacking costs. Exact: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, BF16, F32. Q4_K, Q5_K and Q6_K keep their integers; the
products of their two scales are rounded to float16, which moves a weight by at most 2^-11 of the scaled integer and of
the minimum (15 steps: 0.7 % of a step, Q4_K; 31 or 32 steps: 1.6 %, Q5_K and Q6_K; as much again for a minimum of that
many steps). The others (Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4) are requantised to 8 bits with one scale for 16 columns: at
most 1/254 of the largest weight of the 16, where they have steps of 1/8 of it or more, that is 3 % of a step. All
formats lost half a step when they were made.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import huge_pages
from ..weights.checkpoint import Weight

BLOCK = 32  # columns that share a scale, in integer layouts and in quantised activations
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


def _integers(name: str, scales: int, quads: int, minimum: bool = False, bias: int = 0) -> Layout:
    fields = [(field, "<f2", 8) for field in ("d", "d1")[:scales] + ("m",) * minimum]
    return Layout(name, 8, BLOCK, np.dtype([*fields, ("q", "<u4", (quads, 8))]), scales, quads, minimum, bias)


# 4 bits: the low nibbles of vector v are quad v, the high ones quad v + 4
INT4 = _integers("int4", 1, 4, bias=8)
INT4_MINIMUM = _integers("int4_minimum", 1, 4, minimum=True)
INT8 = _integers("int8", 1, 8)
INT8_MINIMUM = _integers("int8_minimum", 1, 8, minimum=True)  # of integers 0 to 31
INT8_HALVES = _integers("int8_halves", 2, 8)  # one scale for each 16 columns
FLOAT16, BFLOAT16, FLOAT32 = (
    Layout(name, 16, 1, np.dtype([("w", kind, 16)])) for name, kind in (("f16", "<u2"), ("bf16", "<u2"), ("f32", "<u4"))
)
LAYOUTS = {
    layout.name: layout for layout in (INT4, INT4_MINIMUM, INT8, INT8_MINIMUM, INT8_HALVES, FLOAT16, BFLOAT16, FLOAT32)
}

# of some rows: scales d, d1, m [rows, blocks]; q as uint32 [rows, blocks, quads]; floats w [rows, columns]
Fields = dict[str, np.ndarray]
Reader = Callable[[Weight, slice], Fields]


def _records(weight: Weight, rows: slice, fields: list[tuple]) -> np.ndarray:
    """The bytes of some rows as structures: [rows, blocks]."""
    return np.ascontiguousarray(weight.data[rows]).view(np.dtype(fields))


def _quads(q: np.ndarray) -> np.ndarray:
    """Integers or packed nibbles as bytes [rows, blocks, n] -> [rows, blocks, n / 4] uint32."""
    return np.ascontiguousarray(q.astype(np.uint8, copy=False)).view("<u4")


def _legacy(weight: Weight, rows: slice, fields: list[tuple]) -> Fields:
    records = _records(weight, rows, fields)
    return {name: _quads(records[name]) if name == "q" else records[name] for name, *_ in fields}


def _read_q4_0(weight: Weight, rows: slice) -> Fields:
    return _legacy(weight, rows, [("d", "<f2"), ("q", "u1", 16)])


def _read_q4_1(weight: Weight, rows: slice) -> Fields:
    return _legacy(weight, rows, [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])


def _read_q8_0(weight: Weight, rows: slice) -> Fields:
    return _legacy(weight, rows, [("d", "<f2"), ("q", "u1", 32)])


def _read_q5_0(weight: Weight, rows: slice) -> Fields:
    """Nibbles as Q4_0; bit i of `high` is the fifth bit of column i; 16 is zero."""
    records = _records(weight, rows, [("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
    return {"d": records["d"], "q": _quads(_five_bits(records).view(np.int8) - np.int8(16))}


def _read_q5_1(weight: Weight, rows: slice) -> Fields:
    """As Q5_0, with a minimum instead of 16 for zero."""
    records = _records(weight, rows, [("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
    return {"d": records["d"], "m": records["m"], "q": _quads(_five_bits(records))}


def _five_bits(records: np.ndarray) -> np.ndarray:
    low = np.concatenate([records["q"] & 15, records["q"] >> 4], axis=-1)
    return low | np.unpackbits(records["high"], axis=-1, bitorder="little") << 4


K_SCALES: list[tuple] = [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12)]


def _k_scales(records: np.ndarray) -> Fields:
    """8 sub-blocks with 6-bit scales and minimums packed in 12 bytes (`get_scale_min_k4` of ggml-quants.c)."""
    a, b, c = (records["scales"][..., i : i + 4] for i in (0, 4, 8))
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)
    d = records["d"].astype(np.float32)[..., None] * scale
    m = -records["m"].astype(np.float32)[..., None] * minimum
    return {name: part.reshape(len(records), -1).astype(np.float16) for name, part in (("d", d), ("m", m))}


def _read_q4_k(weight: Weight, rows: slice) -> Fields:
    """256 columns, in runs of 64: low nibbles of 32 bytes are one sub-block, high ones the next (`block_q4_K`)."""
    records = _records(weight, rows, [*K_SCALES, ("q", "u1", (4, 32))])
    q = np.stack([records["q"] & 15, records["q"] >> 4], axis=-2)  # [rows, super-blocks, 4, 2, 32]
    q = q[..., :16] | q[..., 16:] << 4
    return {**_k_scales(records), "q": _quads(q.reshape(len(records), -1, 16))}


def _read_q5_k(weight: Weight, rows: slice) -> Fields:
    """As Q4_K; bit s of byte i of `high` is the fifth bit of column i of sub-block s (`block_q5_K`)."""
    records = _records(weight, rows, [*K_SCALES, ("high", "u1", 32), ("q", "u1", (4, 32))])
    q = np.stack([records["q"] & 15, records["q"] >> 4], axis=-2)
    fifth = np.stack([(records["high"] >> s) & 1 for s in range(8)], axis=-2)  # [rows, super-blocks, 8, 32]
    return {**_k_scales(records), "q": _quads((q.reshape(fifth.shape) | fifth << 4).reshape(len(records), -1, BLOCK))}


def _read_q6_k(weight: Weight, rows: slice) -> Fields:
    """256 columns in two halves of 128; 16 signed scales (`block_q6_K` of ggml-common.h); 32 is zero."""
    fields = [("low", "u1", (2, 2, 32)), ("high", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")]
    records = _records(weight, rows, fields)
    low = np.concatenate([records["low"] & 15, records["low"] >> 4], axis=-2)  # [rows, super-blocks, 2, 4, 32]
    high = np.stack([(records["high"] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-2)
    q = (low | high << 4).view(np.int8) - np.int8(32)
    count, blocks = len(records), records.shape[1] * 8
    d = records["d"].astype(np.float32)[..., None] * records["scales"]
    d = d.reshape(count, blocks, 2).astype(np.float16)
    return {"d": d[..., 0], "d1": d[..., 1], "q": _quads(q.reshape(count, blocks, BLOCK))}


def _requantised(weight: Weight, rows: slice) -> Fields:
    values = weight.format.dequantize(weight.data[rows])
    count = len(values)
    values = values.reshape(count, -1, BLOCK // 2)  # [rows, half blocks, 16]
    exact = np.abs(values).max(axis=-1) / 127
    d = exact.astype(np.float16)
    d = np.where(d.astype(np.float32) < exact, np.nextafter(d, np.float16(np.inf)), d)  # so that no integer passes 127
    wide = d.astype(np.float32)[..., None]
    q = np.rint(np.divide(values, wide, out=np.zeros_like(values), where=wide > 0)).astype(np.int8)
    d = d.reshape(count, -1, 2)
    return {"d": d[..., 0], "d1": d[..., 1], "q": _quads(q.reshape(count, -1, BLOCK))}


def _read_16_bits(weight: Weight, rows: slice) -> Fields:
    return {"w": weight.data[rows].view("<u2")}


def _read_32_bits(weight: Weight, rows: slice) -> Fields:
    return {"w": weight.data[rows].view("<u4")}


READERS: dict[str, tuple[Layout, Reader]] = {
    "Q4_0": (INT4, _read_q4_0),
    "Q4_1": (INT4_MINIMUM, _read_q4_1),
    "Q4_K": (INT4_MINIMUM, _read_q4_k),
    "Q8_0": (INT8, _read_q8_0),
    "Q5_0": (INT8, _read_q5_0),
    "Q5_1": (INT8_MINIMUM, _read_q5_1),
    "Q5_K": (INT8_MINIMUM, _read_q5_k),
    "Q6_K": (INT8_HALVES, _read_q6_k),
    "F16": (FLOAT16, _read_16_bits),
    "BF16": (BFLOAT16, _read_16_bits),
    "F32": (FLOAT32, _read_32_bits),
}


class Packed:
    """A weight matrix in (or on its way into) the arena."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight
        self.layout, self.read = READERS.get(weight.format.name, (INT8_HALVES, _requantised))
        self.outputs, self.inputs = weight.shape
        self.address = 0  # not packed yet

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
            _fill(out[start // layout.rows : (start + step) // layout.rows], packed.read(packed.weight, rows))
        release(data)


def _fill(out: np.ndarray, fields: Fields) -> None:
    """out: structures [groups, blocks]; the fields' rows go side by side, missing ones are zeros."""
    for name, values in fields.items():
        target = out[name]  # [groups, blocks, rows] or [groups, blocks, quads, rows]
        groups, side = target.shape[0], target.shape[-1]
        if len(values) < groups * side:
            values = np.concatenate([values, np.zeros((groups * side - len(values), *values.shape[1:]), values.dtype)])
        target[...] = np.moveaxis(values.reshape(groups, side, *values.shape[1:]), 1, -1)


def release(data: np.ndarray) -> None:
    """Let the pages of a file's mapping go; they come back from the file if they are read again."""
    owner: object = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not data.nbytes or not data.flags.c_contiguous or data.flags.writeable:
        return
    whole = np.frombuffer(owner, np.uint8)
    first = data.ctypes.data - whole.ctypes.data
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (first + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED, start, length)
