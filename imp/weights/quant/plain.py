"""F32, F16 and BF16: one element per block. The judge of bit patterns is IEEE 754; BF16 is the upper half of F32."""

from __future__ import annotations

import numpy as np

from .format import blockwise


def f32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32, copy=False)


def f16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


def bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


F32 = blockwise("F32", 1, "<f4", f32)
F16 = blockwise("F16", 1, "<f2", f16)
BF16 = blockwise("BF16", 1, "<u2", bf16)
