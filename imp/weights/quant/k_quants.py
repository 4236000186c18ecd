"""GGML's K formats: super-blocks of 256 elements whose sub-blocks have small integer scales. Q2_K to Q6_K.

value = (d * sub_scale) * code, less (dmin * sub_minimum) where the format has minimums. The products are formed in
that order, in float32, because the result is compared bit for bit. Layouts: ggml-common.h of the GGML project.
"""

from __future__ import annotations

import numpy as np

from .format import blockwise, scale, unpack


def f32(codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.float32)


def six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minimums of the 8 sub-blocks of Q4_K and Q5_K, 0..63: uint8 [n, 12] -> two of uint8 [n, 8].

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minimums 0..3 in their low six bits. Bytes 8..11 hold the low four bits
    of scales 4..7 (low halves) and of minimums 4..7 (high halves), whose upper two bits top bytes 0..3 and 4..7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minimums


def q3_scales(packed: np.ndarray) -> np.ndarray:
    """The 16 signed sub-scales of Q3_K: uint8 [n, 12] -> float32 [n, 16], -32..31.

    Low four bits in the halves of bytes 0..7, the upper two in bytes 8..11, a quarter of them per bit pair.
    """
    low = unpack(packed[:, :8], 8, 4).reshape(-1, 16)
    high = unpack(packed[:, 8:], 4, 2).reshape(-1, 16)
    return f32(low | high << np.uint8(4)) - np.float32(32)


def q2_k(blocks: np.ndarray) -> np.ndarray:
    scales = scale(blocks, "d") * f32(blocks["scales"] & 15)  # [n, 16]
    minimums = scale(blocks, "dmin") * f32(blocks["scales"] >> 4)
    codes = unpack(blocks["qs"], 32, 2).reshape(-1, 16, 16)
    return scales[:, :, None] * f32(codes) - minimums[:, :, None]


def q3_k(blocks: np.ndarray) -> np.ndarray:
    scales = scale(blocks, "d") * q3_scales(blocks["scales"])  # [n, 16]
    low = unpack(blocks["qs"], 32, 2).reshape(-1, 16, 16)
    high = unpack(blocks["hmask"], 32, 1).reshape(-1, 16, 16)  # a set bit means: do not subtract 4
    return scales[:, :, None] * (f32(low | high << np.uint8(2)) - np.float32(4))


def q4_k(blocks: np.ndarray) -> np.ndarray:
    return with_minimums(blocks, unpack(blocks["qs"], 32, 4))


def q5_k(blocks: np.ndarray) -> np.ndarray:
    return with_minimums(blocks, unpack(blocks["qs"], 32, 4) | unpack(blocks["qh"], 32, 1) << np.uint8(4))


def with_minimums(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """codes: uint8 [n, 8, 32] -> float32 [n, 8, 32]"""
    scales, minimums = six_bit_pairs(blocks["scales"])
    scales = scale(blocks, "d") * f32(scales)  # [n, 8]
    minimums = scale(blocks, "dmin") * f32(minimums)
    return scales[:, :, None] * f32(codes) - minimums[:, :, None]


def q6_k(blocks: np.ndarray) -> np.ndarray:
    scales = scale(blocks, "d") * f32(blocks["scales"])  # [n, 16]
    low = unpack(blocks["ql"], 64, 4).reshape(-1, 16, 16)
    high = unpack(blocks["qh"], 32, 2).reshape(-1, 16, 16)
    return scales[:, :, None] * (f32(low | high << np.uint8(4)) - np.float32(32))


Q2_K = blockwise("Q2_K", 256, [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")], q2_k)
Q3_K = blockwise("Q3_K", 256, [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")], q3_k)
Q4_K = blockwise("Q4_K", 256, [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)], q4_k)
Q5_K = blockwise(
    "Q5_K", 256, [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)], q5_k
)
Q6_K = blockwise("Q6_K", 256, [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")], q6_k)
