"""Machine code of kernels: compiled once by Numba, kept on disk as object code, loaded in a later process.

A folder is named by everything the code depends on (the sources it is made from, versions, the CPU), so a file in it
can never be stale and is never rewritten with other contents; files appear whole (written aside, then renamed). This is
not Numba's own cache because that one keeps a changing index beside the code, which two processes can interleave, and
does not look at the modules a kernel draws its micro-kernels from. A process that finds all it needs imports no Numba.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite

from . import object_code
from .processor import identity

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

    def address(self, name: str, body: Callable[..., Any], signature: str) -> int:
        """The code of `body`. `name` alone identifies it within this version of the package. signature: in Numba's
        words, as "int64(int64, int64)"."""
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
            _, _, (code, _) = state  # as Numba writes a library: its name, the form, object code and bitcode
        except (EOFError, ValueError, TypeError):  # damaged on disk: compile it again
            return None
        try:
            image = object_code.load(code)
            return image.symbols[symbol], image
        except object_code.Unknown:
            from .compiling import loaded

            return loaded((symbol, state))

    def _compile(self, name: str, body: Callable[..., Any], signature: str) -> Code:
        from .compiling import compiled

        self.compiled += 1
        code, kept = compiled(name, body, signature, self.variant, self._compiling())
        self._keep(name, kept)
        return code

    def _keep(self, name: str, value: tuple[Any, ...]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(marshal.dumps(value))
        os.replace(file.name, self.folder / name)


@cache
def _code_in_process(variant: str) -> dict[str, Code]:
    """By kernel name. Process-wide, as the LLVM engine that holds code is: equal symbols must not come twice."""
    return {}


def _fingerprint(sources: Iterable[Path]) -> str:
    """A hash of everything that decides what the machine code is."""
    digest = hashlib.sha256()
    own = [Path(__file__).with_name(f"{name}.py") for name in ("machine_code", "compiling", "jit")]
    for path in sorted([*own, *sources]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((_numba_version(), llvmlite.__version__, identity())).encode())
    return digest.hexdigest()[:20]


@cache
def _numba_version() -> str:
    """As the package's own file says it, since to import Numba takes long."""
    found = find_spec("numba")
    assert found is not None and found.origin is not None, "Numba is installed with this package"
    return Path(found.origin).with_name("_version.py").read_text()
