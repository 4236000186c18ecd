"""Weights in the order the matrix kernels read them, element by element as weights.cuh describes it: the judge of whatever
packs them in earnest. And what they are worth, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

F32, F16, BF16, INT8, INT8M, INT8H, INT4, INT4M = range(8)
FORM_OF = {F32: "f32", BF16: "bf16"}  # of activations; of all others f16
RECORD = {F32: 16, F16: 16, BF16: 16, INT8: 32, INT8M: 32, INT8H: 32, INT4: 64, INT4M: 64}


@dataclass(frozen=True)
class Packed:
    codes: np.ndarray
    scales: np.ndarray
    values: np.ndarray  # float64 [rows, columns]
    columns: int  # in memory


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
    if format in (INT4, INT4M):
        codes = _fragments(stored, 64, lambda reg, e, step: 32 * step + 4 * reg + 16 * e)
    else:
        codes = _fragments(stored, 32, lambda reg, e, step: 64 * step + 32 * (reg // 2) + 16 * (reg % 2) + 8 * e)
    return Packed(codes, _scales(d, m, format), value[:rows, :columns], wide)


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
