"""Integer arithmetic, logic, shifts, bit fields, comparison and selection (the PTX ISA's sections of these names)."""

from collections.abc import Callable

from tests.gpu.emulator.floats import FLOATS, of_bits
from tests.gpu.emulator.operands import Context, Unsupported

_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_ORDERED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_EQUAL = {"eq": "==", "ne": "!="}


def _typed(c: Context, operand: str, bits: int | None = None) -> str:
    """As the signed or unsigned integer that the type says."""
    bits = bits or c.bits
    return f"({'s' if c.is_signed else 'u'}{bits})({c.value(operand, bits)})"


def add_or_sub(c: Context) -> str:
    sign = {"add": "+", "sub": "-"}[c.name]
    x, y = c.value(c.a[1]), c.value(c.a[2])
    if c.has("cc"):
        carry = f"(u64)(u32){x} + (u32){y}" if sign == "+" else f"(u64)(u32){x} - (u32){y}"
        if c.bits != 32:
            raise Unsupported(c.ins.opcode)
        return f"{{ u64 wide = {carry}; {c.to(c.a[0])} = (u32)wide; t->carry = (u32)(wide >> 32) & 1; }}"
    if c.has("sat"):
        return f"{c.to(c.a[0])} = (u32)clamped((s64)(s32){x} {sign} (s64)(s32){y}, INT32_MIN, INT32_MAX);"
    return f"{c.to(c.a[0])} = (u{c.bits})({x} {sign} {y});"


def with_carry(c: Context) -> str:
    sign = {"addc": "+", "subc": "-"}[c.name]
    if c.bits != 32:
        raise Unsupported(c.ins.opcode)
    wide = f"(u64)(u32){c.value(c.a[1])} {sign} (u32){c.value(c.a[2])} {sign} t->carry"
    return f"{{ u64 wide = {wide}; {c.to(c.a[0])} = (u32)wide; {'t->carry = (u32)(wide >> 32) & 1;' if c.has('cc') else ''} }}"


def multiply(c: Context) -> str:
    """mul, mad, mul24, mad24: the low, high or whole product, and what is added to it."""
    k, b = "s" if c.is_signed else "u", c.bits
    if c.has("cc") or c.name == "madc" or c.has("sat"):
        raise Unsupported(c.ins.opcode)
    wide, product_bits = (f"{'__int128' if k == 's' else 'unsigned __int128'}" if b == 64 else f"{k}{2 * b}"), b
    product = f"({wide})({k}{b}){c.value(c.a[1])} * ({wide})({k}{b}){c.value(c.a[2])}"
    if c.name.endswith("24"):
        low = [f"((({k}32)({c.value(x)} << 8)) >> 8)" for x in c.a[1:3]]
        product, wide = f"({k}64){low[0]} * ({k}64){low[1]}", f"{k}64"
        product = f"(({product}) >> {16 if c.has('hi') else 0})"
    elif c.has("wide"):
        product_bits = 2 * b
    elif c.has("hi"):
        product = f"(({product}) >> {b})"
    added = f" + {c.value(c.a[3], product_bits)}" if c.name.startswith("mad") else ""
    return f"{c.to(c.a[0])} = (u{product_bits})((u{product_bits})({product}){added});"


def divide(c: Context) -> str:
    function = {"div": "divide", "rem": "remainder"}[c.name]
    return f"{c.to(c.a[0])} = {function}_{'s' if c.is_signed else 'u'}{c.bits}({c.value(c.a[1])}, {c.value(c.a[2])});"


def least_or_most(c: Context) -> str:
    if c.type in ("s16x2", "u16x2") or len(c.a) != 3:
        raise Unsupported(c.ins.opcode)
    sign = {"min": "<", "max": ">"}[c.name]
    x, y = _typed(c, c.a[1]), _typed(c, c.a[2])
    chosen = f"({x} {sign} {y} ? {x} : {y})"
    if c.has("relu"):
        chosen = f"({chosen} < 0 ? 0 : {chosen})"
    return f"{c.to(c.a[0])} = (u{c.bits}){chosen};"


def negate(c: Context) -> str:
    return f"{c.to(c.a[0])} = (u{c.bits})-(u{c.bits}){c.value(c.a[1])};"


def absolute(c: Context) -> str:
    x = _typed(c, c.a[1])
    return f"{c.to(c.a[0])} = (u{c.bits})({x} < 0 ? -{x} : {x});"


def sad(c: Context) -> str:
    x, y = _typed(c, c.a[1]), _typed(c, c.a[2])
    return f"{c.to(c.a[0])} = (u{c.bits})({c.value(c.a[3])} + ({x} < {y} ? {y} - {x} : {x} - {y}));"


def logic(c: Context) -> str:
    sign = {"and": "&", "or": "|", "xor": "^"}[c.name]
    return f"{c.to(c.a[0])} = {c.value(c.a[1])} {sign} {c.value(c.a[2])};"


def negation(c: Context) -> str:
    return f"{c.to(c.a[0])} = {'!' if c.type == 'pred' else '~'}{c.value(c.a[1])};"


def cnot(c: Context) -> str:
    return f"{c.to(c.a[0])} = !{c.value(c.a[1])};"


def shift(c: Context) -> str:
    direction = "left_" if c.name == "shl" else "right_s" if c.is_signed else "right_u"
    return f"{c.to(c.a[0])} = {direction}{c.bits}({c.value(c.a[1])}, {c.value(c.a[2], 32)});"


def funnel_shift(c: Context) -> str:
    n = c.value(c.a[3], 32)
    n = f"({n} & 31)" if c.has("wrap") else f"({n} > 32 ? 32 : {n})"
    return f"{c.to(c.a[0])} = funnel_{'left' if c.has('l') else 'right'}({c.value(c.a[1])}, {c.value(c.a[2])}, {n});"


def bit_field(c: Context) -> str:
    kind = "signed" if c.is_signed else "unsigned"
    x, at, length = c.value(c.a[1]), c.value(c.a[2], 32), c.value(c.a[3], 32)
    return f"{c.to(c.a[0])} = (u{c.bits})field_{kind}({x}, {at}, {length}, {c.bits});"


def insert_field(c: Context) -> str:
    x, y, at, length = c.value(c.a[1]), c.value(c.a[2]), c.value(c.a[3], 32), c.value(c.a[4], 32)
    return f"{c.to(c.a[0])} = (u{c.bits})field_inserted({x}, {y}, {at}, {length}, {c.bits});"


def find_bit(c: Context) -> str:
    as_shift = int(c.has("shiftamt"))
    return f"{c.to(c.a[0])} = highest_bit({c.value(c.a[1])}, {c.bits}, {int(c.is_signed)}, {as_shift});"


def count_bits(c: Context) -> str:
    x = c.value(c.a[1])
    return f"{c.to(c.a[0])} = {f'(u32)__builtin_popcountll({x})' if c.name == 'popc' else f'leading_zeros({x}, {c.bits})'};"


def reverse_bits(c: Context) -> str:
    return f"{c.to(c.a[0])} = (u{c.bits})reversed({c.value(c.a[1])}, {c.bits});"


def permute(c: Context) -> str:
    if len(c.parts) > 2:                    # the modes: f4e, b4e, rc8, ...
        raise Unsupported(c.ins.opcode)
    return f"{c.to(c.a[0])} = permuted({', '.join(c.value(x) for x in c.a[1:4])});"


def lookup_logic(c: Context) -> str:
    if c.has("and", "or"):
        raise Unsupported(c.ins.opcode)
    return f"{c.to(c.a[0])} = lop3({', '.join(c.value(x) for x in c.a[1:5])});"


def dot(c: Context) -> str:
    kinds = [p for p in c.parts if p in ("s32", "u32")]
    x, y, z = (c.value(operand, 32) for operand in c.a[1:4])
    signed = [int(k == "s32") for k in kinds]
    last = f", {int(c.has('hi'))}" if c.name == "dp2a" else ""
    return f"{c.to(c.a[0])} = {'dot4' if c.name == 'dp4a' else 'dot2'}({x}, {signed[0]}, {y}, {signed[1]}, {z}{last});"


def select(c: Context) -> str:
    return f"{c.to(c.a[0])} = {c.value(c.a[3], 1)} ? {c.value(c.a[1])} : {c.value(c.a[2])};"


def select_by_sign(c: Context) -> str:
    third = f"(s32){c.value(c.a[3], 32)} >= 0" if c.parts[-1] == "s32" else f"f32_of({c.value(c.a[3], 32)}) >= 0"
    return f"{c.to(c.a[0])} = {third} ? {c.value(c.a[1], 64)} : {c.value(c.a[2], 64)};"


def _float_comparison(c: Context, how: str, x: str, y: str) -> str:
    nan = f"(isnan({x}) || isnan({y}))"
    if how in ("num", "nan"):
        return nan if how == "nan" else f"!{nan}"
    unordered = len(how) == 3
    base = how[:2]
    result = f"({x} {(_ORDERED | _EQUAL)[base]} {y})"
    if unordered:
        return f"({nan} || {result})"
    return f"(!{nan} && {result})" if base == "ne" else result


def _comparison(c: Context) -> str:
    how = c.parts[1]
    if c.type in FLOATS:
        x, y = (c.value(operand) for operand in c.a[1:3])
        if c.has("ftz") and c.type == "f32":
            x, y = f"flush({x})", f"flush({y})"
        return _float_comparison(c, how, of_bits(c.type, x), of_bits(c.type, y))
    kind = "s" if c.is_signed and how not in _UNSIGNED else "u"
    sign = (_UNSIGNED | _ORDERED | _EQUAL)[how]
    return f"(({kind}{max(c.bits, 8)})({c.value(c.a[1])}) {sign} ({kind}{max(c.bits, 8)})({c.value(c.a[2])}))"


def compare(c: Context) -> str:
    """setp: into one predicate or two, perhaps combined with a third."""
    if c.type in ("f16x2", "bf16x2"):
        return _compare_halves(c)
    result, third = _comparison(c), ""
    if c.has("and", "or", "xor"):
        word = next(p for p in c.parts if p in ("and", "or", "xor"))
        third = f" {dict(zip(('and', 'or', 'xor'), ('&', '|', '^'), strict=True))[word]} !!({c.value(c.a[3], 1)})"
    targets = c.a[0].split("|")
    text = f"{{ int holds = {result}; {c.to(targets[0])} = holds{third}; "
    return text + (f"{c.to(targets[1])} = !holds{third}; }}" if len(targets) > 1 else "}")


def _compare_halves(c: Context) -> str:
    half = c.type.removesuffix("x2")
    out = ""
    for target, shift in zip(c.a[0].split("|"), (0, 16), strict=True):
        x, y = (of_bits(half, f"(u16)({c.value(operand)} >> {shift})") for operand in c.a[1:3])
        out += f"{c.to(target)} = {_float_comparison(c, c.parts[1], x, y)}; "
    return out


def set_value(c: Context) -> str:
    if c.type in ("f16x2", "bf16x2") or len(c.a) > 3:
        raise Unsupported(c.ins.opcode)
    true = {"f32": "0x3f800000u"}.get(c.parts[-2], "0xffffffffu")
    return f"{c.to(c.a[0])} = {_comparison(c)} ? {true} : 0;"


TABLE: dict[str, Callable[[Context], str]] = {
    "add": add_or_sub, "sub": add_or_sub, "addc": with_carry, "subc": with_carry, "mul": multiply, "mad": multiply,
    "mul24": multiply, "mad24": multiply, "div": divide, "rem": divide, "min": least_or_most, "max": least_or_most,
    "neg": negate, "abs": absolute, "sad": sad, "and": logic, "or": logic, "xor": logic, "not": negation, "cnot": cnot,
    "shl": shift, "shr": shift, "shf": funnel_shift, "bfe": bit_field, "bfi": insert_field, "bfind": find_bit,
    "popc": count_bits, "clz": count_bits, "brev": reverse_bits, "prmt": permute, "lop3": lookup_logic, "dp4a": dot,
    "dp2a": dot, "selp": select, "slct": select_by_sign, "setp": compare, "set": set_value,
}
