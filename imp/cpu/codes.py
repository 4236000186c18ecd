"""Keys and values as codes of few bits (model/kv.py), in machine code: numbers, what they are scaled by, and the two
together as a format the kernels know (kept.py). Everything is computed as model/kv.py does it, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..model import kv
from ..model.kv import FORMATS, Small
from .emit import Emission
from .kept import BLOCK, FLOAT, Kept
from .simd import (
    F32,
    I8,
    I16,
    I32,
    I64,
    V,
    Var,
    absolute,
    bits,
    broadcast,
    call,
    constant,
    f32x8,
    from_bf16,
    from_half,
    i32x8,
    int64,
    lanes_of,
    largest,
    load,
    load_f32x8,
    loop,
    maximum,
    micro,
    minimum,
    select,
    smallest,
    store,
    store_as_i8,
    to_bf16,
    to_int,
    zeros,
)

Bytes = Callable[[Any], V]  # byte i of the scales of one vector, or of 8 keys side by side, as int32 lanes


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A code of 8 or 4 bits. A reader multiplies what `decode` makes of it by `lift`, which is part of the scale."""

    bits: int
    decode: Callable[[V], V]  # int32 lanes -> float lanes
    encode: Callable[[V], V]  # floats in units of the scale -> int32 lanes
    lift: float = 1.0


def _small(form: Small) -> Number:
    """Its bits are moved to where a half has them: that is the number, but for a power of two."""
    width = form.exponent + form.mantissa
    drop = 23 - form.mantissa

    def decode(code: V) -> V:
        raw = ((code & (1 << width)) << (15 - width)) | ((code & ((1 << width) - 1)) << (10 - form.mantissa))
        return from_half(V(Emission.builder.trunc(raw.ir, lanes_of(raw, I16))))

    def encode(x: V) -> V:
        size = minimum(absolute(x), constant(form.largest, f32x8.ir))
        raw = bits(size, i32x8.ir)
        up = (raw >> drop) & 1
        normal = ((raw + ((1 << (drop - 1)) - 1) + up) >> drop) - ((127 - form.bias) << form.mantissa)
        one = constant(2.0 ** (24 - form.bias - form.mantissa), f32x8.ir)
        small = bits(size + one, i32x8.ir) - bits(one, i32x8.ir)
        code = select(size < 2.0 ** (1 - form.bias), small, normal)
        return code | ((bits(x, i32x8.ir) >> 31) << width)

    return Number(width + 1, decode, encode, 2.0 ** (15 - form.bias))


def _integer(width: int, low: int, high: int) -> Number:
    def decode(code: V) -> V:
        if low < 0:
            code = V(Emission.builder.ashr((code << 24).ir, constant(24, code.type).ir))
        return _integer_lanes(code)

    def encode(x: V) -> V:
        return to_int(minimum(maximum(x, constant(low, f32x8.ir)), constant(high, f32x8.ir)))

    return Number(width, decode, encode)


E4M3, E2M1 = _small(kv.E4M3), _small(kv.E2M1)
INT8, UINT8, UINT4 = _integer(8, -127, 127), _integer(8, 0, 255), _integer(4, 0, 15)


def _bf16_at(byte: Bytes, index: Any) -> V:
    return bits((byte(index) << 16) | (byte(index + 1) << 24), lanes_of(byte(index), F32))


def _inverse(scale: V) -> V:
    """1 / scale in all lanes, and 0 for the scale of zeros."""
    return broadcast(V(Emission.builder.select((scale > 0).ir, (1.0 / scale).ir, constant(0, F32).ir)), 8)


def _extremes(x: V, count: V) -> tuple[V, V]:
    """The least and the largest of floats, in every lane a part of them."""
    low, high = Var(load_f32x8(x)), Var(load_f32x8(x))
    for i in loop(8, count, 8):
        v = load_f32x8(x + i * 4)
        low.set(minimum(low, v))
        high.set(maximum(high, v))
    return V(low.ir), V(high.ir)


def _magnitude(x: V, count: V) -> V:
    low, high = _extremes(x, count)
    return largest(maximum(absolute(low), absolute(high)))


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """What the codes of a format are scaled by.

    most: numbers that share a scale; 0: all of a vector.
    read: (bytes of the scales, group) -> the scale, and what is added after it, or None.
    begin: writes what belongs to the whole vector (x, d, scales) and returns it for `write`.
    write: writes those of a group (its numbers, how many, scales, group, what begin returned) and returns the inverse
    of the scale and what is taken off before it, or None, in all lanes.
    """

    most: int
    read: Callable[[Bytes, Any], tuple[V, V | None]]
    write: Callable[[V, V, V, Any, Any], tuple[V, V | None]]
    begin: Callable[[V, V, V], Any] = lambda x, d, scales: None

    def group(self, d: V) -> V:
        """gcd(d, most): both powers of two below `most`."""
        if not self.most:
            return d
        size = d & (0 - d)
        return V(Emission.builder.select((size < self.most).ir, size.ir, constant(self.most, I64).ir))


def one_scale(top: float) -> Scales:
    def read(byte: Bytes, g: Any) -> tuple[V, V | None]:
        return _bf16_at(byte, 0), None

    def write(x: V, count: V, scales: V, g: Any, whole: Any) -> tuple[V, V | None]:
        scale = to_bf16(_magnitude(x, count) * (1 / top))
        store(scales, scale)
        return _inverse(from_bf16(scale)), None

    return Scales(0, read, write)


def _read_step_and_zero(byte: Bytes, g: Any) -> tuple[V, V | None]:
    step, zero = (_integer_lanes(byte(g * 2 + at)) for at in (2, 3))
    scale = step * _bf16_at(byte, 0)
    return scale, zero * (-1 / 16) * scale


def _integer_lanes(code: V) -> V:
    return V(Emission.builder.sitofp(code.ir, lanes_of(code, F32)))


def _range(x: V, count: V) -> tuple[V, V]:
    """The least and the largest of floats, 0 among them."""
    low, high = _extremes(x, count)
    return smallest(minimum(low, zeros(f32x8))), largest(maximum(high, zeros(f32x8)))


def _begin_step_and_zero(x: V, d: V, scales: V) -> V:
    widest = Var(constant(0, F32))
    size = INT4.group(d)
    for g in loop(d // size):
        low, high = _range(x + g * size * 4, size)
        width = (high - low) * (1 / 15)
        widest.set(V(Emission.builder.select((width > widest).ir, width.ir, widest.ir)))
    unit = to_bf16(V(widest.ir) * (1 / 255))
    store(scales, unit)
    return from_bf16(unit)


def _write_step_and_zero(x: V, count: V, scales: V, g: Any, unit: V) -> tuple[V, V | None]:
    low, high = _range(x, count)
    width = broadcast((high - low) * (1 / 15), 8)
    steps = minimum(call("llvm.ceil.v8f32", f32x8.ir, width * _inverse(unit)), constant(255, f32x8.ir))
    scale = steps * broadcast(unit, 8)
    inverse = _inverse(_first(scale))
    zero = UINT8.encode(broadcast(low, 8) * inverse * -16.0)
    store(scales + 2 + g * 2, V(Emission.builder.trunc(_first(to_int(steps)).ir, I8)))
    store(scales + 3 + g * 2, V(Emission.builder.trunc(_first(zero).ir, I8)))
    return inverse, _integer_lanes(zero) * (-1 / 16) * scale


def _first(v: V) -> V:
    return V(Emission.builder.extract_element(v.ir, constant(0, I32).ir))


def _read_power(byte: Bytes, g: Any) -> tuple[V, V | None]:
    power = byte(g) << 23
    return bits(power, lanes_of(power, F32)), None


def _write_power(x: V, count: V, scales: V, g: Any, whole: Any) -> tuple[V, V | None]:
    b = Emission.builder
    power = (bits(_magnitude(x, count), I32) >> 23) - 2
    power = V(b.select((power > 0).ir, power.ir, constant(0, I32).ir))
    store(scales + g, V(b.trunc(power.ir, I8)))
    return broadcast(bits((254 - power) << 23, F32), 8), None


def _read_small_scale(byte: Bytes, g: Any) -> tuple[V, V | None]:
    return E4M3.decode(byte(g + 2)) * E4M3.lift * _bf16_at(byte, 0), None


def _begin_small_scale(x: V, d: V, scales: V) -> V:
    whole = to_bf16(_magnitude(x, d) * (1 / (6 * 448)))
    store(scales, whole)
    return from_bf16(whole)


def _write_small_scale(x: V, count: V, scales: V, g: Any, whole: V) -> tuple[V, V | None]:
    own = _magnitude(x, count) * (1 / 6)
    code = _first(E4M3.encode(broadcast(own, 8) * _inverse(whole)))
    store(scales + 2 + g, V(Emission.builder.trunc(code.ir, I8)))
    return _inverse(E4M3.decode(code) * E4M3.lift * whole), None


INT4 = Scales(kv.INT4_GROUP, _read_step_and_zero, _write_step_and_zero, _begin_step_and_zero)
NVFP4 = Scales(kv.NV_GROUP, _read_small_scale, _write_small_scale, _begin_small_scale)
MXFP4 = Scales(kv.MX_GROUP, _read_power, _write_power)


def coded(name: str, number: Number, scales: Scales) -> Kept:
    wide = number.bits == 8

    def code_bytes(d: V) -> V:
        return d if wide else d >> 1

    def parts(raw: V) -> tuple[V, ...]:
        """The codes in bytes, as int32 lanes: of 4 bits those in the low halves and those in the high ones."""
        return (raw,) if wide else (raw & 15, raw >> 4)

    def numbers(raw: V, scale: V, least: V | None) -> list[V]:
        found = [number.decode(code) * scale for code in parts(raw)]
        return found if least is None else [each + least for each in found]

    def scale_of(byte: Bytes, g: V) -> tuple[V, V | None]:
        scale, least = scales.read(byte, g)
        return scale * number.lift, least

    @micro(int64, int64, int64, int64, int64, int64)
    def spread(head: V, k: V, v: V, d: V, keys: V, record: V) -> None:
        size = scales.group(d)
        for half in (0, 8):
            rows, tile = head + half, k + half * 4

            def byte(index: Any, rows: V = rows) -> V:
                return _bytes8(rows + (code_bytes(d) + index) * BLOCK)

            for g in loop(d // size):
                scale, least = scale_of(byte, g)
                for c in loop(g * size, (g + 1) * size, 16 if not wide else 8):
                    for i in range(8):
                        raw = _bytes8(rows + (code_bytes(c) + i) * BLOCK)
                        for part, each in enumerate(numbers(raw, scale, least)):
                            store(tile + (c + (i + part * 8)) * (BLOCK * 4), each)
        for key in loop(keys):
            at, out = head + (key + BLOCK) * record, v + key * d * 4

            def own(index: Any, at: V = at) -> V:
                return V(Emission.builder.zext(load(at + (code_bytes(d) + index), I8).ir, I32))

            for g in loop(d // size):
                scale, least = scale_of(own, g)
                scale, least = broadcast(scale, 8), None if least is None else broadcast(least, 8)
                for c in loop(g * size, (g + 1) * size, 16 if not wide else 8):
                    for part, each in enumerate(numbers(_bytes8(at + code_bytes(c)), scale, least)):
                        store(out + (c + part * 8) * 4, each)

    @micro(int64, int64, int64)
    def encode(x: V, record: V, d: V) -> None:
        size, own = scales.group(d), record + code_bytes(d)
        whole = scales.begin(x, d, own)
        for g in loop(d // size):
            inverse, least = scales.write(x + g * size * 4, size, own, g, whole)
            for c in loop(g * size, (g + 1) * size, 16 if not wide else 8):
                found = []
                for part in range(1 if wide else 2):
                    each = load_f32x8(x + (c + part * 8) * 4)
                    found.append(number.encode((each if least is None else each - least) * inverse))
                store_as_i8(record + code_bytes(c), found[0] if wide else found[0] | (found[1] << 4))

    @micro(int64, int64, int64, int64, int64, int64)
    def store_key(x: V, head: V, position: V, d: V, record: V, scratch: V) -> None:
        encode(x, scratch, d)
        for i in loop(record):
            store(head + i * BLOCK + position, load(scratch + i, I8))

    @micro(int64, int64, int64, int64, int64, int64)
    def store_value(x: V, head: V, position: V, d: V, record: V, scratch: V) -> None:
        encode(x, head + (position + BLOCK) * record, d)

    return Kept(FORMATS[name], False, FLOAT, spread, store_key, store_value)


def _bytes8(address: V) -> V:
    """8 bytes as int32 lanes, 0 to 255."""
    return V(Emission.builder.zext(load(address, ir.VectorType(I8, 8)).ir, i32x8.ir))
