"""The words of Numba that kernels are written with, without Numba: it is imported where a kernel is compiled.

Machine code that an earlier start left on disk needs no compiler (machine_code.py), and to import that one is a fifth
of a second and a hundred MiB. So functions are declared here, and handed over when code that names them is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any


@cache
def numba() -> Any:
    """The compiler, which knows from now on what stands for what. To be called before anything is compiled."""
    import numba
    from numba.extending import typeof_impl

    typeof_impl.register(Late)(lambda late, _context: late.numba_type)
    return numba


class Late:
    """Stands in jitted code for something of Numba's, which is made when the first code that names it is compiled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def real(self) -> Any:
        numba()
        return self._make()

    @cached_property
    def numba_type(self) -> Any:
        """What it is to the compiler."""
        from numba.core.registry import cpu_target

        real, known = self.real, cpu_target.typing_context
        known.refresh()  # to find what was made a moment ago
        return known.resolve_value_type(real)


class Jitted(Late):
    """A function that jitted code calls. `py_func` is the function itself."""

    def __init__(self, py_func: Callable[..., Any], make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.py_func = py_func

    def __call__(self, *args: Any) -> Any:
        return self.real(*args)

    def forget(self) -> None:
        """Drop what was compiled of it: whoever names it next has it compiled again."""
        for made in ("real", "numba_type"):
            self.__dict__.pop(made, None)


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """numba.njit, as a decorator with options or without."""
    if function is None:
        return lambda body: njit(body, **options)
    return Jitted(function, lambda: numba().njit(**options)(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba.extending.intrinsic, as a decorator."""
    return Late(lambda: numba().extending.intrinsic(function))


carray: Any = Late(lambda: numba().carray)


def _pointer_to(typing: Any, address: Any) -> Any:
    from numba.core import cgutils, types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_pointer_to)  # in machine code: what lies at an address
