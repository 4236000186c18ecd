"""GGML's 4-bit formats with a nonlinear code book: IQ4_NL and IQ4_XS.

A code is an index into 16 fixed levels, denser near zero. The levels and layouts are those of ggml-common.h.
"""

from __future__ import annotations

import numpy as np

from .format import blockwise, scale, unpack

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * LEVELS[unpack(blocks["qs"], 16, 4).reshape(-1, 32)]


def iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """256 elements; the 8 sub-scales are six bits less 32: four in `low`, two in the 16-bit word `high`."""
    low = unpack(blocks["low"], 1, 4).reshape(-1, 8)
    high = blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = scale(blocks, "d") * ((low | high << np.uint16(4)).astype(np.float32) - np.float32(32))  # [n, 8]
    return scales[:, :, None] * LEVELS[unpack(blocks["qs"], 16, 4).reshape(-1, 8, 32)]


IQ4_NL = blockwise("IQ4_NL", 32, [("d", "<f2"), ("qs", "u1", 16)], iq4_nl)
IQ4_XS = blockwise("IQ4_XS", 256, [("d", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("qs", "u1", 128)], iq4_xs)
