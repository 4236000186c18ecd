"""What a matrix consists of, whatever format it is stored in: integers with their scales and minimums, or floats. From
here every backend brings weights into the order its kernels read them in.

A kind says what there is: scales d (for the other half of a block: d1) and minimums m, float16 for each row and block
of 32 columns, and integers q; or floats w.

| kind | a weight is |
| --- | --- |
| int4 | d * (q - 8), q from 0 to 15 |
| int4_minimum | d * q + m, q from 0 to 15 |
| int8 | d * q, q from -128 to 127 |
| int8_minimum | d * q + m, q from 0 to 31 |
| int8_halves | d * q for the first 16 columns of a block, d1 * q for the others |
| f16, bf16, f32 | w, as bits |

What repacking costs. Exact: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, BF16, F32. Q4_K, Q5_K and Q6_K keep their integers; the
products of their two scales are rounded to float16, which moves a weight by at most 2^-11 of the scaled integer and of
the minimum (15 steps: 0.7 % of a step, Q4_K; 31 or 32 steps: 1.6 %, Q5_K and Q6_K; as much again for a minimum of that
many steps); `read_q4_k_nested` leaves Q4_K as it is. The others (Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, FP8) are
requantised to 8 bits with one scale for 16 columns: at most 1/254 of the largest weight of the 16, where they have
steps of 1/8 of it or more, that is 3 % of a step (1/16, FP8: 6 %); `small.py` leaves the last three as they are. All
formats lost half a step when they were made.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np

from .weight import Weight

BLOCK = 32  # columns that share a scale

# of some rows: scales d, d1, m [rows, blocks]; floats w [rows, columns]; q as little-endian uint32 [rows, blocks, n]:
# bytes of a column each, or of two, column j in the low half of byte j of the block and j + 16 in the high one
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
Q4_K: list[tuple] = [*K_SCALES, ("q", "u1", (4, 32))]


def _k_parts(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """8 sub-blocks with 6-bit scales and minimums packed in 12 bytes (`get_scale_min_k4` of ggml-quants.c), uint8."""
    a, b, c = (records["scales"][..., i : i + 4] for i in (0, 4, 8))
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1)
    return scale, np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)


def _k_scales(records: np.ndarray) -> Fields:
    scale, minimum = _k_parts(records)
    d = records["d"].astype(np.float32)[..., None] * scale
    m = -records["m"].astype(np.float32)[..., None] * minimum
    return {name: part.reshape(len(records), -1).astype(np.float16) for name, part in (("d", d), ("m", m))}


def _read_q4_k(weight: Weight, rows: slice) -> Fields:
    """256 columns, in runs of 64: low nibbles of 32 bytes are one sub-block, high ones the next (`block_q4_K`)."""
    records = _records(weight, rows, Q4_K)
    return {**_k_scales(records), "q": _q4_k_codes(records)}


def _q4_k_codes(records: np.ndarray) -> np.ndarray:
    q = np.stack([records["q"] & 15, records["q"] >> 4], axis=-2)  # [rows, super-blocks, 4, 2, 32]
    q = q[..., :16] | q[..., 16:] << 4
    return _quads(q.reshape(len(records), -1, 16))


def read_q4_k_nested(weight: Weight, rows: slice) -> Fields:
    """Q4_K as it is: a weight is whole[0] * parts[0] * q - whole[1] * parts[1].

    whole: float16 [rows, columns / 256, 2]. parts: uint8 [rows, blocks, 2], 0 to 63."""
    records = _records(weight, rows, Q4_K)
    parts = np.stack(_k_parts(records), axis=-1).reshape(len(records), -1, 2)
    return {"whole": np.stack([records["d"], records["m"]], axis=-1), "parts": parts, "q": _q4_k_codes(records)}


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
    values = weight.values(rows)
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


READERS: dict[str, tuple[str, Reader]] = {
    "Q4_0": ("int4", _read_q4_0),
    "Q4_1": ("int4_minimum", _read_q4_1),
    "Q4_K": ("int4_minimum", _read_q4_k),
    "Q8_0": ("int8", _read_q8_0),
    "Q5_0": ("int8", _read_q5_0),
    "Q5_1": ("int8_minimum", _read_q5_1),
    "Q5_K": ("int8_minimum", _read_q5_k),
    "Q6_K": ("int8_halves", _read_q6_k),
    "F16": ("f16", _read_16_bits),
    "BF16": ("bf16", _read_16_bits),
    "F32": ("f32", _read_32_bits),
}

OTHERS: tuple[str, Reader] = ("int8_halves", _requantised)  # formats with no integers of their own that we read


def reader(weight: Weight) -> tuple[str, Reader]:
    """The kind of the weight, and what reads some of its rows."""
    return READERS.get(weight.format.name, OTHERS)


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
