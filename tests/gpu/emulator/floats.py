"""Floating-point instructions: f32, f64, f16, bf16 and the packed halves (PTX ISA, Floating Point Instructions; Half
Precision Floating Point Instructions). Halves are computed in double, rounded to odd where that is inexact, and rounded once."""

from collections.abc import Callable

from tests.gpu.emulator.operands import Context, Unsupported

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
_ROUNDED_F32 = {"rz": "bits_f32_rz", "rm": "bits_f32_rm", "rp": "bits_f32_rp"}

# name: what it computes of its sources, in float for f32 and in double otherwise
_SINGLE: dict[str, Callable[..., str]] = {
    "add": lambda x, y: f"({x} + {y})", "sub": lambda x, y: f"({x} - {y})", "mul": lambda x, y: f"({x} * {y})",
    "fma": lambda x, y, z: f"fmaf({x}, {y}, {z})", "mad": lambda x, y, z: f"fmaf({x}, {y}, {z})",
    "div": lambda x, y: f"({x} / {y})", "sqrt": lambda x: f"sqrtf({x})", "rsqrt": lambda x: f"(float)(1 / sqrt({x}))",
    "rcp": lambda x: f"(1 / {x})", "ex2": lambda x: f"exp2f({x})", "lg2": lambda x: f"log2f({x})",
    "sin": lambda x: f"sinf({x})", "cos": lambda x: f"cosf({x})", "tanh": lambda x: f"tanhf({x})",
    "min": lambda x, y: f"(float)minimum({x}, {y})", "max": lambda x, y: f"(float)maximum({x}, {y})",
}
_DOUBLE: dict[str, Callable[..., str]] = _SINGLE | {
    "fma": lambda x, y, z: f"fma({x}, {y}, {z})", "mad": lambda x, y, z: f"fma({x}, {y}, {z})",
    "sqrt": lambda x: f"sqrt({x})", "rsqrt": lambda x: f"(1 / sqrt({x}))",
    "min": lambda x, y: f"minimum({x}, {y})", "max": lambda x, y: f"maximum({x}, {y})",
}
_HALF: dict[str, Callable[..., str]] = _DOUBLE | {
    "add": lambda x, y: f"sum_odd({x}, {y})", "sub": lambda x, y: f"sum_odd({x}, -{y})",
    "fma": lambda x, y, z: f"sum_odd({x} * {y}, {z})",      # the product of two halves is exact in double
    "ex2": lambda x: f"exp2({x})", "tanh": lambda x: f"tanh({x})", "lg2": lambda x: f"log2({x})",
}
# with .rz, .rm and .rp a float32 is rounded from the sum or product in double, which rounding to odd makes exact enough
_DIRECTED: dict[str, Callable[..., str]] = {
    "add": lambda x, y: f"sum_odd({x}, {y})", "sub": lambda x, y: f"sum_odd({x}, -(double){y})",
    "mul": lambda x, y: f"((double){x} * {y})", "fma": lambda x, y, z: f"sum_odd((double){x} * {y}, {z})",
    "div": lambda x, y: f"((double){x} / {y})", "rcp": lambda x: f"(1 / (double){x})", "sqrt": lambda x: f"sqrt((double){x})",
}


def of_bits(type_: str, x: str) -> str:
    """Raw bits as a number of C."""
    return f"{ {'f32': 'f32_of', 'f64': 'f64_of', 'f16': 'f16_of', 'bf16': 'bf16_of'}[type_]}({x})"


def to_bits(type_: str, x: str) -> str:
    return f"{ {'f32': 'bits_f32', 'f64': 'bits_f64', 'f16': 'bits_f16', 'bf16': 'bits_bf16'}[type_]}({x})"


def arithmetic(c: Context) -> str:
    sources = c.a[1:]
    if c.type == "f32":
        return f"{c.to(c.a[0])} = {_single(c, sources)};"
    if c.type == "f64":
        numbers = [of_bits("f64", c.value(x, 64)) for x in sources]
        return f"{c.to(c.a[0])} = bits_f64({_operation(c, _DOUBLE)(*numbers)});"
    if c.type in ("f16x2", "bf16x2"):
        half = c.type.removesuffix("x2")
        low, high = (_half(c, half, [f"(u16)({c.value(x)} >> {shift})" for x in sources]) for shift in (0, 16))
        return f"{{ u32 low = {low}, high = {high}; {c.to(c.a[0])} = low | high << 16; }}"
    return f"{c.to(c.a[0])} = {_half(c, c.type, [c.value(x) for x in sources])};"


def _operation(c: Context, table: dict[str, Callable[..., str]]) -> Callable[..., str]:
    if c.name not in table or c.has("xorsign"):
        raise Unsupported(c.ins.opcode)
    if c.name in ("min", "max") and c.has("NaN"):
        function = {"min": "minimum_nan", "max": "maximum_nan"}[c.name]
        return lambda x, y: f"{function}({x}, {y})"
    return table[c.name]


def _single(c: Context, sources: tuple[str, ...]) -> str:
    flushes = c.has("ftz") or (c.has("approx") and c.name == "rsqrt")
    bits = [f"flush({c.value(x)})" if flushes else c.value(x) for x in sources]
    numbers = [of_bits("f32", x) for x in bits]
    directed = next((m for m in _ROUNDED_F32 if c.has(m)), None)
    if directed:
        result = f"{_ROUNDED_F32[directed]}({_DIRECTED[c.name](*numbers)})"
    else:
        number = _operation(c, _SINGLE)(*numbers)
        result = f"bits_f32({f'saturated({number})' if c.has('sat') else number})"
    return f"flush({result})" if flushes else result


def _half(c: Context, half: str, bits: list[str]) -> str:
    number = _operation(c, _HALF)(*[of_bits(half, x) for x in bits])
    if c.has("sat"):
        number = f"saturated_f64({number})"
    if c.has("relu"):
        number = f"maximum({number}, 0.0)"
    return to_bits(half, number)


def negate_or_abs(c: Context) -> str:
    """On the sign bits alone, so that NaN keeps its payload."""
    sign = {"f32": "0x80000000u", "f64": "(1ull << 63)", "f16": "0x8000u", "bf16": "0x8000u"}.get(c.type, "0x80008000u")
    x = f"flush({c.value(c.a[1])})" if c.has("ftz") and c.type == "f32" else c.value(c.a[1])
    return f"{c.to(c.a[0])} = {x} ^ {sign};" if c.name == "neg" else f"{c.to(c.a[0])} = {x} & ~{sign};"


def copysign(c: Context) -> str:
    sign = "0x80000000u" if c.bits == 32 else "(1ull << 63)"
    return f"{c.to(c.a[0])} = ({c.value(c.a[1])} & {sign}) | ({c.value(c.a[2])} & ~{sign});"


def testp(c: Context) -> str:
    x = of_bits(c.type, c.value(c.a[1]))
    tests = {"finite": f"isfinite({x})", "infinite": f"isinf({x})", "number": f"!isnan({x})", "notanumber": f"isnan({x})",
             "normal": f"isnormal({x})", "subnormal": f"(!isnormal({x}) && isfinite({x}) && {x} != 0)"}
    return f"{c.to(c.a[0])} = !!{tests[c.parts[1]]};"


NAMES = ("add", "sub", "mul", "fma", "mad", "div", "sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh", "min", "max")
TABLE: dict[str, Callable[[Context], str]] = dict.fromkeys(NAMES, arithmetic)
TABLE |= {"neg": negate_or_abs, "abs": negate_or_abs, "copysign": copysign, "testp": testp}
