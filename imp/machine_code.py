"""Machine code of kernels: compiled once by Numba, kept on disk as object code, loaded in a later process.

A folder is named by everything the code depends on (the sources it is made from, versions, the CPU), so a file in it
can never be stale and is never rewritten with other contents; files appear whole (written aside, then renamed). This is
not Numba's own cache because that one keeps a changing index beside the code, which two processes can interleave, and
does not look at the modules a kernel draws its micro-kernels from.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

# What a package was built with, for the machine it was built on: read where a folder has none, never written to
PREBUILT = Path(__file__).parent / "prebuilt"

Code = tuple[int, Any]  # the address, and what keeps it valid


class MachineCode:
    """Addresses of machine code by name. Code once loaded serves all instances: it lives as long as the process."""

    def __init__(
        self, folder: Path, sources: Iterable[Path], variant: str, compiling: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Kept under `folder`. sources: the files that decide what the code is. variant: which of several codes one
        source makes; compiling() is the context that makes this one."""
        self.variant = variant
        self.folder = folder / "kernels" / f"{_fingerprint(sources)}-{variant}"
        self.compiled = 0  # how many were not on disk
        self._compiling = compiling

    def address(self, name: str, body: Callable[..., Any], signature: Any) -> int:
        """The code of `body`. `name` alone identifies it within this version of the package."""
        code = _code_in_process(self.variant)
        if name not in code:
            code[name] = self._found(name) or self._compile(name, body, signature)
        return code[name][0]

    def has(self, name: str) -> bool:
        """Whether this code can be had without compiling it."""
        return name in _code_in_process(self.variant) or self._kept(name) is not None

    def _kept(self, name: str) -> bytes | None:
        for folder in (self.folder, PREBUILT / self.folder.name):
            with suppress(FileNotFoundError, NotADirectoryError):
                return (folder / name).read_bytes()
        return None

    def _found(self, name: str) -> Code | None:
        kept = self._kept(name)
        if kept is None:
            return None
        try:
            symbol, state = marshal.loads(kept)
        except (EOFError, ValueError, TypeError):  # damaged on disk: compile it again
            return None
        with global_compiler_lock:
            rtsys.initialize(cpu_target.target_context)  # code may name symbols of Numba's runtime
            library = cpu_target.target_context.codegen().unserialize_library(state)
            return library.get_pointer_to_function(symbol), library

    def _compile(self, name: str, body: Callable[..., Any], signature: Any) -> Code:
        self.compiled += 1
        # symbols are named after the function: equal names of two kernels would be taken for one
        body.__qualname__ = f"{name}_{self.variant}"
        _forget_other_variants(body, self.variant)
        with global_compiler_lock, self._compiling():
            # Functions that it calls are told apart by a number that each process counts from 1, and two of one name,
            # made by a factory in different processes, would be taken for one where their kernels meet.
            FunctionIdentity._unique_ids = count(_first_number(f"{name}_{self.variant}"))
            options = {"nopython": True, "error_model": "numpy"}
            compiled: Any = CFunc(body, (signature.args, signature.return_type), {}, options)
            compiled.compile()
        self._keep(name, (compiled.native_name, compiled._library.serialize_using_object_code()))
        return compiled.address, compiled

    def _keep(self, name: str, value: tuple[Any, ...]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(marshal.dumps(value))
        os.replace(file.name, self.folder / name)


@cache
def _code_in_process(variant: str) -> dict[str, Code]:
    """By kernel name. Process-wide, as the LLVM engine that holds the code is: equal symbols must not come twice."""
    return {}


@cache
def _variants_in_process() -> WeakKeyDictionary[Any, str]:
    """Which variant the functions that kernels call were compiled for."""
    return WeakKeyDictionary()


def _forget_other_variants(body: Callable[..., Any], variant: str) -> None:
    """The functions a kernel calls keep their code, which may be of another variant: have them compiled again."""
    of = _variants_in_process()
    for function in _called(body, set()):
        if of.get(function, variant) != variant:
            function._make_finalizer()()
            function._reset_overloads()
        of[function] = variant


def _called(body: Callable[..., Any], found: set[Any]) -> set[Any]:
    """All jitted functions that this one refers to, by its closure or its module, and those that they do."""
    cells = (cell.cell_contents for cell in body.__closure__ or ())
    names = (body.__globals__.get(name) for name in body.__code__.co_names)
    for function in (*cells, *names):
        if isinstance(function, Dispatcher) and function not in found:
            found.add(function)
            _called(function.py_func, found)
    return found


def _first_number(symbol: str) -> int:
    """Of the numbers of functions that are compiled for this kernel; those of others are far away."""
    return int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:6]) << 16


def _fingerprint(sources: Iterable[Path]) -> str:
    """A hash of everything that decides what the machine code is."""
    digest = hashlib.sha256()
    for path in sorted([Path(__file__), *sources]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cpu = sorted(llvm.get_host_cpu_features().items())
    digest.update(repr((numba.__version__, llvmlite.__version__, llvm.get_host_cpu_name(), cpu)).encode())
    return digest.hexdigest()[:20]
