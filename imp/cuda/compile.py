"""From source to machine code, without a GPU: CUDA C++ by NVRTC, Python by Numba and nvJitLink. Compiled kernels are
kept on disk, under a name made of everything they depend on, so that a file can never be stale.

Machine code and not PTX is what gets loaded: a driver older than the compilers takes the one and refuses the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..types import DeviceError

KERNELS = Path(__file__).parent / "kernels"
FORMAT = "1"  # of what lies in the cache
OPTIONS = ("--std=c++17", "--use_fast_math", "-lineinfo", "--ptxas-options=-v", "--no-cache")
NVRTC, NUMBA = "nvidia-cuda-nvrtc", ("numba-cuda", "numba", "nvidia-nvvm", "nvidia-nvjitlink")
COMPILERS = (NVRTC, *NUMBA)
LINK_OPTIONS = ("-O3", "-Xptxas=-v")


class CompileError(DeviceError):
    """A kernel does not compile: what the compiler says."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of kernels/ and the macros that make this variant of it: ("FMT", 6)."""

    file: str
    defines: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.file, *(f"{name}={value}" for name, value in self.defines)])


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """A kernel that Numba compiles. types: of its parameters; numbers and pointers only, so that they are passed as C
    passes them. `name` and the file the body stands in identify it."""

    name: str
    body: Callable[..., None]
    types: tuple[Any, ...]
    threads: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Compiled:
    """cubin: for one architecture. entries: the names of its kernels. report: what ptxas said of them."""

    cubin: bytes
    ptx: str
    report: str

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\.entry\s+(\w+)", self.ptx))


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes, from ptxas's report."""

    kernel: str
    registers: int
    shared_bytes: int  # static
    stack_bytes: int
    spill_bytes: int  # stored and loaded


class Compiler:
    """Of one architecture, such as "sm_90a". Kernels are kept under `folder`/cuda. May be used in several threads."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.folder, self.architecture = folder / "cuda", architecture
        self.compiled = 0  # how many were not on disk

    def compile(self, source: Source | PythonKernel) -> Compiled:
        """Raises CompileError."""
        if isinstance(source, Source):
            text, headers = (KERNELS / source.file).read_text(), _headers()
            defines = [f"-D{name}={value}" for name, value in source.defines]
            options = [f"--gpu-architecture={self.architecture}", *OPTIONS, *defines]
            parts = [package_version(NVRTC), *options, text, *(part for header in headers for part in header)]
            return self._kept(parts, lambda: _nvrtc(source.file, text, headers, options))
        file = Path(source.body.__code__.co_filename).read_text()
        parts = [*map(package_version, NUMBA), self.architecture, *LINK_OPTIONS, source.name, str(source.types), file]
        return self._kept(parts, lambda: _numba(source, self.architecture))

    def _kept(self, parts: list[str], compile_: Callable[[], Compiled]) -> Compiled:
        key = hashlib.sha256("\0".join([FORMAT, *parts]).encode()).hexdigest()
        stem = self.folder / key[:2] / key
        try:
            cubin = stem.with_suffix(".cubin").read_bytes()
            return Compiled(cubin, stem.with_suffix(".ptx").read_text(), stem.with_suffix(".log").read_text())
        except FileNotFoundError:
            pass
        made = compile_()
        self.compiled += 1
        _write(stem.with_suffix(".ptx"), made.ptx.encode())
        _write(stem.with_suffix(".log"), made.report.encode())
        _write(stem.with_suffix(".cubin"), made.cubin)  # the last: where it is, all are
        return made


def resources(report: str) -> list[Resources]:
    """Of every kernel in a report of ptxas."""
    found = []
    for part in re.split(r"(?=Compiling entry function ')", report)[1:]:
        name = re.search(r"entry function '(\S+)'", part)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        assert name and used, f"ptxas reports in another form: {part}"
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        found.append(Resources(name[1], int(used[1]), int(shared[1]) if shared else 0, frame, stores + loads))
    return found


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


@cache
def _headers() -> tuple[tuple[str, str], ...]:
    """(name, text) of all of them, for every kernel: what a source includes need not be found out."""
    return tuple((path.name, path.read_text()) for path in sorted(KERNELS.glob("*.cuh")))


@cache
def package_version(package: str) -> str:
    """Its name and version."""
    return f"{package} {version(package)}"


def _nvrtc(name: str, text: str, headers: tuple[tuple[str, str], ...], options: list[str]) -> Compiled:
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        if result[0]:
            raise CompileError(f"{name}: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) == 2 else None

    def read(size: Callable[[Any], Any], get: Callable[[Any, bytearray], Any]) -> bytearray:
        # never bytes: the call writes into what it is given, and short bytes objects are shared by the whole process
        data = bytearray(checked(size(program)))
        checked(get(program, data))
        return data

    names, texts = [name.encode() for name, _ in headers], [text.encode() for _, text in headers]
    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), len(headers), texts, names))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0 ").decode()
        if status[0]:
            raise CompileError(f"{name} does not compile with {' '.join(options)}:\n{log}")
        cubin = bytes(read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN))
        ptx = read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(cubin, ptx, log)


def _nothing() -> None: ...


@contextmanager
def _former_numpy() -> Iterator[None]:
    """numba-cuda up to 0.30 names a function at import that NumPy 2.5 has no more."""
    lacks = not hasattr(np, "row_stack")
    if lacks:
        np.row_stack = np.vstack  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if lacks:
            del np.row_stack  # type: ignore[attr-defined]


def _numba(kernel: PythonKernel, architecture: str) -> Compiled:
    from cuda.bindings import nvjitlink

    with _former_numpy():
        from numba import cuda, types

        cuda.compile(_nothing, types.void(), cc=(9, 0), device=False, abi="numba", output="ptx")  # imports what is left
    number = int(re.sub(r"\D", "", architecture))
    ptx, _ = cuda.compile(
        kernel.body,
        types.void(*kernel.types),
        cc=(number // 10, number % 10),
        device=False,
        abi="numba",
        output="ptx",
        fastmath=True,
        launch_bounds=kernel.threads,
    )
    linker = nvjitlink.create(1 + len(LINK_OPTIONS), [f"-arch={architecture}", *LINK_OPTIONS])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx.encode(), len(ptx), kernel.name)
        nvjitlink.complete(linker)
        log = bytearray(max(nvjitlink.get_info_log_size(linker), 1))
        nvjitlink.get_info_log(linker, log)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, cubin)
    except nvjitlink.nvJitLinkError as error:
        raise CompileError(f"{kernel.name} does not link for {architecture}: {error}") from error
    finally:
        nvjitlink.destroy(linker)
    return Compiled(bytes(cubin), ptx, log.rstrip(b"\0 ").decode())
