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

What repacking costs. Exact: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, F16, BF16, F32, and MXFP4, whose levels are integers
when doubled, where its powers are float16's (2^-24 to 2^15; others are taken for the nearest that is, or for 0). Q3_K
to Q6_K and IQ4_XS keep their integers, NVFP4 its doubled levels; the products of their two scales are rounded to
float16, which moves a weight by at most 2^-11 of the scaled integer and of the minimum (15 steps: 0.7 % of a step,
Q4_K; 31 or 32 steps: 1.6 %, Q5_K and Q6_K; as much again for a minimum of that many steps); `read_q4_k_nested` leaves
Q4_K as it is. Q2_K and FP8 are requantised to 8 bits with one scale for 16 columns: at most 1/254 of the largest weight
of the 16, where Q2_K has steps of 1/8 of it or more, that is 3 % of a step (1/16, FP8: 6 %); `small.py` leaves small
floats as they are. All formats lost half a step when they were made. docs/WEIGHTS.md has the bytes of each.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np

from .quant import F4_E2M1
from .quant.format import unpack
from .quant.iq import LEVELS as IQ4_LEVELS
from .quant.k_quants import q3_scales
from .quant.mxfp4 import LEVELS as E2M1_LEVELS
from .quant.mxfp4 import half_powers
from .weight import Weight

BLOCK = 32  # columns that share a scale
IQ4_BOOK, E2M1_BOOK = IQ4_LEVELS.astype(np.int8), E2M1_LEVELS.astype(np.int8)  # 4-bit codes' integers
LARGEST_POWER = np.float32(2.0**15)  # of float16

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
    d = records["d"].astype(np.float32)[..., None] * records["scales"]
    return _halves(d.reshape(len(records), -1), q)


def _read_q3_k(weight: Weight, rows: slice) -> Fields:
    """256 columns, 16 signed scales; 4 is zero (`block_q3_K` of ggml-common.h)."""
    fields = [("high", "u1", 32), ("low", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]
    records = _records(weight, rows, fields).reshape(-1)
    low = unpack(records["low"], 32, 2).reshape(-1, 256)
    high = unpack(records["high"], 32, 1).reshape(-1, 256)
    q = (low | high << np.uint8(2)).view(np.int8) - np.int8(4)
    d = records["d"].astype(np.float32)[:, None] * q3_scales(records["scales"])
    return _halves(d.reshape(weight.data[rows].shape[0], -1), q)


def _read_iq4_nl(weight: Weight, rows: slice) -> Fields:
    """Codes of a fixed book of integers."""
    records = _records(weight, rows, [("d", "<f2"), ("q", "u1", 16)])
    return {"d": records["d"], "q": _quads(IQ4_BOOK[_nibbles(records["q"])].view(np.uint8))}


def _read_iq4_xs(weight: Weight, rows: slice) -> Fields:
    """As IQ4_NL; scales of 6 bits, 32 is zero (quant/iq.py)."""
    fields = [("d", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("q", "u1", (8, 16))]
    records = _records(weight, rows, fields)
    low = unpack(records["low"].reshape(-1, 4), 1, 4).reshape(*records.shape, 8)
    high = records["high"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = (low | high << np.uint16(4)).astype(np.float32) - np.float32(32)
    d = (records["d"].astype(np.float32)[..., None] * scales).astype(np.float16)
    q = IQ4_BOOK[_nibbles(records["q"])].reshape(len(records), -1, BLOCK)
    return {"d": d.reshape(len(records), -1), "q": _quads(q.view(np.uint8))}


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The low halves of the last axis, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _read_mxfp4(weight: Weight, rows: slice) -> Fields:
    """Levels are doubled and powers halved (quant/mxfp4.py)."""
    records = _records(weight, rows, [("e", "u1"), ("q", "u1", 16)])
    d = _power(half_powers(records["e"].reshape(-1)).reshape(records.shape))
    return {"d": d, "q": _quads(E2M1_BOOK[_nibbles(records["q"])].view(np.uint8))}


def _power(powers: np.ndarray) -> np.ndarray:
    return np.minimum(powers, LARGEST_POWER).astype(np.float16)


def _read_e2m1(weight: Weight, rows: slice) -> Fields:
    """Two columns a byte; scales in a tensor of their own, for 16 columns or for 32."""
    assert weight.scales
    data = np.ascontiguousarray(weight.data[rows])
    q = E2M1_BOOK[np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)]
    d = weight.scales.values(range(*rows.indices(len(weight.data)))) / np.float32(2)
    if weight.scales.of_columns < BLOCK:
        return _halves(d, q)
    return {"d": _power(d), "q": _quads(q.reshape(len(data), -1, BLOCK).view(np.uint8))}


def _halves(d: np.ndarray, q: np.ndarray) -> Fields:
    """d: [rows, half blocks]. q: int8, row by row."""
    count = len(d)
    d = d.astype(np.float16).reshape(count, -1, 2)
    return {"d": d[..., 0], "d1": d[..., 1], "q": _quads(q.reshape(count, -1, BLOCK).view(np.uint8))}


def _requantised(weight: Weight, rows: slice) -> Fields:
    values = weight.values(rows)
    count = len(values)
    values = values.reshape(count, -1, BLOCK // 2)  # [rows, half blocks, 16]
    exact = np.abs(values).max(axis=-1) / 127
    d = exact.astype(np.float16)
    d = np.where(d.astype(np.float32) < exact, np.nextafter(d, np.float16(np.inf)), d)  # so that no integer passes 127
    wide = d.astype(np.float32)[..., None]
    q = np.rint(np.divide(values, wide, out=np.zeros_like(values), where=wide > 0)).astype(np.int8)
    return _halves(d.reshape(count, -1), q)


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
    "Q3_K": ("int8_halves", _read_q3_k),
    "IQ4_NL": ("int8", _read_iq4_nl),
    "IQ4_XS": ("int8", _read_iq4_xs),
    "MXFP4": ("int8", _read_mxfp4),
    "F16": ("f16", _read_16_bits),
    "BF16": ("bf16", _read_16_bits),
    "F32": ("f32", _read_32_bits),
}

E2M1: dict[int, tuple[str, Reader]] = {  # by how many columns share a scale
    16: ("int8_halves", _read_e2m1),
    32: ("int8", _read_e2m1),
}
OTHERS: tuple[str, Reader] = ("int8_halves", _requantised)  # formats with no integers of their own that we read
OF_FIVE_BITS = (_read_q5_0, _read_mxfp4, _read_e2m1)  # whose integers are from -16 to 15


def reader(weight: Weight) -> tuple[str, Reader]:
    """The kind of the weight, and what reads some of its rows."""
    if weight.format is F4_E2M1 and weight.scales is not None:
        return E2M1.get(weight.scales.of_columns, OTHERS)
    return READERS.get(weight.format.name, OTHERS)


def has_five_bits(weight: Weight) -> bool:
    """Whether it is of the kind int8 and its integers are from -16 to 15."""
    kind, read = reader(weight)
    return kind == "int8" and read in OF_FIVE_BITS


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
