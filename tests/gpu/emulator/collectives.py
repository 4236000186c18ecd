"""Control flow, barriers, warp collectives and matrix instructions: what makes threads wait for each other (PTX ISA, Control
Flow Instructions; Parallel Synchronization and Communication; Warp Level and Asynchronous Warpgroup Level Matrix)."""

import re
from collections.abc import Callable

from tests.gpu.emulator.operands import Context, Unsupported

_KINDS = {"f16": "ELEMENT_F16", "bf16": "ELEMENT_BF16", "tf32": "ELEMENT_TF32", "e4m3": "ELEMENT_E4M3", "e5m2": "ELEMENT_E5M2",
          "s8": "ELEMENT_S8", "u8": "ELEMENT_U8"}
_SHAPES = {"ELEMENT_F16": ("m16n8k8", "m16n8k16"), "ELEMENT_BF16": ("m16n8k8", "m16n8k16"), "ELEMENT_TF32": ("m16n8k4", "m16n8k8"),
           **dict.fromkeys(("ELEMENT_S8", "ELEMENT_U8", "ELEMENT_E4M3", "ELEMENT_E5M2"), ("m16n8k16", "m16n8k32"))}
_SHUFFLES = {"up": "SHUFFLE_UP", "down": "SHUFFLE_DOWN", "bfly": "SHUFFLE_XOR", "idx": "SHUFFLE_INDEX"}
_VOTES = {"ballot": "VOTE_BALLOT", "any": "VOTE_ANY", "all": "VOTE_ALL", "uni": "VOTE_UNIFORM"}


def _inputs(values: list[str], first: int = 0) -> str:
    return "".join(f"t->in[{first + i}] = {v}; " for i, v in enumerate(values))


def _collective(c: Context, operation: str, mask: str, setup: str, after: str, variant: str = "0") -> str:
    return c.suspended("AT_COLLECTIVE", f"t->operation = {operation}; t->variant = {variant}; t->mask = {mask}; {setup}", after)


def _results(c: Context, operands: list[str]) -> str:
    return "".join(f"{c.to(x)} = t->out[{i}]; " for i, x in enumerate(operands))


def branch(c: Context) -> str:
    return f"goto {c.label(c.a[0])};"


def branch_indexed(c: Context) -> str:
    cases = "".join(f"case {i}: goto {c.label(x)}; " for i, x in enumerate(c.frame.function.branch_targets[c.a[1]]))
    return f"switch ({c.value(c.a[0], 32)}) {{ {cases} default: fail(b, t, \"brx.idx past its targets\", 0, 0); }}"


def leave(c: Context) -> str:
    """ret goes back to who called, exit ends the thread."""
    return f"goto returned{c.frame.suffix};" if c.name == "ret" and c.frame.number else "return EXITED;"


def trap(c: Context) -> str:
    return f'{c.here()} fail(b, t, "trap", 0, 0);'


def barrier(c: Context) -> str:
    op = c.ins.opcode
    if op.startswith("bar.warp.sync"):
        return _collective(c, "SYNC", c.value(c.a[0], 32), "", "")
    if c.has("cluster"):
        raise Unsupported(op)
    if c.has("arrive"):
        return f"{c.here()} barrier_arrive(b, t, {c.value(c.a[0], 32)});"
    if c.has("red"):
        how = next(p for p in c.parts if p in ("and", "or", "popc"))
        target, number, *rest = c.a
        predicate = c.value(rest[-1], 1)
        threads = c.value(rest[0], 32) if len(rest) == 2 else "0"
        return _at_barrier(c, f"BARRIER_{how.upper()}", number, threads, predicate, f"{c.to(target)} = t->out[0];")
    threads = c.value(c.a[1], 32) if len(c.a) > 1 else "0"
    return _at_barrier(c, "BARRIER_SYNC", c.a[0], threads, "0", "")


def _at_barrier(c: Context, operation: str, number: str, threads: str, predicate: str, after: str) -> str:
    setup = f"t->operation = {operation}; t->variant = {c.value(number, 32)}; t->mask = {threads}; t->in[0] = {predicate};"
    return c.suspended("AT_BARRIER", setup, after)


def shuffle(c: Context) -> str:
    if not c.has("sync"):
        raise Unsupported(c.ins.opcode)
    values = [c.value(x, 32) for x in c.a[1:4]]
    return _collective(c, "SHUFFLE", c.value(c.a[4], 32), _inputs(values), _results(c, c.a[0].split("|")), _SHUFFLES[c.parts[2]])


def vote(c: Context) -> str:
    kind = next(p for p in c.parts if p in _VOTES)
    return _collective(c, "VOTE", c.value(c.a[2], 32), f"t->in[0] = !!({c.value(c.a[1], 1)});", _results(c, [c.a[0]]), _VOTES[kind])


def redux(c: Context) -> str:
    how = c.parts[2]
    if c.type not in ("s32", "u32", "b32"):
        raise Unsupported(c.ins.opcode)
    name = f"REDUX_{how.upper()}" + (f"_{'S' if c.is_signed else 'U'}" if how in ("min", "max") else "")
    return _collective(c, "REDUX", c.value(c.a[2], 32), _inputs([c.value(c.a[1], 32)]), _results(c, [c.a[0]]), name)


def match(c: Context) -> str:
    kind = {"any": "MATCH_ANY", "all": "MATCH_ALL"}[c.parts[1]]
    return _collective(c, kind, c.value(c.a[2], 32), _inputs([c.value(c.a[1])]), _results(c, c.a[0].split("|")))


def elect(c: Context) -> str:
    return _collective(c, "ELECT", c.value(c.a[1], 32), "", _results(c, c.a[0].split("|")))


def active_mask(c: Context) -> str:
    """Lanes are never known to run together here, so a lane sees itself alone."""
    return f"{c.to(c.a[0])} = 1u << t->lane;"


def matrix_load_or_store(c: Context) -> str:
    count = next((p for p in c.parts if p in ("x1", "x2", "x4")), None)
    if not c.has("m8n8") or count is None:
        raise Unsupported(c.ins.opcode)
    variant = f"{int(count[1:]) | (16 if c.has('trans') else 0)}"
    if c.name == "ldmatrix":
        setup = _inputs([_shared_window(c, c.a[1])])
        return _collective(c, "LDMATRIX", "~0u", setup, _results(c, c.list(c.a[0])), variant)
    values = [c.value(x, 32) for x in c.list(c.a[1])]
    return _collective(c, "STMATRIX", "~0u", _inputs([_shared_window(c, c.a[0]), *values]), "", variant)


def _shared_window(c: Context, operand: str) -> str:
    if c.space() != "shared":
        raise Unsupported(f"{c.ins.opcode} of a generic address")
    return c.address(operand)


def matrix_multiply(c: Context) -> str:
    """mma.sync.aligned.SHAPE.row.col.D.A.B.C"""
    d_type, a_type, b_type, c_type = c.parts[-4:]
    accumulator = {("f32", "f32"): "ACCUMULATE_F32", ("s32", "s32"): "ACCUMULATE_S32", ("f16", "f16"): "ACCUMULATE_F16"}.get(
        (d_type, c_type))
    kinds = _KINDS.get(a_type), _KINDS.get(b_type)
    if accumulator is None or None in kinds or c.parts[3] not in _SHAPES[kinds[0]] or c.has("sp", "satfinite", "block_scale"):
        raise Unsupported(c.ins.opcode)
    d, a, b, added = (c.list(x) for x in c.a[:4])
    variant = f"{kinds[0]} | {kinds[1]} << 4 | {len(a)} << 8 | {len(b)} << 12 | {accumulator} << 16"
    setup = _inputs([c.value(x, 32) for x in (*a, *b, *added)])
    return _collective(c, "MMA", "~0u", setup, _results(c, d), variant)


def warpgroup(c: Context) -> str:
    """wgmma: computed when it is issued; fence, commit and wait order what ptxas does, which is not modelled."""
    if not c.has("mma_async"):
        return ";"
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", c.parts[4])
    d_type, a_type, b_type = c.parts[5:8]
    integers = d_type == "s32"
    if shape is None or c.has("sp") or d_type not in ("f32", "s32") or not {a_type, b_type} <= set(_KINDS):
        raise Unsupported(c.ins.opcode)
    d = c.list(c.a[0])
    negated = c.a[4:6] if not integers else ()
    transposed = c.a[6:] if c.a[1].startswith("[") or not c.a[1].startswith("{") else c.a[6:7]
    if any(x != "1" for x in negated) or any(x != "0" for x in transposed):
        raise Unsupported(f"{c.ins.opcode} with negated or transposed operands")
    in_registers = c.a[1].startswith("{")
    a = [c.value(x, 32 if in_registers else 64) for x in c.list(c.a[1])]
    variant = f"{shape.group(1)} | {_KINDS[a_type]} << 10 | {_KINDS[b_type]} << 14 | {int(in_registers)} << 18 | {int(integers)} << 19"
    setup = f"t->variant = {variant}; {_inputs(a)} t->in[8] = {c.value(c.a[3], 1)}; t->in[9] = {c.value(c.a[2], 64)}; "
    setup += "".join(f"t->accumulators[{i}] = {c.value(x, 32)}; " for i, x in enumerate(d))
    return c.suspended("AT_WGMMA", setup, "".join(f"{c.to(x)} = t->accumulators[{i}]; " for i, x in enumerate(d)))


def mbarrier(c: Context) -> str:
    how = c.parts[1]
    place = next(x for x in c.a if x.startswith("["))
    address, after = c.address(place), c.a[c.a.index(place) + 1:]
    if how == "init":
        return f"{c.here()} mbarrier_init(b, t, {address}, {c.value(after[0], 32)});"
    if how == "inval":
        return ";"
    if how in ("expect_tx", "complete_tx"):
        sign = "-" if how == "complete_tx" else ""
        return f"{c.here()} mbarrier_expect(b, t, {address}, {sign}(u32){c.value(after[0], 32)});"
    if how == "arrive":
        target = c.to(c.a[0]) if c.a[0] != place else "t->unused"
        expects = c.has("expect_tx")
        count = "1" if expects or not after else c.value(after[0], 32)
        bytes_ = c.value(after[-1], 32) if expects else "0"
        return f"{c.here()} {target} = mbarrier_arrive(b, t, {address}, {count}, {bytes_});"
    if how in ("try_wait", "test_wait"):
        setup = f"mbarrier_use(b, t, {address}); t->in[0] = {address}; t->in[1] = {c.value(after[0], 64)}; t->in[2] = {int(how == 'try_wait')};"
        return c.suspended("AT_MBARRIER", setup, f"{c.to(c.a[0])} = t->out[0];")
    raise Unsupported(c.ins.opcode)


def nothing(c: Context) -> str:
    return ";"


def cache_policy(c: Context) -> str:
    return f"{c.to(c.a[0])} = 0;"


TABLE: dict[str, Callable[[Context], str]] = {
    "bra": branch, "brx": branch_indexed, "ret": leave, "exit": leave, "trap": trap, "bar": barrier, "barrier": barrier,
    "shfl": shuffle, "vote": vote, "redux": redux, "match": match, "elect": elect, "activemask": active_mask,
    "ldmatrix": matrix_load_or_store, "stmatrix": matrix_load_or_store, "mma": matrix_multiply, "wgmma": warpgroup,
    "mbarrier": mbarrier, "createpolicy": cache_policy,
    **dict.fromkeys(("membar", "fence", "prefetch", "prefetchu", "griddepcontrol", "discard", "applypriority", "setmaxnreg",
                     "nanosleep", "pragma"), nothing),
}
