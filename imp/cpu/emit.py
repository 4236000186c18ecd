"""The language micro-kernels are written in: values of the machine code being built, registers, loops, branches.

A micro-kernel is an ordinary Python function run once while a kernel is being compiled. Its arguments are `V`s; a plain
Python loop unrolls, `for i in loop(n)` becomes a loop of the machine, `Var` is a register that changes inside one.
`@micro(types, returns=type)` makes it callable from jitted code, and from other micro-kernels. What can be done with
values is in simd.py, and how jitted code calls one in numba_types.py; this file knows LLVM's types, and no instruction
of any machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llvmlite import ir

from ..jit import Late
from .variants import KINDS, detect

F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID = ir.VoidType()


@dataclass(frozen=True, eq=False)
class Scalar:
    """A number, by Numba's name for its type."""

    name: str
    ir: Any


int64, int32, boolean = Scalar("int64", I64), Scalar("int32", I32), Scalar("boolean", I1)
float32, float64, void = Scalar("float32", F32), Scalar("float64", F64), Scalar("void", VOID)


@dataclass(frozen=True, eq=False)
class Vector:
    name: str
    lane: Any
    count: int

    @cached_property
    def ir(self) -> Any:
        return ir.VectorType(self.lane, self.count)


f32x8, f32x16 = Vector("f32x8", F32, 8), Vector("f32x16", F32, 16)
i32x8, i32x16 = Vector("i32x8", I32, 8), Vector("i32x16", I32, 16)
i16x16, i16x32 = Vector("i16x16", I16, 16), Vector("i16x32", I16, 32)
i8x32, i8x64 = Vector("i8x32", I8, 32), Vector("i8x64", I8, 64)
mask8, mask16 = Vector("mask8", I1, 8), Vector("mask16", I1, 16)


class Family:
    """What an argument may be: a vector of 256 bits or of 512. All such arguments of a call have the same length."""

    def __init__(self, *members: Vector) -> None:
        self.members = members


floats, ints = Family(f32x8, f32x16), Family(i32x8, i32x16)
shorts, octets = Family(i16x16, i16x32), Family(i8x32, i8x64)


def same(first: Vector, *_others: Any) -> Vector:
    """The type of a result that is of its first argument's."""
    return first


def alike(family: Family) -> Callable[..., Vector]:
    """The type of a result that is this family's member as long as the first argument, in bits."""
    return lambda first, *_others: next(m for m in family.members if vector_bits(m) == vector_bits(first))


def vector_bits(kind: Vector) -> int:
    width = 32 if kind.lane == F32 else kind.lane.width
    return width * kind.count


class Emission:
    """Where the running micro-kernel writes. Numba compiles under one global lock, so there is only ever one."""

    builder: Any = None
    features: str = detect()


def runs(kind: str) -> bool:
    """Whether the code being made may use the instructions of this kind (variants.py)."""
    return KINDS.index(Emission.features) <= KINDS.index(kind)


@contextmanager
def compiling_for(features: str) -> Iterator[None]:
    """Kernels compiled inside are of this variant."""
    from . import numba_types  # noqa: F401  what operators mean on vectors has to be known before a kernel begins

    before, Emission.features = Emission.features, features
    try:
        yield
    finally:
        Emission.features = before


@contextmanager
def writing_to(builder: ir.IRBuilder) -> Iterator[None]:
    """What micro-kernels emit inside goes to this builder."""
    before, Emission.builder = Emission.builder, builder
    try:
        yield
    finally:
        Emission.builder = before


def _is_float(kind: ir.Type) -> bool:
    return isinstance(getattr(kind, "element", kind), (ir.HalfType, ir.FloatType, ir.DoubleType))


class V:
    """A value of the machine code being built: a scalar or a vector. Python numbers mix in as constants."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def ir(self) -> Any:
        return self._value

    @property
    def type(self) -> Any:
        return self.ir.type

    def _with(self, other: Any, on_floats: str, on_ints: str) -> "V":
        b, kind = Emission.builder, self.type
        return V(getattr(b, on_floats if _is_float(kind) else on_ints)(self.ir, constant(other, kind).ir))

    def __add__(self, other: Any) -> "V":
        return self._with(other, "fadd", "add")

    def __sub__(self, other: Any) -> "V":
        return self._with(other, "fsub", "sub")

    def __mul__(self, other: Any) -> "V":
        return self._with(other, "fmul", "mul")

    def __radd__(self, other: Any) -> "V":
        return constant(other, self.type) + self

    def __rsub__(self, other: Any) -> "V":
        return constant(other, self.type) - self

    def __rmul__(self, other: Any) -> "V":
        return constant(other, self.type) * self

    def __truediv__(self, other: Any) -> "V":
        return self._with(other, "fdiv", "sdiv")

    def __rtruediv__(self, other: Any) -> "V":
        return constant(other, self.type) / self

    def __floordiv__(self, other: Any) -> "V":
        """Integers only, rounding towards zero."""
        return self._with(other, "fdiv", "sdiv")

    def __mod__(self, other: Any) -> "V":
        return self._with(other, "frem", "srem")

    def __and__(self, other: Any) -> "V":
        return self._with(other, "and_", "and_")

    def __or__(self, other: Any) -> "V":
        return self._with(other, "or_", "or_")

    def __xor__(self, other: Any) -> "V":
        return self._with(other, "xor", "xor")

    def __lshift__(self, other: Any) -> "V":
        return self._with(other, "shl", "shl")

    def __rshift__(self, other: Any) -> "V":
        """Logical: zeros come in from above."""
        return self._with(other, "lshr", "lshr")

    def _compared(self, relation: str, other: Any) -> "V":
        b, kind = Emission.builder, self.type
        compare = b.fcmp_ordered if _is_float(kind) else b.icmp_signed
        return V(compare(relation, self.ir, constant(other, kind).ir))

    def __lt__(self, other: Any) -> "V":
        return self._compared("<", other)

    def __le__(self, other: Any) -> "V":
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> "V":
        return self._compared(">", other)

    def __ge__(self, other: Any) -> "V":
        return self._compared(">=", other)

    def equals(self, other: Any) -> "V":
        return self._compared("==", other)


class Var(V):
    """A register: `set` changes it, reading gives its value at that point of the machine code."""

    def __init__(self, start: V) -> None:
        from numba.core import cgutils

        self._slot = cgutils.alloca_once(Emission.builder, start.type)
        self.set(start)

    @property
    def ir(self) -> Any:
        return Emission.builder.load(self._slot)

    @property
    def type(self) -> Any:
        return self._slot.allocated_type

    def set(self, value: Any) -> None:
        Emission.builder.store(constant(value, self.type).ir, self._slot)

    def __iadd__(self, other: Any) -> "Var":
        self.set(self + other)
        return self


def constant(value: Any, kind: Any) -> V:
    """`value` itself if it is a V already, else the Python number as a constant of LLVM type `kind`."""
    if isinstance(value, V):
        return value
    value = float(value) if _is_float(kind) else int(value)
    if isinstance(kind, ir.VectorType):
        return V(ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count))
    return V(ir.Constant(kind, value))


def integer(value: int) -> V:
    return constant(value, I64)


def zeros(kind: Vector) -> V:
    return constant(0, kind.ir)


def loop(start: Any, stop: Any = None, step: int = 1) -> Iterator[V]:
    """`for i in loop(stop)`, `loop(start, stop, step)`: a loop of the machine; the body runs once in Python to emit it.

    It may not be left early with break or return."""
    b = Emission.builder
    first, last = (integer(0), start) if stop is None else (constant(start, I64), stop)
    index = Var(first)
    head, body, after = (b.append_basic_block(name) for name in ("loop", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    b.cbranch((index < last).ir, body, after)
    b.position_at_end(body)
    yield V(index.ir)
    index += step
    b.branch(head)
    b.position_at_end(after)


@contextmanager
def when(condition: V) -> Iterator[None]:
    """`with when(x > 0):` the body is done only where the scalar condition holds."""
    with Emission.builder.if_then(condition.ir):
        yield


class Micro(Late):
    """A micro-kernel: called from jitted code it becomes its machine code in place; called with Vs it emits there."""

    def __init__(self, body: Callable[..., V | None], given: tuple[Any, ...], returns: Any) -> None:
        super().__init__(lambda: self)
        self.body, self.given, self.returns = body, given, returns
        self.__name__, self.__doc__ = body.__name__, body.__doc__
        expected = body.__code__.co_argcount
        assert expected == len(given), f"{body.__name__} declares {len(given)} types for {expected} parameters"

    @cached_property
    def numba_type(self) -> Any:
        from .numba_types import of_micro

        return of_micro(self)

    def __call__(self, *args: Any) -> Any:
        pairs = list(zip(args, self.given, strict=True))
        vector = next((given.type for given, kind in pairs if isinstance(kind, Family) and isinstance(given, V)), None)
        lifted = (
            given
            if isinstance(given, V) or kind is Any
            else constant(given, vector if isinstance(kind, Family) else kind.ir)
            for given, kind in pairs
        )
        return self.body(*lifted)


def micro(*given: Any, returns: Any = void) -> Callable[[Callable[..., V | None]], Micro]:
    """Declare a micro-kernel: the type of each argument (Any: as given; a Family: one of its vectors) and of the
    result (or a function of the argument types). Jitted callers' numbers are cast to these types."""
    return lambda body: Micro(body, given, returns)


def call(name: str, returns: Any, *args: V) -> V:
    """Call an LLVM intrinsic or an external C function by name."""
    from numba.core import cgutils

    b = Emission.builder
    values = [arg.ir for arg in args]
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(returns, [v.type for v in values]), name)
    return V(b.call(function, values))


def shuffle(a: V, lanes: list[int]) -> V:
    b = Emission.builder
    order = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    return V(b.shuffle_vector(a.ir, ir.Constant(a.type, ir.Undefined), order))


def bits(a: V, kind: Any) -> V:
    """The same bits as another LLVM type."""
    return V(Emission.builder.bitcast(a.ir, kind))


def lanes_of(like: V, lane: ir.Type) -> Any:
    """The type with as many lanes as `like` has, of another kind."""
    return ir.VectorType(lane, like.type.count) if isinstance(like.type, ir.VectorType) else lane
