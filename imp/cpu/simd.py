"""SIMD vocabulary of the kernels: loads and stores, arithmetic, byte products, atomics.

There are two ways to use it, with the same names:
  * in jitted kernels, `f32x8` and its relatives are ordinary values: `y = fma(load_f32x8(p), splat(2.0), y) + x`;
  * in a micro-kernel (emit.py), on the values of the machine code being built.

Addresses are int64. Loads and stores need no alignment. Float operations are never reassociated or contracted, so a
result depends on the order written here and on nothing else. A vector has 8 or 16 float lanes whatever the machine:
LLVM splits it where registers are shorter. Words that take vectors take either length. Some instructions no generic IR
reaches reliably (pmaddubsw, pmaddwd, vpdpbusd); where they are missing the same operations are written out. The words
of emit.py are reachable from here.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..processor import machine
from .emit import (  # noqa: F401 (see above)
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    VOID,
    Family,
    Micro,
    V,
    Var,
    Vector,
    alike,
    bits,
    boolean,
    call,
    compiling_for,
    constant,
    f32x8,
    f32x16,
    float32,
    float64,
    floats,
    i8x32,
    i8x64,
    i16x16,
    i16x32,
    i32x8,
    i32x16,
    int32,
    int64,
    integer,
    ints,
    lanes_of,
    loop,
    mask8,
    mask16,
    micro,
    octets,
    runs,
    same,
    shorts,
    shuffle,
    void,
    when,
    zeros,
)
from .emit import Emission as _Emission
from .variants import detect  # noqa: F401 (see above)

# Memory


def load(address: V, kind: Any) -> V:
    """A value of LLVM type `kind` from any address."""
    b = _Emission.builder
    return V(b.load(b.inttoptr(address.ir, kind.as_pointer()), align=1))


@micro(int64, Any)
def store(address: V, value: V) -> None:
    """Any scalar or vector, as wide as its type."""
    b, raw = _Emission.builder, value.ir
    b.store(raw, b.inttoptr(address.ir, raw.type.as_pointer()), align=1)


@micro(int64, int64, returns=int64)
def word(block: V, index: V) -> V:
    """int64 number `index` of an argument block or of the step header."""
    return load(block + index * 8, I64)


@micro(int64, int64, returns=float32)
def real(block: V, index: V) -> V:
    """Word `index` of an argument block, written there as a float64."""
    return V(_Emission.builder.fptrunc(load(block + index * 8, F64).ir, F32))


def _widened(address: V, kind: Any, signed: bool) -> V:
    b = _Emission.builder
    raw = load(address, kind).ir
    return V(b.sext(raw, I64) if signed else b.zext(raw, I64))


@micro(int64, returns=int64)
def load_i32(address: V) -> V:
    return _widened(address, I32, signed=True)


@micro(int64, returns=int64)
def load_u32(address: V) -> V:
    return _widened(address, I32, signed=False)


@micro(int64, returns=int64)
def load_i8(address: V) -> V:
    return _widened(address, I8, signed=True)


@micro(int64, returns=int64)
def load_u8(address: V) -> V:
    return _widened(address, I8, signed=False)


@micro(int64, returns=float32)
def load_f32(address: V) -> V:
    return load(address, F32)


@micro(int64, returns=float64)
def load_f64(address: V) -> V:
    return load(address, F64)


@micro(int64, returns=float32)
def load_f16(address: V) -> V:
    return from_half(load(address, I16))


@micro(int64, returns=float32)
def load_bf16(address: V) -> V:
    return bits(V(_Emission.builder.zext(load(address, I16).ir, I32)) << 16, F32)


@micro(int64, float32)
def store_f32(address: V, value: V) -> None:
    store(address, value)


@micro(int64, int32)
def store_i32(address: V, value: V) -> None:
    store(address, value)


@micro(int64, float32)
def store_f16(address: V, value: V) -> None:
    store(address, to_half(value))


@micro(int64, float32)
def store_bf16(address: V, value: V) -> None:
    store(address, to_bf16(value))


@micro(int64, returns=f32x8)
def load_f32x8(address: V) -> V:
    return load(address, f32x8.ir)


@micro(int64, returns=i8x32)
def load_i8x32(address: V) -> V:
    return load(address, i8x32.ir)


@micro(int64, returns=f32x16)
def load_f32x16(address: V) -> V:
    return load(address, f32x16.ir)


@micro(int64, returns=i32x16)
def load_i32x16(address: V) -> V:
    return load(address, i32x16.ir)


@micro(int64, returns=i8x64)
def load_i8x64(address: V) -> V:
    return load(address, i8x64.ir)


@micro(int64, returns=f32x8)
def load_f16x8(address: V) -> V:
    """8 halves as floats."""
    return from_half(load(address, ir.VectorType(I16, 8)))


@micro(int64, returns=f32x16)
def load_f16x16(address: V) -> V:
    """16 halves as floats."""
    return from_half(load(address, ir.VectorType(I16, 16)))


@micro(int64, returns=f32x8)
def load_bf16x8(address: V) -> V:
    """8 bfloat16 as floats."""
    return from_bf16(load(address, ir.VectorType(I16, 8)))


@micro(int64, returns=f32x16)
def load_bf16x16(address: V) -> V:
    """16 bfloat16 as floats."""
    return from_bf16(load(address, ir.VectorType(I16, 16)))


@micro(int64, returns=i32x8)
def load_i8x8(address: V) -> V:
    """8 signed bytes as int32."""
    return V(_Emission.builder.sext(load(address, ir.VectorType(I8, 8)).ir, i32x8.ir))


@micro(int64, returns=i32x16)
def load_i8x16(address: V) -> V:
    """16 signed bytes as int32."""
    return V(_Emission.builder.sext(load(address, ir.VectorType(I8, 16)).ir, i32x16.ir))


@micro(int64, floats)
def store_as_f16(address: V, value: V) -> None:
    """A vector of floats as halves, to nearest even."""
    store(address, to_half(value))


@micro(int64, floats)
def store_as_bf16(address: V, value: V) -> None:
    """A vector of floats as bfloat16, to nearest even."""
    store(address, to_bf16(value))


@micro(int64, ints)
def store_as_i8(address: V, value: V) -> None:
    """The low byte of each lane."""
    store(address, V(_Emission.builder.trunc(value.ir, lanes_of(value, I8))))


def from_half(h: V) -> V:
    """float of IEEE half bits (int16 lanes)."""
    b = _Emission.builder
    floats, ints = lanes_of(h, F32), lanes_of(h, I32)
    if runs("avx2"):
        return V(b.fpext(b.bitcast(h.ir, lanes_of(h, F16)), floats))
    wide = V(b.zext(h.ir, ints))
    # exponents differ by 112; a multiplication moves it and makes subnormals normal
    magnitude = bits((wide & 0x7FFF) << 13, floats) * 2.0**112
    whole = bits(magnitude, ints)
    special = V(b.select(((wide & 0x7C00).equals(0x7C00)).ir, (whole | 0x7F800000).ir, whole.ir))
    return bits(special | ((wide & 0x8000) << 16), floats)


def to_half(x: V) -> V:
    """IEEE half bits (int16 lanes) of floats, to nearest even."""
    b = _Emission.builder
    if runs("avx2"):
        return bits(V(b.fptrunc(x.ir, lanes_of(x, F16))), lanes_of(x, I16))
    raw = bits(x, lanes_of(x, I32))
    magnitude = raw & 0x7FFFFFFF
    normal = (magnitude + (((magnitude >> 13) & 1) + 0xFFF) - (112 << 23)) >> 13
    # adding 0.5 puts the last bit of a half subnormal at the last bit of the float
    small = bits(bits(magnitude, lanes_of(x, F32)) + 0.5, lanes_of(x, I32)) - 0x3F000000
    huge = V(b.select((magnitude > 0x7F800000).ir, constant(0x7E00, raw.type).ir, constant(0x7C00, raw.type).ir))
    finite = V(b.select((magnitude < 0x38800000).ir, small.ir, normal.ir))
    half = V(b.select((magnitude >= 0x47800000).ir, huge.ir, finite.ir))
    return V(b.trunc((half | ((raw >> 16) & 0x8000)).ir, lanes_of(x, I16)))


def to_bf16(x: V) -> V:
    """bfloat16 bits (int16 lanes) of finite floats, to nearest even."""
    raw = bits(x, lanes_of(x, I32))
    return V(_Emission.builder.trunc(((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).ir, lanes_of(x, I16)))


def from_bf16(h: V) -> V:
    """float of bfloat16 bits (int16 lanes)."""
    return bits(V(_Emission.builder.zext(h.ir, lanes_of(h, I32))) << 16, lanes_of(h, F32))


def upper_halves(a: V, b: V, order: list[int]) -> V:
    """The upper halves of int32 lanes of a and b, in this order; lane i of b is number count + i."""
    builder, count = _Emission.builder, a.type.count
    words = ir.VectorType(I16, 2 * count)
    places = ir.Constant(ir.VectorType(I32, len(order)), [2 * lane + 1 for lane in order])
    return V(builder.shuffle_vector(bits(a, words).ir, bits(b, words).ir, places))


# Making and taking apart vectors


def broadcast(scalar: V, count: int) -> V:
    b, raw = _Emission.builder, scalar.ir
    vector = ir.VectorType(raw.type, count)
    first = b.insert_element(ir.Constant(vector, ir.Undefined), raw, ir.Constant(I32, 0))
    return shuffle(V(first), [0] * count)


@micro(float32, returns=f32x8)
def splat(x: V) -> V:
    return broadcast(x, 8)


@micro(float32, returns=f32x16)
def splat16(x: V) -> V:
    return broadcast(x, 16)


@micro(int32, returns=i32x8)
def splat_i32(x: V) -> V:
    return broadcast(x, 8)


@micro(int32, returns=i32x16)
def splat16_i32(x: V) -> V:
    return broadcast(x, 16)


@micro(int64, returns=f32x8)
def broadcast_f32(address: V) -> V:
    """The float at an address in every lane."""
    return broadcast(load(address, F32), 8)


@micro(int64, returns=f32x16)
def broadcast16_f32(address: V) -> V:
    return broadcast(load(address, F32), 16)


@micro(int64, returns=i8x64)
def broadcast16_i8x4(address: V) -> V:
    """The 4 bytes at an address, 16 times."""
    return bits(broadcast(load(address, I32), 16), i8x64.ir)


@micro(floats, int64, returns=float32)
def lane(v: V, index: V) -> V:
    return V(_Emission.builder.extract_element(v.ir, index.ir))


@micro(ints, returns=alike(floats))
def to_float(v: V) -> V:
    return V(_Emission.builder.sitofp(v.ir, lanes_of(v, F32)))


@micro(floats, returns=alike(ints))
def to_int(v: V) -> V:
    """To the nearest integer, ties to even."""
    return V(_Emission.builder.fptosi(rounded(v).ir, lanes_of(v, I32)))


@micro(floats, returns=alike(ints))
def float_bits(v: V) -> V:
    return bits(v, lanes_of(v, I32))


@micro(ints, returns=alike(floats))
def bits_float(v: V) -> V:
    return bits(v, lanes_of(v, F32))


# Arithmetic. The operators + - * / & | ^ << >> and comparisons of jitted code are in numba_types.py.


@micro(floats, floats, floats, returns=same)
def fma(a: V, b: V, c: V) -> V:
    """a * b + c, rounded once where the machine can."""
    return call(f"llvm.{'fma' if runs('avx2') else 'fmuladd'}.v{a.type.count}f32", a.type, a, b, c)


@micro(floats, floats, returns=same)
def maximum(a: V, b: V) -> V:
    """The larger in each lane; where one is NaN, b."""
    return V(_Emission.builder.select((a > b).ir, a.ir, b.ir))


@micro(floats, floats, returns=same)
def minimum(a: V, b: V) -> V:
    """The smaller in each lane; where one is NaN, b."""
    return V(_Emission.builder.select((a < b).ir, a.ir, b.ir))


@micro(floats, returns=same)
def absolute(a: V) -> V:
    return call(f"llvm.fabs.v{a.type.count}f32", a.type, a)


@micro(floats, returns=same)
def rounded(a: V) -> V:
    """To the nearest integer, ties to even."""
    return call(f"llvm.nearbyint.v{a.type.count}f32", a.type, a)


@micro(Family(mask8, mask16), Any, Any, returns=lambda mask, a, b: a)
def select(mask: V, a: V, b: V) -> V:
    """a where the mask is set, else b."""
    return V(_Emission.builder.select(mask.ir, a.ir, b.ir))


def _folded(v: V, combine: Callable[[V, V], V]) -> V:
    """Halves are combined with each other until one lane is left."""
    count = v.type.count
    while count > 1:
        count //= 2
        v = combine(shuffle(v, list(range(count))), shuffle(v, list(range(count, 2 * count))))
    return V(_Emission.builder.extract_element(v.ir, ir.Constant(I32, 0)))


@micro(floats, returns=float32)
def total(v: V) -> V:
    """Sum of the lanes, always in the same order."""
    return _folded(v, lambda a, b: a + b)


@micro(ints, returns=int32)
def total_i32(v: V) -> V:
    return _folded(v, lambda a, b: a + b)


@micro(floats, returns=float32)
def largest(v: V) -> V:
    return _folded(v, maximum)


@micro(floats, returns=float32)
def smallest(v: V) -> V:
    return _folded(v, minimum)


@micro(floats, returns=same)
def exp(x: V) -> V:
    """e^x to 2e-7 relative; below -87 the result is the smallest normal number, above 88 it stays e^88.

    x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7, 2^n through the exponent bits."""
    x = minimum(maximum(x, -87.0), 88.0)
    n = rounded(x * 1.4426950408889634)
    r = fma(n, -0.693359375, x)  # ln 2 in two parts: the first has few bits, so n times it is exact
    r = fma(n, 2.12194440e-4, r)
    p = constant(1 / 5040, x.type)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        p = fma(p, r, coefficient)
    return p * bits((to_int(n) + 127) << 23, x.type)


@micro(floats, returns=same)
def tanh(x: V) -> V:
    """tanh x to 2e-7 absolute."""
    return 1.0 - 2.0 / (exp(x * 2.0) + 1.0)


# Byte dot products


def _pairs_summed(wide: V) -> V:
    count = wide.type.count
    return shuffle(wide, list(range(0, count, 2))) + shuffle(wide, list(range(1, count, 2)))


@micro(octets, octets, returns=alike(shorts))
def dot_pairs_u8i8(a: V, b: V) -> V:
    """a[2i] b[2i] + a[2i+1] b[2i+1] in 16 bits: a unsigned, b signed. The caller keeps sums below 2^15."""
    if runs("avx2") and a.type == i8x32.ir:
        return call("llvm.x86.avx2.pmadd.ub.sw", i16x16.ir, a, b)
    wide, builder = lanes_of(a, I16), _Emission.builder
    return _pairs_summed(V(builder.zext(a.ir, wide)) * V(builder.sext(b.ir, wide)))


@micro(shorts, shorts, returns=alike(ints))
def dot_pairs_i16(a: V, b: V) -> V:
    """a[2i] b[2i] + a[2i+1] b[2i+1] in 32 bits."""
    if runs("avx2") and a.type == i16x16.ir:
        return call("llvm.x86.avx2.pmadd.wd", i32x8.ir, a, b)
    wide, builder = lanes_of(a, I32), _Emission.builder
    return _pairs_summed(V(builder.sext(a.ir, wide)) * V(builder.sext(b.ir, wide)))


@micro(ints, octets, octets, returns=same)
def add_quads_u8i8(total: V, a: V, b: V) -> V:
    """total[i] + a[4i] b[4i] + ... + a[4i+3] b[4i+3] in 32 bits: a unsigned, b signed. Below the kind "vnni" the caller
    keeps the sums of two below 2^15."""
    size = 32 * total.type.count
    if runs("avx512" if size == 512 else "vnni"):
        return call(f"llvm.x86.avx512.vpdpbusd.{size}", total.type, total, a, b)
    return total + dot_pairs_i16(dot_pairs_u8i8(a, b), 1)


def smaller(a: V, b: V) -> V:
    """Of two integers."""
    return V(_Emission.builder.select((a < b).ir, a.ir, b.ir))


def nibbles(packed: V) -> tuple[V, V]:
    """The low and the high 4 bits of every byte, as bytes."""
    count = packed.type.count
    shifted = bits(bits(packed, ir.VectorType(I16, count // 2)) >> 4, packed.type)
    return packed & 15, shifted & 15


def kept_apart(v: V) -> V:
    """The same value, about which the compiler knows nothing: it does not put sums behind it in another order, in which
    they would need more registers than there are."""
    if not runs("avx2"):
        return v
    return V(_Emission.builder.asm(ir.FunctionType(v.type, [v.type]), "", "=x,0", [v.ir], False))


# Threads and the machine


@micro(int64, int64, returns=int64)
def atomic_add(address: V, amount: V) -> V:
    """Adds to an int64 and returns what was there."""
    b = _Emission.builder
    return V(b.atomic_rmw("add", b.inttoptr(address.ir, I64.as_pointer()), amount.ir, "seq_cst"))


@micro(int64, returns=int64)
def atomic_load(address: V) -> V:
    b = _Emission.builder
    return V(b.load_atomic(b.inttoptr(address.ir, I64.as_pointer()), "seq_cst", 8))


@micro(int64, int64)
def atomic_store(address: V, value: V) -> None:
    b = _Emission.builder
    b.store_atomic(value.ir, b.inttoptr(address.ir, I64.as_pointer()), "seq_cst", 8)


@micro()
def pause() -> None:
    """Tell the core that this is a waiting loop."""
    if machine() == "x86_64":
        call("llvm.x86.sse2.pause", VOID)
    elif machine() == "aarch64":
        call("llvm.aarch64.hint", VOID, constant(1, I32))


@micro(int64)
def prefetch(address: V) -> None:
    """Ask for a cache line that will be read soon."""
    pointer = V(_Emission.builder.inttoptr(address.ir, I8.as_pointer()))
    call("llvm.prefetch.p0", VOID, pointer, constant(0, I32), constant(3, I32), constant(1, I32))


@micro(int64)
def prefetch_to_write(address: V) -> None:
    """Ask for a cache line that will be written soon, so that no other core has it by then."""
    pointer = V(_Emission.builder.inttoptr(address.ir, I8.as_pointer()))
    call("llvm.prefetch.p0", VOID, pointer, constant(1, I32), constant(3, I32), constant(1, I32))
