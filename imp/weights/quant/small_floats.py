"""Floats of 8 and 4 bits and powers of two, one by one: what matrices and the tensors of their scales are made of in
safetensors files. From the OCP specifications of 8-bit floats and of Microscaling formats 1.0."""

from __future__ import annotations

from functools import cache

import numpy as np

from .format import QuantFormat, blockwise, unpack


@cache
def small_floats(exponent: int, mantissa: int) -> np.ndarray:
    """float32 [2 ** bits]: the number of every code of a float with a sign and so many bits, none of them set aside for
    infinities or NaN."""
    bits = exponent + mantissa
    size = np.arange(1 << bits)
    power, fraction, bias = size >> mantissa, (size & (1 << mantissa) - 1) / 2.0**mantissa, (1 << exponent - 1) - 1
    positive = np.where(power == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, power - bias))
    found = np.concatenate([positive, -positive]).astype(np.float32)
    found.flags.writeable = False
    return found


_E4M3 = small_floats(4, 3).copy()
_E4M3[[0x7F, 0xFF]] = np.nan
_E2M1 = small_floats(2, 1)
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def pairs(codes: np.ndarray) -> np.ndarray:
    """Two columns a byte, the first in its low half."""
    return _E2M1[unpack(codes[:, None], 1, 4).reshape(-1, 2)]


F8_E4M3: QuantFormat = blockwise("F8_E4M3", 1, "u1", lambda codes: _E4M3[codes])
F4_E2M1: QuantFormat = blockwise("F4_E2M1", 2, "u1", pairs)
F8_E8M0: QuantFormat = blockwise("F8_E8M0", 1, "u1", lambda codes: _E8M0[codes])
