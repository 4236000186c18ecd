"""Data movement and conversion: mov, ld, st, cvt, cvta, atomics, cp.async and bulk copies (PTX ISA, Data Movement and
Conversion Instructions; Parallel Synchronization and Communication Instructions)."""

import re
from collections.abc import Callable

from tests.gpu.emulator.floats import of_bits, to_bits
from tests.gpu.emulator.operands import Context, Unsupported, split_braces
from tests.gpu.emulator.parse import BITS

_SMALL = {"e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m1x2": "e2m1"}
_ROUNDINGS = {"rn": "rint", "rni": "rint", "rz": "trunc", "rzi": "trunc", "rm": "floor", "rmi": "floor", "rp": "ceil",
              "rpi": "ceil"}


def move(c: Context) -> str:
    if c.a[0].startswith("{"):
        parts = split_braces(c.a[0])
        width = c.bits // len(parts)
        source = c.value(c.a[1])
        moves = "".join(f"{c.to(x)} = (u{max(width, 8)})(from >> {width * i}); " for i, x in enumerate(parts) if x != "_")
        return f"{{ u{c.bits} from = {source}; {moves}}}"
    if c.a[1].startswith("{"):
        parts = split_braces(c.a[1])
        width = c.bits // len(parts)
        words = (f"(u{c.bits})(u{width})({c.value(x, width)}) << {width * i}" for i, x in enumerate(parts))
        return f"{c.to(c.a[0])} = {' | '.join(words)};"
    if c.type == "pred":
        return f"{c.to(c.a[0])} = !!({c.value(c.a[1])});"
    return f"{c.to(c.a[0])} = {c.value(c.a[1])};"


def load(c: Context) -> str:
    targets = c.list(c.a[0])
    size = c.bits // 8 * len(targets)
    pointer = c.at(c.space_of(c.a[1]), c.address(c.a[1]), size, "READ")
    # a register that is wider than the type gets zeros or copies of the sign
    element = f"{'s' if c.is_signed else 'u'}{c.bits}"
    moves = "".join(f"{c.to(x)} = (u{c.width(x)})({element})from[{i}]; " for i, x in enumerate(targets) if x != "_")
    return f"{c.here()} {{ const u{c.bits} *from = {pointer}; {moves}}}"


def store(c: Context) -> str:
    sources = c.list(c.a[1])
    pointer = c.at(c.space_of(c.a[0]), c.address(c.a[0]), c.bits // 8 * len(sources), "WRITE")
    moves = "".join(f"to[{i}] = (u{c.bits}){c.value(x)}; " for i, x in enumerate(sources))
    return f"{c.here()} {{ u{c.bits} *to = {pointer}; {moves}}}"


def convert_address(c: Context) -> str:
    x, target = c.value(c.a[1], 64), c.to(c.a[0])
    base = {"shared": "(u64)b->shared - SHARED_BASE", "local": "(u64)t->local"}.get(c.space() or "")
    if base is None:
        return f"{target} = {x};"
    return f"{target} = {x} - ({base});" if c.has("to") else f"{target} = (u64){x} + ({base});"


def is_space(c: Context) -> str:
    x = c.value(c.a[1], 64)
    tests = {"shared": f"in_shared(b, {x})", "local": f"in_local(b, t, {x})",
             "global": f"(!in_shared(b, {x}) && !in_local(b, t, {x}))"}
    return f"{c.to(c.a[0])} = {tests[c.space() or 'global']};"


def convert(c: Context) -> str:
    if c.has("pack"):
        return _pack_integers(c)
    types = [p for p in c.parts[1:] if p in BITS or p in _SMALL]
    if len(types) != 2 or c.has("scaled", "rs", "relu"):
        raise Unsupported(c.ins.opcode)
    target, source = types
    if target in _SMALL or source in _SMALL or target in ("f16x2", "bf16x2"):
        return f"{c.to(c.a[0])} = {_packed(c, target, source)};"
    if target == "tf32":
        return f"{c.to(c.a[0])} = bits_tf32(f32_of({c.value(c.a[1], 32)}), {int(c.has('rna'))});"
    x = c.value(c.a[1], BITS[source])
    if source[0] in "su" or (source[0] == "b" and source != "bf16"):
        return f"{c.to(c.a[0])} = {_from_integer(c, target, source, x)};"
    if c.has("ftz") and source == "f32":
        x = f"flush({x})"
    return f"{c.to(c.a[0])} = {_from_float(c, target, of_bits(source, x))};"


def _from_integer(c: Context, target: str, source: str, x: str) -> str:
    number = f"(({'s' if source[0] == 's' else 'u'}{BITS[source]}){x})"
    if target in ("f32", "f64", "f16", "bf16"):
        if c.has("rz", "rm", "rp"):
            raise Unsupported(c.ins.opcode)
        through = "(float)" if target == "f32" else "(double)"
        return to_bits(target, f"{through}{number}")
    bits, signed = BITS[target], target[0] == "s"
    if c.has("sat"):
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << min(bits, 63)) - 1)
        number = f"clamped((s64){number}, {low}ll, {high}ll)"
    return f"(u{c.width(c.a[0])})({'s' if signed else 'u'}{bits}){number}"


def _from_float(c: Context, target: str, number: str) -> str:
    rounding = next((p for p in c.parts if p in _ROUNDINGS), None)
    if target[0] in "su":
        bits = BITS[target]
        rounded = f"{_ROUNDINGS[rounding or 'rzi']}((double){number})"
        whole = f"integer_of({rounded}, {bits}, {int(target[0] == 's')})"
        return f"(u{c.width(c.a[0])})({'s' if target[0] == 's' else 'u'}{bits}){whole}"
    if rounding and rounding.endswith("i"):
        number = f"{_ROUNDINGS[rounding]}((double){number})"
    if c.has("sat"):
        number = f"saturated_f64({number})"
    if rounding in ("rz", "rm", "rp"):
        function = f"bits_{target}_{rounding}"
        if (target, rounding) not in (("f16", "rz"), ("bf16", "rz"), ("f32", "rz"), ("f32", "rm"), ("f32", "rp")):
            raise Unsupported(c.ins.opcode)
        return f"{function}({number})"
    result = to_bits(target, f"(float){number}" if target == "f32" else f"(double){number}")
    return f"flush({result})" if c.has("ftz") and target == "f32" else result


def _packed(c: Context, target: str, source: str) -> str:
    """Two values at once. From two float32 the first operand is the upper half."""
    if source in _SMALL:
        kind = _SMALL[source]
        shift = 4 if kind == "e2m1" else 8
        x = c.value(c.a[1], 16)
        low, high = (f"(u32){to_bits('f16', f'{kind}_of((u8)({x} >> {s}))')}" for s in (0, shift))
        return f"{low} | {high} << 16"
    if source == "f32":
        numbers = [of_bits("f32", c.value(x, 32)) for x in (c.a[2], c.a[1])]
    elif source in ("f16x2", "bf16x2"):
        half = source.removesuffix("x2")
        numbers = [of_bits(half, f"(u16)({c.value(c.a[1], 32)} >> {s})") for s in (0, 16)]
    else:
        raise Unsupported(c.ins.opcode)
    if target in _SMALL:
        if not c.has("satfinite"):
            raise Unsupported(c.ins.opcode)
        kind = _SMALL[target]
        return f"bits_{kind}({numbers[0]}) | (u16)bits_{kind}({numbers[1]}) << {4 if kind == 'e2m1' else 8}"
    function = f"bits_{target.removesuffix('x2')}" + ("_rz" if c.has("rz") else "")
    return f"(u32){function}({numbers[0]}) | (u32){function}({numbers[1]}) << 16"


def _pack_integers(c: Context) -> str:
    """cvt.pack.sat: a and b saturated side by side, below c's low bits."""
    target = c.parts[3]
    bits, signed = BITS[target], target[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    first, second = (f"((u32)clamped((s32){c.value(x, 32)}, {low}, {high}) & {(1 << bits) - 1}u)" for x in c.a[1:3])
    above = f" | (u32){c.value(c.a[3], 32)} << {2 * bits}" if len(c.a) > 3 else ""
    return f"{c.to(c.a[0])} = {second} | {first} << {bits}{above};"


def _updated(c: Context, how: str, x: str, second: str) -> str:
    """The new value of a location that holds `old`."""
    k = "s" if c.is_signed else "u"
    if how == "add" and c.type in ("f32", "f64"):
        return to_bits(c.type, f"{of_bits(c.type, 'old')} + {of_bits(c.type, x)}")
    if c.type in ("f16", "bf16", "f16x2", "bf16x2"):
        half = c.type.removesuffix("x2")
        operation = {"add": "sum_odd", "min": "minimum", "max": "maximum"}[how]
        words = [to_bits(half, f"{operation}({of_bits(half, f'(u16)(old >> {s})')}, {of_bits(half, f'(u16)({x} >> {s})')})")
                 for s in ((0, 16) if c.type.endswith("x2") else (0,))]
        return " | ".join(f"(u32){w} << {16 * i}" for i, w in enumerate(words))
    return {
        "add": f"old + {x}", "exch": x, "cas": f"old == {x} ? {second} : old", "and": f"old & {x}", "or": f"old | {x}",
        "xor": f"old ^ {x}", "inc": f"old >= {x} ? 0 : old + 1", "dec": f"old == 0 || old > {x} ? {x} : old - 1",
        "min": f"({k}{c.bits})old < ({k}{c.bits}){x} ? old : {x}", "max": f"({k}{c.bits})old > ({k}{c.bits}){x} ? old : {x}",
    }[how]


def atomic(c: Context) -> str:
    if c.has("v2", "v4", "v8", "async"):
        raise Unsupported(c.ins.opcode)
    target, address, *sources = c.a if c.name == "atom" else ("_", *c.a)
    how = next(p for p in c.parts if p in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"))
    x = f"(u{c.bits})({c.value(sources[0])})"
    second = c.value(sources[1]) if how == "cas" else "0"
    pointer = c.at(c.space(), c.address(address), c.bits // 8, "ATOMIC")
    return (f"{c.here()} {{ u{c.bits} *at = {pointer}, old = *at; *at = (u{c.bits})({_updated(c, how, x, second)}); "
            f"{c.to(target)} = old; }}")


def copy(c: Context) -> str:
    """cp.async and its relatives; `cp.async.bulk` copies are the tensor and bulk ones."""
    op = c.ins.opcode
    if op.startswith("cp.async.bulk"):
        return _bulk(c)
    if op.startswith("cp.async.commit_group"):
        return "copy_commit(t);"
    if op.startswith("cp.async.wait_group"):
        return f"{c.here()} copy_wait(b, t, {c.a[0]});"
    if op.startswith("cp.async.wait_all"):
        return f"{c.here()} copy_commit(t); copy_wait(b, t, 0);"
    if op.startswith("cp.async.mbarrier.arrive"):
        return f"{c.here()} copy_arrive(b, t, {c.address(c.a[0])}, {int(not c.has('noinc'))});"
    if not c.has("cg", "ca"):
        raise Unsupported(op)
    plain = [x for x in c.a[3:] if not c.has("L2::cache_hint") or x != c.a[-1]]
    source_size = c.value(plain[0], 32) if plain else c.a[2]
    if plain and (r := c.register(plain[0])) and r.bits == 1:           # ignore-src
        source_size = f"({source_size} ? 0 : {c.a[2]})"
    return f"{c.here()} copy_async(b, t, {c.address(c.a[0])}, {c.address(c.a[1])}, {c.a[2]}, {source_size});"


def _tensor(c: Context, operand: str) -> tuple[str, str]:
    """`[map, {x, y}]` as the map's address and C that makes the array `at`."""
    m = re.fullmatch(r"\[(.+?),\s*\{(.*)\}\]", operand)
    if not m:
        raise Unsupported(c.ins.opcode)
    places = [c.value(x.strip(), 32) for x in m.group(2).split(",")]
    return c.value(m.group(1).strip(), 64), f"s32 at[5] = {{{', '.join(f'(s32){p}' for p in places)}}};"


def _bulk(c: Context) -> str:
    op = c.ins.opcode
    if op.startswith("cp.async.bulk.commit_group"):
        return "t->bulk_groups++;"
    if op.startswith("cp.async.bulk.wait_group"):
        return f"{c.here()} bulk_wait(b, t, {c.a[0]});"
    if c.has("prefetch"):
        return ";"
    if c.has("reduce", "multicast::cluster", "im2col", "tile::gather4") or ".multicast" in op:
        raise Unsupported(op)
    loads = "mbarrier::complete_tx::bytes" in op
    if c.has("tensor"):
        if loads:
            tensor, at = _tensor(c, c.a[1])
            return f"{c.here()} {{ {at} tensor_load(b, t, {c.address(c.a[0])}, {tensor}, {c.address(c.a[2])}, at); }}"
        tensor, at = _tensor(c, c.a[0])
        return f"{c.here()} {{ {at} tensor_store(b, t, {tensor}, {c.address(c.a[1])}, at); }}"
    to, source, size = c.address(c.a[0]), c.address(c.a[1]), c.value(c.a[2], 32)
    if loads:
        return f"{c.here()} bulk_load(b, t, {to}, {source}, {size}, {c.address(c.a[3])});"
    return f"{c.here()} bulk_store(b, t, {to}, {source}, {size});"


TABLE: dict[str, Callable[[Context], str]] = {
    "mov": move, "ld": load, "ldu": load, "st": store, "cvta": convert_address, "isspacep": is_space, "cvt": convert,
    "atom": atomic, "red": atomic, "cp": copy,
}
