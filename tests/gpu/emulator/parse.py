"""PTX text to kernels: scopes with registers, labels and variables, and statements in order. Knows no instruction."""

import re
from dataclasses import dataclass, field

BITS = {"pred": 1, **dict.fromkeys(("b8", "u8", "s8"), 8), **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
        **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 32),
        **dict.fromkeys(("b64", "u64", "s64", "f64"), 64), "b128": 128}

_FUNCTION = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b")
_DIRECTIVE = re.compile(r"\.(loc|file|version|target|address_size|pragma)\b([^\n]*)")
_LABEL = re.compile(r"([\w$]+):(?!:)")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$]+)"
                        r"(?:\[(\d+)\])?")
_VARIABLE = re.compile(r"(?:\.(?:visible|weak|extern|common) )*\.(shared|global|const|local|param) (?:\.attribute\(\S+\) )?"
                       r"(?:\.align (\d+) )?\.(\w+) ([\w$]+)(?:\[(\d*)\])?(?: ?= ?(.*))?$")
_PREDICATED = re.compile(r"@(!?)(%?[\w$]+) (.*)$")


@dataclass(frozen=True)
class Register:
    name: str                   # in C
    bits: int


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True)
class Variable:
    """A variable in .shared, .global, .const or .local memory, or .param: what a call passes, which is local memory here.
    `size` None: dynamic shared memory."""

    name: str
    space: str
    size: int | None
    alignment: int
    element_bits: int
    values: tuple[str, ...] = ()


@dataclass(eq=False)
class Scope:
    number: int
    parent: "Scope | None" = None
    registers: dict[str, Register] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)            # name: name in C
    variables: dict[str, Variable] = field(default_factory=dict)

    def find(self, table: str, name: str):
        """What `name` is in the innermost scope that has it, or None. table: registers, labels or variables."""
        scope: Scope | None = self
        while scope:
            if (found := getattr(scope, table).get(name)) is not None:
                return found
            scope = scope.parent
        return None


@dataclass(frozen=True)
class Label:
    name: str                   # in C


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[str, ...]
    predicate: str | None
    location: int
    scope: Scope
    negated: bool = False

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass(eq=False)
class Function:
    name: str
    is_kernel: bool
    max_threads: int
    parameters: list[Parameter] = field(default_factory=list)
    statements: list[Label | Instruction] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)         # shared, local and param ones of any scope
    returns: str | None = None                                      # the name of what a function returns
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    size: int = 0                                                   # of the parameters

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)


@dataclass
class Program:
    functions: list[Function] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    locations: list[str] = field(default_factory=lambda: ["an unknown line"])


def split_operands(text: str) -> list[str]:
    """At commas that are in no bracket."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            out.append(text[start:i].strip())
            start = i + 1
    return [*out, text[start:].strip()] if text[start:].strip() else out


def parse(ptx: str) -> Program:
    return _Parser(ptx).run()


class _Parser:
    """One pass over the text; `at` is where it is."""

    def __init__(self, ptx: str):
        text = re.sub(r"/\*.*?\*/", "", ptx, flags=re.S)
        self.text = re.sub(r"//[^\n]*", "", text)
        self.at = 0
        self.program = Program()
        self.files: dict[str, str] = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M))
        self.function: Function | None = None
        self.scope = Scope(0)
        self.scopes = 0
        self.location = 0
        self.last_label = ""
        self.known_locations = {"an unknown line": 0}

    def run(self) -> Program:
        while self._skip_space():
            if self.function is None:
                if self.text.startswith(".section", self.at):       # debug information: to the end
                    break
                self._at_module()
            else:
                self._at_function(self.function)
        return self.program

    def _skip_space(self) -> bool:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    def _at_module(self) -> None:
        if m := _FUNCTION.match(self.text, self.at):
            self._head(m.group(1) == "entry")
        elif m := _DIRECTIVE.match(self.text, self.at):
            self.at = m.end()
        else:
            statement = self._statement()
            if m := _VARIABLE.match(statement):
                v = _variable(m)
                self.program.variables[v.name] = v

    def _head(self, is_kernel: bool) -> None:
        opening, semicolon = self.text.index("{", self.at), self.text.find(";", self.at)
        if 0 <= semicolon < opening:                                # a prototype
            self.at = semicolon + 1
            return
        head = self.text[self.at:opening]
        self.at = opening + 1
        m = re.search(r"\.(?:entry|func)\s+(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\((.*?)\))?", head, re.S)
        assert m, head
        returned = _PARAMETER.search(m.group(1) or "")
        limit = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
        threads = 1024
        if limit:
            threads = int(limit.group(1)) * int(limit.group(2) or 1) * int(limit.group(3) or 1)
        self.function = Function(m.group(2), is_kernel, threads, returns=returned.group(3) if returned else None)
        self.program.functions.append(self.function)
        self.scope, self.location = Scope(self._next_scope()), 0
        for p in split_operands(m.group(3) or ""):
            self._parameter(self.function, p)

    def _parameter(self, function: Function, text: str) -> None:
        m = _PARAMETER.search(text)
        assert m, text
        width = BITS[m.group(2)] // 8
        alignment = max(int(m.group(1) or 0), width)
        offset = -(-function.size // alignment) * alignment
        function.parameters.append(Parameter(m.group(3), m.group(2), offset, width * int(m.group(4) or 1)))
        function.size = offset + function.parameters[-1].size

    def _next_scope(self) -> int:
        self.scopes += 1
        return self.scopes

    def _at_function(self, function: Function) -> None:
        c = self.text[self.at]
        if c == "}":
            self.at += 1
            if self.scope.parent is None:
                self.function = None
            else:
                self.scope = self.scope.parent
        elif c == "{":
            self.at += 1
            self.scope = Scope(self._next_scope(), self.scope)
        elif m := _DIRECTIVE.match(self.text, self.at):
            self.at = m.end()
            if m.group(1) == "loc":
                self.location = self._locate(m.group(2))
        elif m := _LABEL.match(self.text, self.at):
            self.at = m.end()
            self.last_label = m.group(1)
            name = "L" + re.sub(r"\W", "_", m.group(1)) + f"_{self.scope.number}"
            self.scope.labels[m.group(1)] = name
            function.statements.append(Label(name))
        else:
            self._in_function(function, self._statement())

    def _locate(self, text: str) -> int:
        """`.loc file line column[, function_name ..., inlined_at file line column]`"""
        words = text.replace(",", " ").split()
        name = f"{self._file(words[0])}:{words[1]}"
        if "inlined_at" in words:
            k = words.index("inlined_at")
            name += f" inlined at {self._file(words[k + 1])}:{words[k + 2]}"
        if name not in self.known_locations:
            self.known_locations[name] = len(self.program.locations)
            self.program.locations.append(name)
        return self.known_locations[name]

    def _file(self, number: str) -> str:
        return self.files.get(number, "?").rsplit("/", 1)[-1]

    def _statement(self) -> str:
        """Up to the semicolon outside of braces, with single spaces."""
        depth, end = 0, self.at
        while not (self.text[end] == ";" and depth == 0):
            depth += (self.text[end] == "{") - (self.text[end] == "}")
            end += 1
        text = " ".join(self.text[self.at:end].split())
        self.at = end + 1
        return text

    def _in_function(self, function: Function, text: str) -> None:
        if text.startswith(".reg "):
            self._registers(function, *text.removeprefix(".reg .").split(" ", 1))
        elif text.startswith(".branchtargets"):
            function.branch_targets[self.last_label] = split_operands(text.split(None, 1)[1])
        elif m := _VARIABLE.match(text):
            v = _variable(m)
            self.scope.variables[v.name] = v
            function.variables.append(v)
        elif not text.startswith("."):
            function.statements.append(self._instruction(text))

    def _registers(self, function: Function, type_: str, names: str) -> None:
        for name in split_operands(names):
            m = re.match(r"([%\w$]+)<(\d+)>", name)
            for n in [f"{m.group(1)}{k}" for k in range(int(m.group(2)))] if m else [name]:
                register = Register(re.sub(r"\W", "_", n) + f"_{self.scope.number}", BITS[type_])
                self.scope.registers[n] = register
                function.registers.append(register)

    def _instruction(self, text: str) -> Instruction:
        predicate, negated = None, False
        if m := _PREDICATED.match(text):
            predicate, negated, text = m.group(2), bool(m.group(1)), m.group(3)
        opcode, _, rest = text.partition(" ")
        return Instruction(opcode, tuple(split_operands(rest)), predicate, self.location, self.scope, negated)


def _variable(m: re.Match) -> Variable:
    space, alignment, type_, name, count, values = m.groups()
    width = BITS[type_] // 8
    size = None if count == "" and space == "shared" else width * int(count or 1)
    listed = tuple(v.strip() for v in (values or "").strip("{} ").split(",") if v.strip())
    return Variable(name, space, size, max(int(alignment or 1), width), BITS[type_], listed)
