"""The machine code of this package: loaded from disk in milliseconds, compiled (once a version) in some 20 seconds."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from ..machine_code import MachineCode
from . import masks, trie

DEFAULT_CACHE = Path("~/.cache/imp")
MODULES = ("bits", "bodies", "class_rows", "kernel", "layout", "masks", "nfa", "shared_rows", "trie", "walks")


RUN, TRIES = "constrain.run", "constrain.tries"


class ConstraintCode:
    """run: an operation of masks.py. run_free: the same with the interpreter lock released, for what may take long.
    tries: of trie.py. Callable from any thread, as long as no two share a context."""

    def __init__(self, cache_dir: Path = DEFAULT_CACHE) -> None:
        code = _machine_code(cache_dir)
        four = "int64(int64, int64, int64, int64)"
        run = code.address(RUN, masks.run, four)
        c = ctypes.c_int64
        self.run = ctypes.PYFUNCTYPE(c, c, c, c, c)(run)
        self.run_free = ctypes.CFUNCTYPE(c, c, c, c, c)(run)
        self.tries = ctypes.CFUNCTYPE(c, c, c, c, c)(code.address(TRIES, trie.tries, four))
        self.compiled = code.compiled


def _machine_code(cache_dir: Path) -> MachineCode:
    sources = [Path(__file__).with_name(f"{name}.py") for name in MODULES]
    return MachineCode(cache_dir.expanduser(), sources, "constrain", nullcontext)


def compile_aside(cache_dir: Path) -> Callable[[], None]:
    """Begin to compile what is not on disk, in a process of its own: Numba compiles one thing at a time in each.

    Returns how to wait for it; whatever went wrong there, `constraint_code` does it again here."""
    code = _machine_code(cache_dir)
    if code.has(RUN) and code.has(TRIES):
        return lambda: None
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path; from imp.constrain.code import constraint_code\n"
        f"constraint_code(Path({str(cache_dir)!r}))"
    )
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-I", "-c", program], stdin=quiet, stdout=quiet, stderr=quiet)

    def wait() -> None:
        try:
            process.wait()
        finally:
            process.kill()

    return wait


@cache
def constraint_code(cache_dir: Path = DEFAULT_CACHE) -> ConstraintCode:
    return ConstraintCode(cache_dir)
