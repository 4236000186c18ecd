"""Weights in the order the matrix kernels read them, element by element as weights.cuh describes it: the judge of whatever
packs them in earnest. And what they are worth, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from imp.model.kv import E2M1, E4M3

F32, F16, BF16, INT8, INT8M, INT8H, INT4, INT4M, FP8, NVFP4, MXFP4, INT4K, FP8B = range(13)
FORM_OF = {F32: "f32", BF16: "bf16"}  # of activations; of all others f16
RECORD = {
    F32: 16,
    F16: 16,
    BF16: 16,
    INT8: 32,
    INT8M: 32,
    INT8H: 32,
    INT4: 64,
    INT4M: 64,
    FP8: 32,
    FP8B: 32,
    NVFP4: 64,
    MXFP4: 64,
}
RECORD[INT4K] = 64  # of which four have scales together: columns are a multiple of 256


@dataclass(frozen=True)
class Packed:
    codes: np.ndarray
    scales: np.ndarray
    values: np.ndarray  # float64 [rows, columns]
    columns: int  # in memory
    row_scales: np.ndarray = field(default_factory=lambda: np.zeros(1, np.float32))


def random_weights(format: int, rows: int, columns: int, rng: np.random.Generator) -> Packed:
    tiles, wide = -(-rows // 16), -(-columns // 64) * 64
    shape = (tiles * 16, wide)
    inside = np.zeros(shape, bool)
    inside[:rows, :columns] = True
    if format in (F32, F16, BF16):
        w = np.where(inside, rng.normal(size=shape), 0).astype(np.float32)
        if format == F32:
            codes = w.reshape(tiles, 16, wide).transpose(0, 2, 1)
            return Packed(
                np.ascontiguousarray(codes), np.zeros(1, np.uint8), w[:rows, :columns].astype(np.float64), wide
            )
        half = w.astype(np.float16).view(np.uint16) if format == F16 else _bf16(w)
        kept = half.view(np.float16) if format == F16 else (half.astype(np.uint32) << 16).view(np.float32)
        codes = _fragments(half.astype(np.uint64), 16, lambda reg, e, step: 32 * reg + 16 * e)
        return Packed(codes, np.zeros(1, np.uint8), kept[:rows, :columns].astype(np.float64), wide)
    if format in (FP8, FP8B, NVFP4, MXFP4):
        return _small_floats(format, inside, rows, columns, rng)
    if format == INT4K:
        return _nested(inside, rows, columns, rng)
    low, high, zero = {
        INT8: (-127, 128, 0),
        INT8M: (0, 32, 0),
        INT8H: (-32, 32, 0),
        INT4: (0, 16, 8),
        INT4M: (0, 16, 0),
    }[format]
    q = rng.integers(low, high, shape)
    group = 16 if format == INT8H else 32
    d = (rng.uniform(0.02, 0.1, (tiles * 16, wide // group)) * rng.choice([-1, 1], (tiles * 16, wide // group))).astype(
        np.float16
    )
    m = rng.normal(size=d.shape).astype(np.float16) if format in (INT8M, INT4M) else np.zeros_like(d)
    d, m = (np.where(inside[:, ::group], part, np.float16(0)) for part in (d, m))
    value = np.repeat(d, group, 1).astype(np.float64) * (q - zero) + np.repeat(m, group, 1)
    stored = (q + (128 if format in (INT8, INT8H) else 0)).astype(np.uint64)
    codes = _nibbles(stored) if format in (INT4, INT4M) else _bytes(stored)
    return Packed(codes, _scales(d, m, format), value[:rows, :columns], wide)


def _small_floats(format: int, inside: np.ndarray, rows: int, columns: int, rng: np.random.Generator) -> Packed:
    """Codes of e4m3, which may have a float16 for 32 columns, or of e2m1 with a scale for 16 or 32; a float32 for each row."""
    form = E4M3 if format in (FP8, FP8B) else E2M1
    q = rng.integers(0, 2 ** (1 + form.exponent + form.mantissa), inside.shape)
    q = np.where(inside & (q & 0x7F != 0x7F), q, 0)  # no NaN
    row_scales = np.where(inside[:, 0], rng.uniform(0.01, 0.1, len(q)), 0).astype(np.float32)
    value = form.values(q.astype(np.uint8)).astype(np.float64)
    scales = np.zeros(1, np.uint8)
    if format == FP8B:
        d = rng.uniform(0.01, 1, (len(q), inside.shape[1] // 32)).astype(np.float16)
        value *= np.repeat(d, 32, 1)
        scales = np.ascontiguousarray(d.reshape(len(q) // 16, 16, -1).transpose(0, 2, 1))
    elif format != FP8:
        group = 16 if format == NVFP4 else 32
        s = (
            rng.integers(1, 126, (len(q), inside.shape[1] // group))
            if format == NVFP4
            else rng.integers(0, 25, (len(q), inside.shape[1] // group))
        )
        value *= np.repeat(
            E4M3.values(s.astype(np.uint8)).astype(np.float64) if format == NVFP4 else 2.0 ** (s - 24), group, 1
        )
        scales = np.ascontiguousarray(
            s.astype(np.uint8).reshape(len(q) // 16, 16, -1, 64 // group).transpose(0, 2, 1, 3)
        )
    codes = _bytes(q.astype(np.uint64)) if form is E4M3 else _nibbles(q.astype(np.uint64))
    value *= row_scales[:, None]
    return Packed(codes, scales, value[:rows, :columns], inside.shape[1], row_scales)


def _nested(inside: np.ndarray, rows: int, columns: int, rng: np.random.Generator) -> Packed:
    """Q4_K: weight = d s q - dmin m."""
    tiles, blocks = len(inside) // 16, -(-inside.shape[1] // 256)
    wide = blocks * 256
    q = rng.integers(0, 16, (tiles * 16, wide))
    q[:, columns:] = 0
    whole = rng.uniform(0.001, 0.01, (tiles * 16, blocks, 2)).astype(np.float16)
    parts = rng.integers(0, 64, (tiles * 16, blocks, 8, 2))  # s, m
    d = whole[..., None, 0].astype(np.float64) * parts[..., 0]
    least = whole[..., None, 1].astype(np.float64) * parts[..., 1]
    value = np.repeat(d.reshape(len(q), -1), 32, 1) * q - np.repeat(least.reshape(len(q), -1), 32, 1)
    first = whole.view(np.uint8).reshape(tiles, 16, blocks, 4).transpose(0, 2, 1, 3).reshape(tiles, blocks, 64)
    second = (
        parts.astype(np.uint8).reshape(tiles, 16, blocks, 4, 4).transpose(0, 2, 3, 1, 4).reshape(tiles, blocks, 256)
    )
    return Packed(_nibbles(q.astype(np.uint64)), np.concatenate([first, second], -1), value[:rows, :columns], wide)


def _nibbles(stored: np.ndarray) -> np.ndarray:
    return _fragments(stored, 64, lambda reg, e, step: 32 * step + 4 * reg + 16 * e)


def _bytes(stored: np.ndarray) -> np.ndarray:
    return _fragments(stored, 32, lambda reg, e, step: 64 * step + 32 * (reg // 2) + 16 * (reg % 2) + 8 * e)


def _fragments(stored: np.ndarray, record: int, bit: object) -> np.ndarray:
    """uint32 [tiles][records][32 lanes][4]: element (register, place e, step) of a lane at bit `bit(register, e, step)`."""
    tiles, records = len(stored) // 16, stored.shape[1] // record
    out = np.zeros((tiles, records, 32, 2), np.uint64)
    blocks = stored.reshape(tiles, 16, records, record // 16, 16)
    for lane in range(32):
        for step in range(record // 16):
            for reg in range(4):
                for e in range(2):
                    at = bit(reg, e, step)  # type: ignore[operator]
                    row, column = lane // 4 + 8 * (reg % 2), 4 * (lane % 4) + 2 * (reg // 2) + e
                    out[:, :, lane, at // 64] |= blocks[:, row, :, step, column] << np.uint64(at % 64)
    return out.view(np.uint32)


def _scales(d: np.ndarray, m: np.ndarray, format: int) -> np.ndarray:
    """float16 [tiles][records][16 rows][all numbers of the row in the record]."""
    parts = np.stack([d, m], -1) if format in (INT8M, INT4M) else d[..., None]
    tiles, each = len(d) // 16, {INT8: 1, INT8M: 1, INT8H: 2, INT4: 2, INT4M: 2}[format]
    return np.ascontiguousarray(parts.reshape(tiles, 16, -1, each * parts.shape[-1]).transpose(0, 2, 1, 3))


def _bf16(x: np.ndarray) -> np.ndarray:
    raw = x.view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
