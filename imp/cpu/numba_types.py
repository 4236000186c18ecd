"""Vectors and micro-kernels as Numba sees them: types, signatures, and what operators mean between vectors.

Imported only where something is compiled, and before that begins: Numba looks for operators then.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.core.typing.templates import signature as typing_signature
from numba.extending import lower_builtin, models, register_model

from .emit import F32, I32, Family, Micro, Scalar, V, Vector, float32, int32, mask8, mask16, vector_bits, writing_to
from .simd import broadcast


class VectorType(types.Type):
    """The Numba type of a vector."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        super().__init__(name=vector.name)


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend: VectorType) -> None:
        super().__init__(manager, frontend, frontend.vector.ir)


register_model(VectorType)(_VectorModel)


@cache
def numba_type(kind: Any) -> Any:
    """Of a Scalar or a Vector; a type of Numba's is its own."""
    if isinstance(kind, Scalar):
        return getattr(types, kind.name)
    return VectorType(kind) if isinstance(kind, Vector) else kind


def of_micro(micro: Micro) -> types.Function:
    """The type of what jitted code calls, which is known from now on by its signatures and its machine code."""

    def typed(found: tuple[Any, ...]) -> Any:
        if len(found) != len(micro.given):
            return None
        kinds = [_found_kind(f, g) for f, g in zip(found, micro.given, strict=True)]
        lengths = {vector_bits(k) for k, g in zip(kinds, micro.given, strict=True) if isinstance(g, Family) and k}
        if None in kinds or len(lengths) > 1:
            return None
        fixed = isinstance(micro.returns, Scalar | Vector)
        returns = micro.returns if fixed else micro.returns(*kinds)
        return typing_signature(numba_type(returns), *map(numba_type, kinds))

    def lowered(context: Any, builder: Any, typing: Any, args: Any) -> Any:
        with writing_to(builder):
            result = micro.body(*(V(arg) for arg in args))
            return context.get_dummy_value() if result is None else result.ir

    lower_builtin(micro, types.VarArg(types.Any))(lowered)
    return types.Function(_template(micro, typed))


def _found_kind(found: Any, given: Any) -> Any:
    """The type an argument has in a call; None where it may not be that."""
    kind = found.vector if isinstance(found, VectorType) else types.unliteral(found)
    if isinstance(given, Family):
        return kind if kind in given.members else None
    return kind if given is Any else given


def _template(operation: Any, typed: Callable[[tuple[Any, ...]], Any]) -> Any:
    """What Numba asks for the signature of a call."""

    class Template(AbstractTemplate):
        key = operation

        def generic(self, args: Any, kws: Any) -> Any:
            return None if kws else typed(args)

    return Template


def _register(op: Any, comparison: bool) -> None:
    """An operator of jitted code: vector with vector, and vector with number."""

    def typed(args: tuple[Any, ...]) -> Any:
        given = next((arg for arg in args if isinstance(arg, VectorType)), None)
        if len(args) != 2 or given is None:
            return None
        vector = given.vector
        scalar = {F32: float32, I32: int32}.get(vector.lane)
        kinds = [arg.vector if isinstance(arg, VectorType) else scalar for arg in args]
        if None in kinds or any(isinstance(kind, Vector) and kind is not vector for kind in kinds):
            return None
        mask = mask8 if vector.count == 8 else mask16
        return typing_signature(numba_type(mask if comparison else vector), *map(numba_type, kinds))

    infer_global(op)(_template(op, typed))

    def lowered(context: Any, builder: Any, typing: Any, args: Any) -> Any:
        with writing_to(builder):
            count = next(kind.vector.count for kind in typing.args if isinstance(kind, VectorType))
            a, b = (
                V(raw) if isinstance(kind, VectorType) else broadcast(V(raw), count)
                for raw, kind in zip(args, typing.args, strict=True)
            )
            return op(a, b).ir

    for left, right in ((VectorType, VectorType), (VectorType, types.Number), (types.Number, VectorType)):
        lower_builtin(op, left, right)(lowered)


for _op in ("add", "sub", "mul", "truediv", "and_", "or_", "xor", "lshift", "rshift"):
    _register(getattr(operator, _op), comparison=False)
for _op in ("lt", "le", "gt", "ge"):
    _register(getattr(operator, _op), comparison=True)
