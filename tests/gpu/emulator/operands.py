"""Operands to C: registers, immediates, special registers, addresses. And the context that instruction tables write with."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.gpu.emulator.parse import BITS, Function, Instruction, Program, Register, Variable

_VECTORS = {"%tid": "t->tid", "%ctaid": "b->ctaid", "%ntid": "b->ntid", "%nctaid": "b->nctaid", "%clusterid": "b->ctaid",
            "%nclusterid": "b->nctaid"}
_SPECIAL = {
    "%laneid": "t->lane", "%warpid": "t->warp", "%nwarpid": "((b->thread_count + 31) / 32)", "WARP_SZ": "32u",
    "%lanemask_eq": "(1u << t->lane)", "%lanemask_lt": "((1u << t->lane) - 1)", "%lanemask_le": "((2u << t->lane) - 1)",
    "%lanemask_gt": "~((2u << t->lane) - 1)", "%lanemask_ge": "~((1u << t->lane) - 1)",
    "%smid": "(b->number % 132)", "%nsmid": "132u", "%gridid": "0u", "%clock": "(u32)t->loops", "%clock_hi": "0u",
    "%clock64": "t->loops", "%globaltimer": "t->loops", "%globaltimer_lo": "(u32)t->loops", "%globaltimer_hi": "0u",
    "%cluster_ctarank": "0u", "%cluster_nctarank": "1u", "%is_explicit_cluster": "0", "%envreg0": "0u",
    "%dynamic_smem_size": "(b->shared_size - b->dynamic_offset)", "%total_smem_size": "b->shared_size",
    "%aggr_smem_size": "b->shared_size",
}
_SPECIAL |= {f"%cluster_{kind}.{axis}": value for kind, value in (("ctaid", "0u"), ("nctaid", "1u")) for axis in "xyz"}
_SPACES = ("param", "global", "shared", "local", "const")


class Unsupported(Exception):
    """What the emulator cannot do: it becomes a failure of whoever executes it."""


@dataclass
class Layout:
    """Where a kernel's shared and local variables lie."""

    offsets: dict[Variable, int] = field(default_factory=dict)
    shared_size: int = 0
    local_size: int = 0
    dynamic_alignment: int = 16

    def add(self, v: Variable) -> None:
        if v in self.offsets:
            return
        if v.size is None:
            self.offsets[v] = 0
            self.dynamic_alignment = max(self.dynamic_alignment, v.alignment)
        elif v.space == "shared":
            self.offsets[v] = -(-self.shared_size // v.alignment) * v.alignment
            self.shared_size = self.offsets[v] + v.size
        else:
            self.offsets[v] = -(-self.local_size // 16) * 16
            self.local_size = self.offsets[v] + v.size


@dataclass(frozen=True)
class Frame:
    """A call of a function, whose text is put in the place of it. passed: the caller's variables by the function's names."""

    number: int
    function: Function
    passed: dict[str, Variable] = field(default_factory=dict)
    caller: "Frame | None" = None

    @property
    def suffix(self) -> str:
        """Of labels: those of a kernel have none."""
        return f"_{self.number}" if self.number else ""


class Context:
    """What an instruction's C is written with: its operands as expressions over raw bits.

    `ins` is the instruction, `a` its operands, `type` its last qualifier and `bits` the width of that type.
    """

    def __init__(self, program: Program, frame: Frame, layout: Layout, ins: Instruction, suspend: Callable[[], int]):
        self.program, self.frame, self.layout, self.ins, self._next_resume = program, frame, layout, ins, suspend
        self.a = ins.operands
        self.parts = ins.parts
        self.name = self.parts[0]
        self.type = self.parts[-1]
        self.bits = BITS.get(self.type, 32)

    def has(self, *qualifiers: str) -> bool:
        return any(q in self.parts for q in qualifiers)

    @property
    def is_signed(self) -> bool:
        return self.type.startswith("s")

    def space(self) -> str | None:
        """The state space among the qualifiers, or None for generic addresses."""
        plain = [p.split("::")[0] for p in self.parts[1:]]
        return next((p for p in plain if p in _SPACES), None)

    def space_of(self, address: str) -> str | None:
        """The space that an address lies in: what is passed in a call lies in local memory."""
        space = self.space()
        if space != "param":
            return space
        name = re.match(r"[\w$]*", address.strip("[ ")).group()         # type: ignore[union-attr]
        return "local" if self._variable(name) else "param"

    def label(self, name: str) -> str:
        """A label in C."""
        found = self.ins.scope.find("labels", name)
        if found is None:
            raise Unsupported(f"label {name}")
        return found + self.frame.suffix

    def _variable(self, name: str) -> Variable | None:
        return self.ins.scope.find("variables", name) or self.frame.passed.get(name) or self.program.variables.get(name)

    def register(self, name: str) -> Register | None:
        return self.ins.scope.find("registers", name)

    def to(self, operand: str) -> str:
        """An operand that is written to."""
        if operand == "_":
            return "t->unused"
        register = self.register(operand)
        if register is None:
            raise Unsupported(f"result {operand}")
        return f"r->{register.name}"

    def width(self, operand: str) -> int:
        register = self.register(operand)
        return max(register.bits, 8) if register else 64

    def value(self, operand: str, bits: int | None = None) -> str:
        """An operand that is read, as an expression of (at least) `bits` bits, by default the instruction's width."""
        bits = self.bits if bits is None else bits
        if operand == "_":
            return "0"
        if operand.startswith("!"):
            return "!" + self.value(operand[1:], bits)
        if register := self.register(operand):
            return f"r->{register.name}"
        if operand in _SPECIAL:
            return _SPECIAL[operand]
        if (m := re.fullmatch(r"(%\w+)\.([xyz])", operand)) and m.group(1) in _VECTORS:
            return f"{_VECTORS[m.group(1)]}[{'xyz'.index(m.group(2))}]"
        if m := re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", operand):
            return f"0x{m.group(2)}u" if m.group(1) in "fF" else f"0x{m.group(2)}ull"
        if re.match(r"-?\d", operand):
            number = operand.rstrip("Uu")
            return f"((u64){number}ll)" if bits == 64 else f"((u{max(bits, 8)}){number})"
        return self._symbol(operand)

    def _symbol(self, operand: str) -> str:
        """The address of a variable or parameter, with an offset."""
        m = re.fullmatch(r"([\w$]+)(?:\+(-?\w+))?", operand)
        if not m:
            raise Unsupported(f"operand {operand}")
        name, offset = m.group(1), int(m.group(2) or "0", 0)
        v = self._variable(name)
        if v is not None and v.space in ("shared", "local", "param"):
            self.layout.add(v)
            if v.size is None:
                return f"(SHARED_BASE + b->dynamic_offset + {offset})"
            base = "SHARED_BASE + " if v.space == "shared" else ""
            return f"({base}{self.layout.offsets[v] + offset}u)"
        if v is not None:
            return f"((u64){symbol(name)} + {offset})"
        if p := self.frame.function.parameter(name):
            return f"((u64)b->parameters + {p.offset + offset})"
        raise Unsupported(f"name {name}")

    def address(self, operand: str) -> str:
        """`[register + offset]`, `[symbol + offset]` or a number in brackets."""
        inner = operand.strip()[1:-1].strip()
        if (m := re.fullmatch(r"(%[\w$]+)\s*\+\s*(-?\w+)", inner)) and self.register(m.group(1)):
            register = self.value(m.group(1), 64)
            return f"((u64){register} + (s64)({m.group(2)}))" if self.width(m.group(1)) == 64 else \
                f"((u32)({register} + (u32)({m.group(2)})))"
        return self.value(inner.replace(" ", ""), 64)

    def at(self, space: str | None, address: str, size: int, access: str) -> str:
        """A checked pointer to `size` bytes. access: READ, WRITE or ATOMIC."""
        where = {"param": "parameter", "const": "constant", None: "generic"}.get(space, space)
        return f"{where}_at(b, t, {address}, {size}, {access})"

    def here(self) -> str:
        """Notes the CUDA line, before what may fail."""
        return f"t->location = {self.ins.location};"

    def suspended(self, state: str, setup: str, after: str = "") -> str:
        """Leaves the thread waiting in `state`; `after` runs when it goes on."""
        n = self._next_resume()
        return f"{self.here()} {setup} t->resume = {n}; return {state}; resume_{n}: {after}"

    def list(self, operand: str) -> list[str]:
        """`{a, b}` as [a, b], and a plain operand as one."""
        return split_braces(operand) if operand.startswith("{") else [operand]


def split_braces(operand: str) -> list[str]:
    return [x.strip() for x in operand.strip()[1:-1].split(",")]


def symbol(name: str) -> str:
    """A module's variable in C."""
    return "variable_" + re.sub(r"\W", "_D", name)
