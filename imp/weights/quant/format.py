"""What a tensor's bytes mean: elements per block, bytes per block, and how to turn blocks into float32.

Owns the `QuantFormat` value and the two shared steps of every block format: bytes to records, packed bits to integers.
Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One way to store numbers. `name` is GGML's spelling; plain types have one element per block."""

    name: str
    block: int  # elements per block
    size: int  # bytes per block
    dequantize: Callable[[np.ndarray], np.ndarray]  # uint8 [..., bytes] -> float32 [..., elements]


@dataclass(frozen=True, slots=True)
class TensorType:
    """How much room a stored type takes, whether or not we can read it."""

    name: str
    block: int
    size: int


def blockwise(name: str, block: int, record: Any, values: Callable[[np.ndarray], np.ndarray]) -> QuantFormat:
    """A format from its record and `values`: records [n] -> float32, n * block elements in order.

    record: anything `np.dtype` takes; little-endian, packed, as the block lies in the file.
    """
    layout = np.dtype(record)
    size = layout.itemsize

    def dequantize(raw: np.ndarray) -> np.ndarray:
        shape = (*raw.shape[:-1], raw.shape[-1] // size * block)
        if not raw.size:
            return np.empty(shape, dtype=np.float32)
        records = np.ascontiguousarray(raw).reshape(-1).view(layout)
        # an infinite or NaN scale is the file's own: it becomes an infinite or NaN weight, as in GGML
        with np.errstate(invalid="ignore", over="ignore"):
            return values(records).reshape(shape)

    return QuantFormat(name, block, size, dequantize)


def unpack(packed: np.ndarray, width: int, bits: int) -> np.ndarray:
    """Unsigned fields of `bits` bits, in GGML's order: a group of `width` bytes gives all its lowest fields first.

    packed: uint8 [n, groups * width] -> uint8 [n, groups * 8 / bits, width]
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = packed.reshape(len(packed), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1, width)


def scale(records: np.ndarray, field: str) -> np.ndarray:
    """A float16 field as float32 [n, 1]."""
    return records[field].astype(np.float32)[:, None]
