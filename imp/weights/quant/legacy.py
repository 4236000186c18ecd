"""GGML's formats of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

A block is a float16 scale d (and a float16 minimum m), then the codes: value = d * (code - offset), or d * code + m.
Byte j of the 4-bit codes holds element j in its low half and element j + 16 in its high half; the fifth bits of the
5-bit codes are one little-endian 32-bit word, bit j for element j. Layouts: ggml-common.h of the GGML project.
"""

from __future__ import annotations

import numpy as np

from .format import blockwise, scale, unpack


def fours(blocks: np.ndarray) -> np.ndarray:
    return unpack(blocks["qs"], 16, 4).reshape(-1, 32)  # uint8 [n, 32], 0..15


def fives(blocks: np.ndarray) -> np.ndarray:
    return fours(blocks) | unpack(blocks["qh"], 1, 1).reshape(-1, 32) << np.uint8(4)  # uint8 [n, 32], 0..31


def q4_0(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * (fours(blocks).astype(np.float32) - np.float32(8))


def q4_1(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * fours(blocks).astype(np.float32) + scale(blocks, "m")


def q5_0(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * (fives(blocks).astype(np.float32) - np.float32(16))


def q5_1(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * fives(blocks).astype(np.float32) + scale(blocks, "m")


def q8_0(blocks: np.ndarray) -> np.ndarray:
    return scale(blocks, "d") * blocks["qs"].astype(np.float32)


Q4_0 = blockwise("Q4_0", 32, [("d", "<f2"), ("qs", "u1", 16)], q4_0)
Q4_1 = blockwise("Q4_1", 32, [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)], q4_1)
Q5_0 = blockwise("Q5_0", 32, [("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)], q5_0)
Q5_1 = blockwise("Q5_1", 32, [("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)], q5_1)
Q8_0 = blockwise("Q8_0", 32, [("d", "<f2"), ("qs", "i1", 32)], q8_0)
