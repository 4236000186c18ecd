"""The machine code of this package: loaded from disk in milliseconds, compiled (once a version) in some 20 seconds."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from numba import types

from ..machine_code import MachineCode
from . import masks, trie

DEFAULT_CACHE = Path("~/.cache/imp")
SOURCES = ("kernel.py", "layout.py", "masks.py", "nfa.py", "trie.py")


class ConstraintCode:
    """run: an operation of masks.py. run_free: the same with the interpreter lock released, for what may take long.
    tries: of trie.py. Callable from any thread, as long as no two share a context."""

    def __init__(self, cache_dir: Path = DEFAULT_CACHE) -> None:
        sources = [Path(__file__).with_name(name) for name in SOURCES]
        code = MachineCode(cache_dir.expanduser(), sources, "constrain", nullcontext)
        number = types.int64
        four = number(number, number, number, number)
        run = code.address("constrain.run", masks.run, four)
        c = ctypes.c_int64
        self.run = ctypes.PYFUNCTYPE(c, c, c, c, c)(run)
        self.run_free = ctypes.CFUNCTYPE(c, c, c, c, c)(run)
        self.tries = ctypes.CFUNCTYPE(c, c, c, c, c)(code.address("constrain.tries", trie.tries, four))
        self.compiled = code.compiled


@cache
def constraint_code(cache_dir: Path = DEFAULT_CACHE) -> ConstraintCode:
    return ConstraintCode(cache_dir)
