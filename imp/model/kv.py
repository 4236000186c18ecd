"""How keys and values are kept: the number formats of the KV cache, defined in NumPy. What a backend keeps is judged by
this file, bit for bit. Knows no blocks and no memory.

A format keeps a vector, one head's key or value at one position, as floats or as a record: codes of 8 or 4 bits, one
for each number, then what they are scaled by. A record depends on its own vector alone, so what is read of a token is
the same however its prompt was cut up, whatever block it lies in, and on whichever day it was computed.

Codes are of vectors that are turned by a Walsh-Hadamard matrix: a few channels of a key are much larger than the
others, always the same ones, and would take the range from them; turned, every number is a mixture of all (QuaRot,
Ashkboos et al. 2024). Queries are turned alike, which leaves q.k as it is, and what attention makes of turned values is
turned back: the matrix is its own inverse.

From turned keys a constant vector is taken off, a different one for each layer and head. It changes all scores of a
query alike, which softmax does not see, and much of every key is the mean of all keys: `centring` has it.

Layout of a record: codes of 8 bits in order; of 4 bits in bytes of two, where byte j of the 8 that hold 16 numbers has
number j in its low half and number j + 8 in its high one. Then the scales, little-endian, group after group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..weights.quant import small_floats

Encoded = tuple[np.ndarray, np.ndarray]  # codes u8 [..., d], scales u8 [..., bytes]


@dataclass(frozen=True, slots=True, eq=False)
class KVFormat:
    """Floats of 16 or 32 bits where `encode` is None: `rounded` says what becomes of a number. Else codes.

    encode: float32 [..., d] -> Encoded.   decode: back to float32 [..., d].   scale_bytes: of a vector of d numbers.
    """

    name: str
    bits: int  # of a number
    rounded: Callable[[np.ndarray], np.ndarray] = lambda x: x
    encode: Callable[[np.ndarray], Encoded] | None = None
    decode: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    scale_bytes: Callable[[int], int] = lambda d: 0

    @property
    def turns(self) -> bool:
        """Whether vectors are turned, and keys centred, before they are kept."""
        return self.encode is not None

    def record_bytes(self, d: int) -> int:
        """One key or one value of a head of size d."""
        return d * self.bits // 8 + self.scale_bytes(d)

    def kept(self, x: np.ndarray, centre: np.ndarray | float = 0.0) -> np.ndarray:
        """What is read back of vectors x [..., d], float32: of codes still turned, and without the centre, which is
        that of turned vectors."""
        x = x.astype(np.float32)
        if self.encode is None or self.decode is None:
            return self.rounded(x)
        return self.decode(*self.encode(turned(x) - np.float32(centre)))

    def through(self, x: np.ndarray, centre: np.ndarray | float = 0.0) -> np.ndarray:
        """x [..., d] as attention over the cache sees it, float32."""
        kept = self.kept(x, centre)
        return turned(kept + np.float32(centre)) if self.turns else kept

    def unpacked(self, records: np.ndarray, d: int) -> np.ndarray:
        """float32 [..., d]: the numbers of records of codes, uint8 [..., bytes]."""
        assert self.decode is not None
        codes, scales = np.split(records, [d * self.bits // 8], axis=-1)
        if self.bits == 4:
            bytes_ = codes.reshape(*codes.shape[:-1], -1, 8)
            codes = np.stack([bytes_ & 15, bytes_ >> 4], axis=-2).reshape(*codes.shape[:-1], d)
        return self.decode(np.ascontiguousarray(codes), np.ascontiguousarray(scales))


def turning(d: int) -> int:
    """Numbers that are mixed with each other: the largest power of two that divides the head size."""
    return d & -d


def turned(x: np.ndarray) -> np.ndarray:
    """x [..., d] float32, every `turning(d)` of it times the symmetric Walsh-Hadamard matrix over its root."""
    size = turning(x.shape[-1])
    mixed, half = x.astype(np.float32), 1
    while half < size:
        pairs = mixed.reshape(*x.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        mixed = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        half *= 2
    return mixed * (np.float32(1) / np.sqrt(np.float32(size)))


# -- numbers -----------------------------------------------------------------------------------------------------------


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """uint16: the nearest bfloat16, ties to even."""
    raw = x.astype(np.float32).view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(raw: np.ndarray) -> np.ndarray:
    """float32 of bfloat16 bits, uint16."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def bf16(x: np.ndarray) -> np.ndarray:
    return bf16_values(bf16_bits(x))


def fp16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Small:
    """A float of few bits with a sign, whose largest codes are numbers too: no infinities (OCP, MX formats 1.0)."""

    exponent: int
    mantissa: int
    largest: float

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    def codes(self, x: np.ndarray) -> np.ndarray:
        """uint8: the nearest, ties to even; what is larger than the largest becomes that."""
        size = np.minimum(np.abs(x), np.float32(self.largest))
        raw, drop = size.view(np.uint32), 23 - self.mantissa
        normal = ((raw + ((1 << (drop - 1)) - 1) + ((raw >> drop) & 1)) >> drop) - ((127 - self.bias) << self.mantissa)
        # one unit in the last place of `one` is the smallest step: adding it rounds, and leaves the steps as low bits
        one = np.float32(2.0 ** (24 - self.bias - self.mantissa))
        small = (size + one).view(np.uint32) - one.view(np.uint32)
        code = np.where(size < 2.0 ** (1 - self.bias), small, normal)
        return (code | (np.signbit(x) << (self.exponent + self.mantissa))).astype(np.uint8)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """float32 of codes."""
        return small_floats(self.exponent, self.mantissa)[codes]


E4M3 = Small(4, 3, 448.0)
E2M1 = Small(2, 1, 6.0)


# -- formats -----------------------------------------------------------------------------------------------------------

INT4_GROUP = 16  # smaller ones would cost more bits, larger ones lose more: 32 half as much again
MX_GROUP = 32
NV_GROUP = 16


def group_of(d: int, most: int) -> int:
    """Numbers that share a scale: `most`, or what of it divides the head size."""
    return math.gcd(d, most)


def _grouped(x: np.ndarray, most: int) -> np.ndarray:
    """[..., d] as [..., groups, group]."""
    return x.reshape(*x.shape[:-1], -1, group_of(x.shape[-1], most))


def _magnitude(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max(axis=-1, keepdims=True)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, and 0 for the scale of zeros."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def _as_bytes(values: np.ndarray) -> np.ndarray:
    """[..., n] of any type as [..., n * size] bytes."""
    return np.ascontiguousarray(values).view(np.uint8)


def _bf16_of(scales: np.ndarray) -> np.ndarray:
    """bytes [..., 2 n] as float32 [..., n]."""
    return bf16_values(scales.view(np.uint16))


def _encode_int8(x: np.ndarray) -> Encoded:
    """One bfloat16 scale for the vector."""
    scale = bf16(_magnitude(x) * np.float32(1 / 127))
    codes = np.clip(np.rint(x * _inverse(scale)), -127, 127)
    return codes.astype(np.int8).view(np.uint8), _as_bytes(bf16_bits(scale))


def _decode_int8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return codes.view(np.int8).astype(np.float32) * _bf16_of(scales)


def _encode_fp8(x: np.ndarray) -> Encoded:
    """e4m3 with one bfloat16 scale for the vector."""
    scale = bf16(_magnitude(x) * np.float32(1 / 448))
    return E4M3.codes(x * _inverse(scale)), _as_bytes(bf16_bits(scale))


def _decode_fp8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return E4M3.values(codes) * _bf16_of(scales)


def _encode_int4(x: np.ndarray) -> Encoded:
    """(code - zero / 16) * step: steps and zeros of 8 bits for every 16 numbers, steps in units of one bfloat16 for the
    vector, which comes first. Every range has 0 in it."""
    groups = _grouped(x, INT4_GROUP)
    low, high = np.minimum(groups.min(axis=-1), 0), np.maximum(groups.max(axis=-1), 0)  # [..., groups]
    width = (high - low) * np.float32(1 / 15)
    unit = bf16(width.max(axis=-1, keepdims=True) * np.float32(1 / 255))
    steps = np.minimum(np.ceil(width * _inverse(unit)), 255)
    scale = steps * unit
    zeros = np.clip(np.rint(low * _inverse(scale) * np.float32(-16)), 0, 255)
    least = _least(zeros, scale)[..., None]
    codes = np.clip(np.rint((groups - least) * _inverse(scale)[..., None]), 0, 15)
    pairs = np.stack([steps, zeros], axis=-1).astype(np.uint8)
    scales = np.concatenate([_as_bytes(bf16_bits(unit)), pairs.reshape(*x.shape[:-1], -1)], axis=-1)
    return codes.astype(np.uint8).reshape(x.shape), scales


def _least(zeros: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The number of code 0."""
    return zeros * np.float32(-1 / 16) * scale


def _decode_int4(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    unit = _bf16_of(np.ascontiguousarray(scales[..., :2]))
    pairs = scales[..., 2:].astype(np.float32).reshape(*scales.shape[:-1], -1, 2)
    scale = pairs[..., 0] * unit
    values = _grouped(codes, INT4_GROUP).astype(np.float32) * scale[..., None]
    return (values + _least(pairs[..., 1], scale)[..., None]).reshape(codes.shape)


def _encode_mxfp4(x: np.ndarray) -> Encoded:
    """e2m1 with a power of two for every 32 numbers, e8m0: the power of the largest of them over 4."""
    groups = _grouped(x, MX_GROUP)
    power = np.maximum((_magnitude(groups).view(np.uint32) >> 23).astype(np.int32) - 2, 0).astype(np.uint32)
    codes = E2M1.codes(groups * ((254 - power) << 23).view(np.float32))
    return codes.reshape(x.shape), power[..., 0].astype(np.uint8)


def _decode_mxfp4(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    scale = (scales.astype(np.uint32) << 23).view(np.float32)  # 0 for the smallest power: such numbers are nothing
    return (E2M1.values(_grouped(codes, MX_GROUP)) * scale[..., None]).reshape(codes.shape)


def _encode_nvfp4(x: np.ndarray) -> Encoded:
    """e2m1 with an e4m3 scale for every 16 numbers, and these with one bfloat16 for the vector, which comes first."""
    groups = _grouped(x, NV_GROUP)
    whole = bf16(_magnitude(x) * np.float32(1 / (6 * 448)))
    scale_codes = E4M3.codes(_magnitude(groups)[..., 0] * np.float32(1 / 6) * _inverse(whole))
    scale = (E4M3.values(scale_codes) * whole)[..., None]
    codes = E2M1.codes(groups * _inverse(scale))
    return codes.reshape(x.shape), np.concatenate([_as_bytes(bf16_bits(whole)), scale_codes], axis=-1)


def _decode_nvfp4(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    whole = _bf16_of(np.ascontiguousarray(scales[..., :2]))
    scale = (E4M3.values(scales[..., 2:]) * whole)[..., None]
    return (E2M1.values(_grouped(codes, NV_GROUP)) * scale).reshape(codes.shape)


FORMATS = {
    each.name: each
    for each in (
        KVFormat("fp32", 32),
        KVFormat("fp16", 16, rounded=fp16),
        KVFormat("bf16", 16, rounded=bf16),
        KVFormat("fp8", 8, encode=_encode_fp8, decode=_decode_fp8, scale_bytes=lambda d: 2),
        KVFormat("int8", 8, encode=_encode_int8, decode=_decode_int8, scale_bytes=lambda d: 2),
        KVFormat(
            "int4",
            4,
            encode=_encode_int4,
            decode=_decode_int4,
            scale_bytes=lambda d: 2 + 2 * (d // group_of(d, INT4_GROUP)),
        ),
        KVFormat(
            "nvfp4",
            4,
            encode=_encode_nvfp4,
            decode=_decode_nvfp4,
            scale_bytes=lambda d: 2 + d // group_of(d, NV_GROUP),
        ),
        KVFormat(
            "mxfp4", 4, encode=_encode_mxfp4, decode=_decode_mxfp4, scale_bytes=lambda d: d // group_of(d, MX_GROUP)
        ),
    )
}
