"""MXFP4: 32 four-bit floats (E2M1) that share one power-of-two scale (E8M0).

From the OCP Microscaling Formats specification 1.0. GGML keeps the levels doubled, so the scale is halved to match:
exponent byte e means 2 ** (e - 128), and the two smallest are float32 subnormals.
"""

from __future__ import annotations

import numpy as np

from .format import blockwise, unpack

MAGNITUDES = [0, 1, 2, 3, 4, 6, 8, 12]  # twice 0, 0.5, 1, 1.5, 2, 3, 4, 6
# the negative zero of the code book is plain zero, as in GGML
LEVELS = np.array(MAGNITUDES + [-m for m in MAGNITUDES], dtype=np.float32)


def half_powers(exponents: np.ndarray) -> np.ndarray:
    """uint8 [n] -> float32 [n, 1]: 2 ** (e - 128), exact."""
    wide = exponents.astype(np.uint32)
    subnormal = np.uint32(0x00200000) << np.minimum(wide, 1)
    normal = np.maximum(wide, 1) - np.uint32(1) << np.uint32(23)
    return np.where(wide < 2, subnormal, normal).view(np.float32)[:, None]


def mxfp4(blocks: np.ndarray) -> np.ndarray:
    return half_powers(blocks["e"]) * LEVELS[unpack(blocks["qs"], 16, 4).reshape(-1, 32)]


MXFP4 = blockwise("MXFP4", 32, [("e", "u1"), ("qs", "u1", 16)], mxfp4)
