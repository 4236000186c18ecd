"""Instructions on single elements: conversions, floating point, integers, logic."""

import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tests.gpu.micro.case import Case, elementwise
from tests.gpu.micro.rounding import BF16, E4M3, E5M2, F16, F32, TF32, Format

COUNT = 512
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_EDGES_32 = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFF, 0x10000, 31, 32, 33, 255)


def _words(name: str, bits: int) -> np.ndarray:
    """Numbers of all magnitudes, with the edges; the same for the same name."""
    rng = random.Random(name)
    edges = [e for e in _EDGES_32 if e < 1 << bits]
    rest = [rng.getrandbits(bits) >> rng.choice((0, 0, rng.randrange(bits))) for _ in range(COUNT - len(edges))]
    return np.array(edges + rest, _UNSIGNED[bits])


def _floats(name: str, form: Format, bits: int, spread: int = 12) -> np.ndarray:
    """Finite numbers of a format as bits: near 1, at its ends, subnormal, and where narrower formats have ties."""
    rng = random.Random(name)
    out = [0, form.sign_bit, 1, form.sign_bit | 1, form.largest, form.sign_bit | form.largest, 1 << form.mantissa_bits]
    middle = form.bias << form.mantissa_bits
    while len(out) < COUNT:
        magnitude = middle + rng.randrange(-spread << form.mantissa_bits, spread << form.mantissa_bits)
        if rng.random() < 0.4:                  # few bits set: ties of narrower formats
            magnitude &= ~((1 << max(form.mantissa_bits - rng.choice((3, 4, 8, 9, 11, 12)), 0)) - 1)
        out.append(min(max(magnitude, 0), form.largest) | rng.choice((0, form.sign_bit)))
    return np.array(out, _UNSIGNED[bits])


def _case(name: str, instruction: str, sources: tuple[np.ndarray, ...], result_bits: int, what: Callable[..., int], arch: str = "sm_80") -> Case:
    """`what` gives the result's bits from the sources' bits, as Python integers."""
    types = [f"b{x.itemsize * 8}" for x in sources]
    mask = (1 << result_bits) - 1
    expected = np.array([what(*(int(v) for v in row)) & mask for row in zip(*sources, strict=True)], _UNSIGNED[result_bits])
    return Case(name, elementwise(instruction, types, f"b{result_bits}", arch), sources, expected, COUNT, arch=arch)


def _signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


# conversions ----------------------------------------------------------------------------------------------------------------

def _to_float(name: str, instruction: str, form: Format, bits: int, mode: str = "even", shift: int = 0) -> Case:
    x = _floats(name, F32, 32, 40)

    def what(v: int) -> int:
        number = F32.value(v)
        result = form.rounded(Fraction(number), mode)
        return (result | (form.sign_bit if v >> 31 else 0)) << shift        # of a zero too

    return _case(name, instruction, (x,), bits, what)


def _pair(form: Format, bits: int, low: int, high: int) -> int:
    def one(v: int) -> int:
        return form.rounded(Fraction(F32.value(v)), saturates=True) | (form.sign_bit if v >> 31 else 0)
    return one(low) | one(high) << bits


def _half_of(form: Format, bits: int) -> int:
    value = form.value(bits)
    sign = F16.sign_bit if bits & form.sign_bit else 0
    if value != value:
        return 0x7FFF
    return 0x7C00 | sign if math.isinf(value) else F16.rounded(Fraction(value)) | sign


def _to_integer(name: str, rounding: Callable[[Fraction], int], bits: int, signed: bool, instruction: str) -> Case:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return _case(name, instruction, (_floats(name, F32, 32, 36),), 32,
                 lambda v: min(max(rounding(Fraction(F32.value(v))), low), high))


def _even(x: Fraction) -> int:
    return round(x)             # Python rounds halves to even


CONVERSIONS = (
    _to_float("cvt.rn.f16.f32", "cvt.rn.f16.f32 %d, %x;", F16, 16),
    _to_float("cvt.rz.f16.f32", "cvt.rz.f16.f32 %d, %x;", F16, 16, "zero"),
    _to_float("cvt.rn.bf16.f32", "cvt.rn.bf16.f32 %d, %x;", BF16, 16),
    _to_float("cvt.rz.bf16.f32", "cvt.rz.bf16.f32 %d, %x;", BF16, 16, "zero"),
    _to_float("cvt.rna.tf32.f32", "cvt.rna.tf32.f32 %d, %x;", TF32, 32, "away", shift=13),
    _case("cvt.f32.f16", "cvt.f32.f16 %d, %x;", (_floats("h", F16, 16),), 32,
          lambda v: F32.rounded(Fraction(F16.value(v))) | (v >> 15) << 31),
    _case("cvt.f32.bf16", "mov.b32 %d, {0, %x};", (_floats("b", BF16, 16),), 32, lambda v: v << 16),
    _case("cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 %d, %y, %x;", (_floats("lo", F32, 32), _floats("hi", F32, 32)), 32,
          lambda x, y: _pair(F16, 16, x, y) if abs(F32.value(x)) < 65504 > abs(F32.value(y)) else
          F16.rounded(Fraction(F32.value(x))) | F16.rounded(Fraction(F32.value(y))) << 16),
    _case("cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 %d, %y, %x;", (_floats("lo", F32, 32)[7:].repeat(2)[:COUNT], _floats("hi", F32, 32, 50)[7:].repeat(2)[:COUNT]), 32,
          lambda x, y: _pair(BF16, 16, x, y)),
    _case("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f32 %d, %y, %x;", (_floats("lo", F32, 32), _floats("hi", F32, 32)), 16,
          lambda x, y: _pair(E4M3, 8, x, y), "sm_90a"),
    _case("cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.satfinite.e5m2x2.f32 %d, %y, %x;", (_floats("lo", F32, 32, 20), _floats("hi", F32, 32, 20)), 16,
          lambda x, y: _pair(E5M2, 8, x, y), "sm_90a"),
    *(_case(f"cvt.rn.f16x2.{name}x2", f"cvt.rn.f16x2.{name}x2 %d, %x;", (np.arange(COUNT, dtype=np.uint16) * 257 % 65521,), 32,
            lambda v, form=form: sum(_half_of(form, v >> 8 * k & 255) << 16 * k for k in (0, 1)), "sm_90a")
      for name, form in (("e4m3", E4M3), ("e5m2", E5M2))),
    _to_integer("cvt.rni.s32.f32", _even, 32, True, "cvt.rni.s32.f32 %d, %x;"),
    _to_integer("cvt.rzi.s32.f32", int, 32, True, "cvt.rzi.s32.f32 %d, %x;"),
    _to_integer("cvt.rmi.s32.f32", math.floor, 32, True, "cvt.rmi.s32.f32 %d, %x;"),
    _to_integer("cvt.rpi.s32.f32", math.ceil, 32, True, "cvt.rpi.s32.f32 %d, %x;"),
    _to_integer("cvt.rzi.u32.f32", int, 32, False, "cvt.rzi.u32.f32 %d, %x;"),
    _case("cvt.rn.f32.s32", "cvt.rn.f32.s32 %d, %x;", (_words("i", 32),), 32, lambda v: F32.rounded(Fraction(_signed(v, 32)))),
    _case("cvt.rn.f32.u32", "cvt.rn.f32.u32 %d, %x;", (_words("u", 32),), 32, lambda v: F32.rounded(Fraction(v))),
    _case("cvt.rn.f16.s16", "cvt.rn.f16.s16 %d, %x;", (_words("i", 16),), 16, lambda v: F16.rounded(Fraction(_signed(v, 16)))),
    _case("cvt.s32.s8", "cvt.s32.s8 %d, %x;", (_words("i8", 32),), 32, lambda v: _signed(v, 8)),
    _case("cvt.u64.u8", "cvt.u64.u8 %d, %x;", (_words("u8", 32),), 64, lambda v: v & 255),
    _case("cvt.sat.s8.s32", "cvt.sat.s8.s32 %d, %x;", (_words("s", 32) >> 20,), 32, lambda v: min(max(_signed(v, 32), -128), 127)),
    _case("cvt.sat.u8.s32", "cvt.sat.u8.s32 %d, %x;", (_words("s", 32),), 32, lambda v: min(max(_signed(v, 32), 0), 255)),
    _case("cvt.pack.sat.s8.s32.b32", "cvt.pack.sat.s8.s32.b32 %d, %x, %y, %z;", (_words("p", 32), _words("q", 32) >> 24, _words("r", 32)), 32,
          lambda x, y, z: (min(max(_signed(x, 32), -128), 127) & 255) << 8 | (min(max(_signed(y, 32), -128), 127) & 255) | z << 16),
)


# floating point -------------------------------------------------------------------------------------------------------------

def _exact(name: str, instruction: str, form: Format, bits: int, what: Callable[..., Fraction], sources: int, mode: str = "even") -> Case:
    """Finite operands; what the exact result rounds to. A result of zero takes the sign that the instruction gives, so such
    operands are left out."""
    arrays = [_floats(f"{name}{k}", form, bits, 6) for k in range(sources)]

    def result(*values: int) -> Fraction:
        return what(*(Fraction(form.value(v)) for v in values))

    kept = [i for i in range(COUNT) if result(*(int(a[i]) for a in arrays)) != 0]
    chosen = tuple(a[np.resize(kept, COUNT)] for a in arrays)
    return _case(name, instruction, chosen, bits, lambda *v: form.rounded(result(*v), mode))


def _add(x: Fraction, y: Fraction) -> Fraction:
    return x + y


def _multiply(x: Fraction, y: Fraction) -> Fraction:
    return x * y


def _fused(x: Fraction, y: Fraction, z: Fraction) -> Fraction:
    return x * y + z


def _halves(name: str, instruction: str, form: Format) -> Case:
    """The packed form: two independent results."""
    x, y, z = (_floats(f"{name}{k}", form, 16, 6) for k in range(3))
    packed = tuple(a.astype(np.uint32) | np.roll(a, 1).astype(np.uint32) << 16 for a in (x, y, z))

    def what(a: int, b: int, c: int) -> int:
        out = 0
        for shift in (0, 16):
            exact = _fused(*(Fraction(form.value(v >> shift & 0xFFFF)) for v in (a, b, c)))
            out |= form.rounded(exact) << shift
        return out

    def nonzero(i: int) -> bool:
        return all(_fused(*(Fraction(form.value(int(v[i]) >> s & 0xFFFF)) for v in packed)) != 0 for s in (0, 16))

    kept = np.resize([i for i in range(COUNT) if nonzero(i)], COUNT)
    return _case(name, instruction, tuple(v[kept] for v in packed), 32, what)


_NAN = 0x7FC00001
_SPECIAL = np.resize(np.array([0, 0x80000000, 0x7F800000, 0xFF800000, _NAN, 0x3F800000, 0xBF800000, 1, 0x80000001], np.uint32), COUNT)
_OTHER = np.roll(np.repeat(_SPECIAL[:9], 9), 3)
_OTHER = np.resize(_OTHER, COUNT)


def _order(bits: int) -> int:
    """Numbers as integers in the same order, -0 below +0."""
    return bits if bits < 1 << 31 else -(bits & 0x7FFFFFFF) - 1


def _is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > 0x7F800000


def _extreme(x: int, y: int, pick: Callable[..., int]) -> int:
    if _is_nan(x) or _is_nan(y):
        return 0x7FFFFFFF if _is_nan(x) and _is_nan(y) else y if _is_nan(x) else x
    return pick(x, y, key=_order)


# compared through setp, since the payload of a NaN that comes out is not defined
_MIN = ".reg .pred %p;\n.reg .b32 %r;\n{op}.f32 %r, %x, %y;\nsetp.nan.f32 %p, %r, %r;\nselp.b32 %d, 0x7fffffff, %r, %p;"

FLOATING = (
    _exact("add.rn.f16", "add.rn.f16 %d, %x, %y;", F16, 16, _add, 2),
    _exact("mul.rn.f16", "mul.rn.f16 %d, %x, %y;", F16, 16, _multiply, 2),
    _exact("fma.rn.f16", "fma.rn.f16 %d, %x, %y, %z;", F16, 16, _fused, 3),
    _exact("fma.rn.bf16", "fma.rn.bf16 %d, %x, %y, %z;", BF16, 16, _fused, 3),
    _halves("fma.rn.f16x2", "fma.rn.f16x2 %d, %x, %y, %z;", F16),
    _halves("fma.rn.bf16x2", "fma.rn.bf16x2 %d, %x, %y, %z;", BF16),
    *(_exact(f"{op}.{short}.f32", f"{op}.{short}.f32 %d, {', '.join(names)};", F32, 32, what, len(names), mode)
      for op, what, names in (("add", _add, ("%x", "%y")), ("mul", _multiply, ("%x", "%y")), ("fma", _fused, ("%x", "%y", "%z")))
      for short, mode in (("rn", "even"), ("rz", "zero"), ("rm", "down"), ("rp", "up"))),
    _exact("div.rn.f32", "div.rn.f32 %d, %x, %y;", F32, 32, lambda x, y: x / y if y else Fraction(0), 2),
    _case("min.f32", _MIN.format(op="min"), (_SPECIAL, _OTHER), 32, lambda x, y: _extreme(x, y, min)),
    _case("max.f32", _MIN.format(op="max"), (_SPECIAL, _OTHER), 32, lambda x, y: _extreme(x, y, max)),
    _case("mul.ftz.f32 flushes", "mul.ftz.f32 %d, %x, 0f3F800000;", (_floats("f", F32, 32)[:7].repeat(80)[:COUNT],), 32,
          lambda v: v if v & 0x7F800000 else v & 0x80000000),
    _case("neg.f32", "neg.f32 %d, %x;", (_SPECIAL,), 32, lambda v: v ^ 1 << 31),
    _case("abs.f16x2", "abs.f16x2 %d, %x;", (_words("abs", 32),), 32, lambda v: v & 0x7FFF7FFF),
    _case("copysign.f32", "copysign.f32 %d, %x, %y;", (_words("a", 32), _words("b", 32)), 32,
          lambda x, y: (x & 1 << 31) | (y & 0x7FFFFFFF)),
)


# integers -------------------------------------------------------------------------------------------------------------------

def _field(x: int, at: int, length: int, bits: int, signed: bool) -> int:
    at, length = at & 255, length & 255
    top = min(at + length - 1, bits - 1)
    sign = x >> top & 1 if signed and length else 0
    return sum((x >> (at + i) & 1 if i < length and at + i < bits else sign) << i for i in range(bits))


def _inserted(x: int, y: int, at: int, length: int) -> int:
    at, length = at & 255, length & 255
    for i in range(length):
        if at + i < 32:
            y = (y & ~(1 << (at + i))) | (x >> i & 1) << (at + i)
    return y


def _permuted(a: int, b: int, selector: int) -> int:
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    picks = [selector >> 4 * i & 15 for i in range(4)]
    return sum(((255 if source[p & 7] & 128 else 0) if p & 8 else source[p & 7]) << 8 * i for i, p in enumerate(picks))


def _truth(x: int, y: int, z: int, table: int) -> int:
    return sum((table >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1) << i for i in range(32))


def _dot(x: int, y: int, z: int, signed: tuple[bool, bool]) -> int:
    def byte(v: int, i: int, is_signed: bool) -> int:
        return _signed(v >> 8 * i, 8) if is_signed else v >> 8 * i & 255
    return z + sum(byte(x, i, signed[0]) * byte(y, i, signed[1]) for i in range(4))


def _quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


_X, _Y, _Z = (_words(n, 32) for n in ("x", "y", "z"))
_W = _words("w", 64)
_NONZERO = np.where(_Y == 0, 7, _Y).astype(np.uint32)
_SHIFT = (_words("shift", 32) % 80).astype(np.uint32)
_LENGTH = (_words("length", 32) % 40).astype(np.uint32)

INTEGERS = (
    _case("mul.hi.u32", "mul.hi.u32 %d, %x, %y;", (_X, _Y), 32, lambda x, y: x * y >> 32),
    _case("mul.hi.s32", "mul.hi.s32 %d, %x, %y;", (_X, _Y), 32, lambda x, y: _signed(x, 32) * _signed(y, 32) >> 32),
    _case("mul.wide.s32", "mul.wide.s32 %d, %x, %y;", (_X, _Y), 64, lambda x, y: _signed(x, 32) * _signed(y, 32)),
    _case("mul.wide.u32", "mul.wide.u32 %d, %x, %y;", (_X, _Y), 64, lambda x, y: x * y),
    _case("mul.wide.u16", "mul.wide.u16 %d, %x, %y;", (_words("h", 16), _words("g", 16)), 32, lambda x, y: x * y),
    _case("mad.lo.s32", "mad.lo.s32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, lambda x, y, z: x * y + z),
    _case("mad.hi.s32", "mad.hi.s32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, lambda x, y, z: (_signed(x, 32) * _signed(y, 32) >> 32) + z),
    _case("mad.wide.u32", "mad.wide.u32 %d, %x, %y, %z;", (_X, _Y, _W), 64, lambda x, y, z: x * y + z),
    _case("mul24.lo.s32", "mul24.lo.s32 %d, %x, %y;", (_X, _Y), 32, lambda x, y: _signed(x, 24) * _signed(y, 24)),
    _case("div.s32", "div.s32 %d, %x, %y;", (_X, _NONZERO), 32, lambda x, y: _quotient(_signed(x, 32), _signed(y, 32))),
    _case("rem.s32", "rem.s32 %d, %x, %y;", (_X, _NONZERO), 32,
          lambda x, y: _signed(x, 32) - _signed(y, 32) * _quotient(_signed(x, 32), _signed(y, 32))),
    _case("div.u32", "div.u32 %d, %x, %y;", (_X, _NONZERO), 32, lambda x, y: x // y),
    _case("rem.u64", "cvt.u64.u32 %d, %y;\nrem.u64 %d, %x, %d;", (_W, _NONZERO), 64, lambda x, y: x % y),
    _case("min.s32", "min.s32 %d, %x, %y;", (_X, _Y), 32, lambda x, y: min(_signed(x, 32), _signed(y, 32))),
    _case("max.u32", "max.u32 %d, %x, %y;", (_X, _Y), 32, max),
    _case("abs.s32", "abs.s32 %d, %x;", (_X,), 32, lambda x: abs(_signed(x, 32))),
    _case("sad.s32", "sad.s32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, lambda x, y, z: abs(_signed(x, 32) - _signed(y, 32)) + z),
    _case("add.cc and addc", ".reg .b32 %l, %h, %m, %n;\nmov.b64 {%l, %h}, %x;\nmov.b64 {%m, %n}, %y;\nadd.cc.u32 %l, %l, %m;\naddc.u32 %h, %h, %n;\n"
          "mov.b64 %d, {%l, %h};", (_W, np.roll(_W, 5)), 64, lambda x, y: x + y),
    _case("sub.cc and subc", ".reg .b32 %l, %h, %m, %n;\nmov.b64 {%l, %h}, %x;\nmov.b64 {%m, %n}, %y;\nsub.cc.u32 %l, %l, %m;\nsubc.u32 %h, %h, %n;\n"
          "mov.b64 %d, {%l, %h};", (_W, np.roll(_W, 5)), 64, lambda x, y: x - y),
    _case("shl.b32", "shl.b32 %d, %x, %y;", (_X, _SHIFT), 32, lambda x, n: x << n if n < 32 else 0),
    _case("shr.u32", "shr.u32 %d, %x, %y;", (_X, _SHIFT), 32, lambda x, n: x >> n),
    _case("shr.s32", "shr.s32 %d, %x, %y;", (_X, _SHIFT), 32, lambda x, n: _signed(x, 32) >> n),
    _case("shr.s64", "shr.s64 %d, %x, %y;", (_W, _SHIFT), 64, lambda x, n: _signed(x, 64) >> n),
    _case("shf.l.wrap", "shf.l.wrap.b32 %d, %x, %y, %z;", (_X, _Y, _SHIFT), 32, lambda x, y, n: (y << 32 | x) << (n & 31) >> 32),
    _case("shf.r.clamp", "shf.r.clamp.b32 %d, %x, %y, %z;", (_X, _Y, _SHIFT), 32, lambda x, y, n: (y << 32 | x) >> min(n, 32)),
    _case("bfe.u32", "bfe.u32 %d, %x, %y, %z;", (_X, _SHIFT, _LENGTH), 32, lambda x, a, n: _field(x, a, n, 32, False)),
    _case("bfe.s32", "bfe.s32 %d, %x, %y, %z;", (_X, _SHIFT, _LENGTH), 32, lambda x, a, n: _field(x, a, n, 32, True)),
    _case("bfe.s64", "bfe.s64 %d, %x, %y, %z;", (_W, _SHIFT, _LENGTH), 64, lambda x, a, n: _field(x, a, n, 64, True)),
    _case("bfi.b32", "bfi.b32 %d, %x, %y, %z, %w;", (_X, _Y, _SHIFT, _LENGTH), 32, _inserted),
    _case("bfind.u32", "bfind.u32 %d, %x;", (_X,), 32, lambda x: x.bit_length() - 1),
    _case("bfind.s32", "bfind.s32 %d, %x;", (_X,), 32, lambda x: (x if x < 1 << 31 else x ^ 0xFFFFFFFF).bit_length() - 1),
    _case("bfind.shiftamt.u32", "bfind.shiftamt.u32 %d, %x;", (_X,), 32, lambda x: 32 - x.bit_length() if x else -1),
    _case("popc.b32", "popc.b32 %d, %x;", (_X,), 32, lambda x: x.bit_count()),
    _case("popc.b64", "popc.b64 %d, %x;", (_W,), 32, lambda x: x.bit_count()),
    _case("clz.b32", "clz.b32 %d, %x;", (_X,), 32, lambda x: 32 - x.bit_length()),
    _case("clz.b64", "clz.b64 %d, %x;", (_W,), 32, lambda x: 64 - x.bit_length()),
    _case("brev.b32", "brev.b32 %d, %x;", (_X,), 32, lambda x: int(f"{x:032b}"[::-1], 2)),
    _case("prmt.b32", "prmt.b32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, _permuted),
    *(_case(f"lop3 {table:#x}", f"lop3.b32 %d, %x, %y, %z, {table:#x};", (_X, _Y, _Z), 32,
            lambda x, y, z, table=table: _truth(x, y, z, table)) for table in (0xEA, 0x6C, 0x96, 0xF8)),
    _case("dp4a.s32.s32", "dp4a.s32.s32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, lambda x, y, z: _dot(x, y, z, (True, True))),
    _case("dp4a.u32.s32", "dp4a.u32.s32 %d, %x, %y, %z;", (_X, _Y, _Z), 32, lambda x, y, z: _dot(x, y, z, (False, True))),
    _case("selp", ".reg .pred %p;\nsetp.lt.s32 %p, %x, %y;\nselp.b32 %d, %x, %z, %p;", (_X, _Y, _Z), 32,
          lambda x, y, z: x if _signed(x, 32) < _signed(y, 32) else z),
    _case("setp.hi.and", ".reg .pred %p, %q;\nsetp.ne.u32 %q, %z, 0;\nsetp.hi.and.u32 %p, %x, %y, %q;\nselp.u32 %d, 1, 0, %p;", (_X, _Y, _Z % 2), 32,
          lambda x, y, z: x > y and z != 0),
    *(_case(f"setp.{how}.f32", f".reg .pred %p;\nsetp.{how}.f32 %p, %x, %y;\nselp.u32 %d, 1, 0, %p;", (_SPECIAL, _OTHER), 32,
            lambda x, y, what=what, nan=nan: nan if _is_nan(x) or _is_nan(y) else what(float(F32.value(x)), float(F32.value(y))))
      for how, what, nan in (("lt", lambda x, y: x < y, 0), ("ltu", lambda x, y: x < y, 1), ("ne", lambda x, y: x != y, 0),
                             ("neu", lambda x, y: x != y, 1), ("eq", lambda x, y: x == y, 0), ("geu", lambda x, y: x >= y, 1),
                             ("num", lambda x, y: True, 0), ("nan", lambda x, y: False, 1))),
)

ELEMENT_CASES: tuple[Case, ...] = (*CONVERSIONS, *FLOATING, *INTEGERS)
