"""A parsed program as one C translation unit: a function per kernel, and the tables the runtime finds them by."""

import itertools
import re
from collections.abc import Callable

from tests.gpu.emulator import collectives, floats, integers, memory
from tests.gpu.emulator.operands import Context, Frame, Layout, Unsupported, symbol
from tests.gpu.emulator.parse import Function, Instruction, Label, Program, Variable, split_operands


def translate(program: Program) -> tuple[str, list[str]]:
    """The C text, and the opcodes that fail when they are executed."""
    unsupported: set[str] = set()
    kernels = [f for f in program.functions if f.is_kernel]
    parts = ['#include "ptx.h"', *(_variable(v) for v in program.variables.values() if v.space in ("global", "const"))]
    rows = []
    for i, function in enumerate(kernels):
        text, layout = _Kernel(program, function, i, unsupported).write()
        parts.append(text)
        rows.append(_row(function, i, layout))
    parts.append("const Kernel KERNELS[] = {\n" + ",\n".join([*rows, "{0}"]) + "\n};")
    parts.append(f"const u32 KERNEL_COUNT = {len(rows)};")
    parts.append(_variables_table(list(program.variables.values())))
    names = ",\n".join(_quoted(x) for x in program.locations)
    parts.append(f"const char *const LOCATIONS[] = {{\n{names}\n}};")
    return "\n".join(parts) + "\n", sorted(unsupported)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _row(function: Function, index: int, layout: Layout) -> str:
    return (f'{{"{function.name}", kernel_{index}, {layout.shared_size}, {layout.dynamic_alignment}, {-(-layout.local_size // 16) * 16}, '
            f"sizeof(registers_{index}), {function.max_threads}, {function.size}, {len(function.parameters)}, parameters_{index}}}")


def _variable(v: Variable) -> str:
    bits = v.element_bits
    size = v.size or bits // 8
    values = ", ".join(_constant(x, bits) for x in v.values) or "0"
    return f"static u{bits} __attribute__((aligned({max(v.alignment, 16)}))) {symbol(v.name)}[{size * 8 // bits}] = {{{values}}};"


def _constant(text: str, bits: int) -> str:
    if m := re.fullmatch(r"0[fFdD]([0-9A-Fa-f]+)", text):
        return f"0x{m.group(1)}ull"
    if not re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
        raise Unsupported(f"initial value {text}")
    return f"(u{bits}){text.rstrip('U')}ll"


def _variables_table(variables: list[Variable]) -> str:
    rows = [f'{{"{v.name}", {symbol(v.name)}, sizeof {symbol(v.name)}, {int(v.space == "global")}}}'
            for v in variables if v.space in ("global", "const")]
    return f"const Variable VARIABLES[] = {{{', '.join([*rows, '{0}'])}}};\nconst u32 VARIABLE_COUNT = {len(rows)};"


def _handler(ins: Instruction) -> Callable[[Context], str] | None:
    name, type_ = ins.parts[0], ins.parts[-1]
    if type_ in floats.FLOATS and name in floats.TABLE and not (name in ("min", "max") and len(ins.operands) > 3):
        return floats.TABLE[name]
    for table in (integers.TABLE, memory.TABLE, collectives.TABLE):
        if name in table:
            return table[name]
    return None


class _Kernel:
    """Writes one kernel. Functions that it calls become part of it, once for every call."""

    def __init__(self, program: Program, function: Function, index: int, unsupported: set[str]):
        self.program, self.function, self.index, self.unsupported = program, function, index, unsupported
        self.layout = Layout()
        self.resumes, self.calls = itertools.count(1), itertools.count(1)
        self.last_resume = 0
        self.passed: set[str] = set()           # labels above: a branch to one is a loop
        self.called: list[Function] = []

    def write(self) -> tuple[str, Layout]:
        body = self._body(Frame(0, self.function))
        k = self.index
        fields = [r for f in (self.function, *self.called) for r in f.registers]
        registers = " ".join(f"u{max(r.bits, 8)} {r.name};" for r in sorted(fields, key=lambda r: -r.bits))
        cases = " ".join(f"case {n}: goto resume_{n};" for n in range(1, self.last_resume + 1))
        sizes = ", ".join(f"{p.offset}, {p.size}" for p in self.function.parameters) or "0"
        head = [f"typedef struct {{ {registers} u32 unused; }} registers_{k};", f"static const u32 parameters_{k}[] = {{{sizes}}};",
                f"static int kernel_{k}(Thread *t, Block *b) {{", f"registers_{k} *restrict r = t->registers;",
                f"switch (t->resume) {{ {cases} }}"]
        return "\n".join([*head, *body, "return EXITED;", "}"]), self.layout

    def _body(self, frame: Frame) -> list[str]:
        for v in frame.function.variables:
            self.layout.add(v)
        return [self._statement(s, frame) for s in frame.function.statements]

    def _suspend(self) -> int:
        self.last_resume = next(self.resumes)
        return self.last_resume

    def _statement(self, statement: Label | Instruction, frame: Frame) -> str:
        if isinstance(statement, Label):
            self.passed.add(statement.name + frame.suffix)
            return f"{statement.name}{frame.suffix}:;"
        c = Context(self.program, frame, self.layout, statement, self._suspend)
        text = self._instruction(c)
        if statement.predicate is None:
            return text
        return f"if ({'!' if statement.negated else ''}{c.value(statement.predicate, 1)}) {{ {text} }}"

    def _instruction(self, c: Context) -> str:
        handler = self._call if c.name == "call" else _handler(c.ins)
        try:
            if handler is None:
                raise Unsupported(c.ins.opcode)
            text = handler(c)
        except (Unsupported, KeyError, IndexError, StopIteration):        # a qualifier or operand its table does not know
            self.unsupported.add(c.ins.opcode)
            return f'{c.here()} fail(b, t, {_quoted("unsupported PTX: " + c.ins.opcode)}, 0, 0);'
        return self._counted(c, text)

    def _call(self, c: Context) -> str:
        """`call (result), function, (arguments)`, where each is a .param variable of the caller."""
        lists = [split_operands(x[1:-1]) if x.startswith("(") else [] for x in c.a]
        name = next(x for x in c.a if not x.startswith("("))
        function = next((f for f in self.program.functions if f.name == name), None)
        if function is None or function in self._callers(c.frame):
            raise Unsupported(c.ins.opcode)                     # a pointer, or what the driver provides, or itself
        if function not in self.called:
            self.called.append(function)
        names = [*([function.returns] if function.returns else []), *(p.name for p in function.parameters)]
        given = [x for part in lists for x in part]
        passed = {inner: c.ins.scope.find("variables", outer) for inner, outer in zip(names, given, strict=True)}
        frame = Frame(next(self.calls), function, passed, c.frame)
        return " ".join(["{", *self._body(frame), "}", f"returned{frame.suffix}:;"])

    def _callers(self, frame: Frame) -> list[Function]:
        return [frame.function, *(self._callers(frame.caller) if frame.caller else [])]

    def _counted(self, c: Context, text: str) -> str:
        if (c.name == "bra" and c.label(c.a[0]) in self.passed) or c.name == "brx":
            return f"{c.here()} count_loop(b, t, loop_limit); {text}"
        return text
