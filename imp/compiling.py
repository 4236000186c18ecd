"""Machine code made by Numba. Imported where a kernel has to be compiled, or loaded by LLVM."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from numba.core import sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

from .jit import Jitted, numba

Code = tuple[int, Any]  # the address, and what keeps it valid
Kept = tuple[str, Any]  # the symbol, and Numba's form of the library it is in


def compiled(
    name: str, body: Callable[..., Any], signature: str, variant: str, inside: AbstractContextManager[None]
) -> tuple[Code, Kept]:
    """The machine code of `body`, made inside a context, and what of it is kept on disk."""
    numba()
    # symbols are named after the function: equal names of two kernels would be taken for one
    body.__qualname__ = f"{name}_{variant}"
    _forget_other_variants(body, variant)
    with global_compiler_lock, inside:
        # Functions that it calls are told apart by a number that each process counts from 1, and two of one name,
        # made by a factory in different processes, would be taken for one where their kernels meet.
        FunctionIdentity._unique_ids = count(_first_number(f"{name}_{variant}"))
        options = {"nopython": True, "error_model": "numpy"}
        made: Any = CFunc(body, sigutils.normalize_signature(signature), {}, options)
        made.compile()
    return (made.address, made), (made.native_name, made._library.serialize_using_object_code())


def loaded(kept: Kept) -> Code:
    """By LLVM, which knows every kind of object code there is."""
    symbol, state = kept
    with global_compiler_lock:
        rtsys.initialize(cpu_target.target_context)  # code may name symbols of Numba's runtime
        library = cpu_target.target_context.codegen().unserialize_library(state)
        return library.get_pointer_to_function(symbol), library


@cache
def _variants_in_process() -> WeakKeyDictionary[Jitted, str]:
    """Which variant the functions that kernels call were compiled for."""
    return WeakKeyDictionary()


def _forget_other_variants(body: Callable[..., Any], variant: str) -> None:
    """The functions a kernel calls keep their code, which may be of another variant: have them compiled again."""
    of = _variants_in_process()
    for function in _called(body, set()):
        if of.get(function, variant) != variant:
            function.forget()
        of[function] = variant


def _called(body: Callable[..., Any], found: set[Jitted]) -> set[Jitted]:
    """All jitted functions that this one refers to, by its closure or its module, and those that they do."""
    cells = (cell.cell_contents for cell in body.__closure__ or ())
    names = (body.__globals__.get(name) for name in body.__code__.co_names)
    for function in (*cells, *names):
        if isinstance(function, Jitted) and function not in found:
            found.add(function)
            _called(function.py_func, found)
    return found


def _first_number(symbol: str) -> int:
    """Of the numbers of functions that are compiled for this kernel; those of others are far away."""
    return int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:6]) << 16
