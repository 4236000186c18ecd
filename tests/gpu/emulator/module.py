"""Modules: PTX built into a shared library, and its kernels launched over NumPy arrays."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.gpu.emulator.parse import Function, Parameter, parse
from tests.gpu.emulator.translate import translate

RUNTIME = Path(__file__).parent / "runtime"
_FLAGS = ("-std=gnu11", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-mf16c", "-mfma")
STEP_LIMIT = 64                             # million backward branches of one thread: a loop that long does not end


class EmulatorError(RuntimeError):
    """What a kernel did that it must not, with the block, the thread and the CUDA line."""


class _Launch(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("dynamic_shared", ctypes.c_uint32),
                ("range_count", ctypes.c_uint32), ("parameters", ctypes.c_void_p), ("ranges", ctypes.c_void_p),
                ("seed", ctypes.c_uint32), ("check_races", ctypes.c_uint32), ("late", ctypes.c_uint32),
                ("step_limit", ctypes.c_uint32), ("error", ctypes.c_char_p)]


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def build_folder() -> Path:
    """Where translated modules are kept, by the hash of what made them."""
    root = os.environ.get("IMP_CACHE_DIR") or Path(tempfile.gettempdir()) / f"imp-{os.getuid()}"
    folder = Path(root) / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiled(key: str, suffix: str, command: Sequence[str], source: str | None = None) -> Path:
    """The file that `command` makes, made once by whoever comes first."""
    target = build_folder() / f"{key}{suffix}"
    if target.exists():
        return target
    with open(build_folder() / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            written = target.with_suffix(suffix + ".new")
            subprocess.run([*command, "-o", written], input=source, text=True, check=True)
            os.replace(written, target)
    return target


@cache
def _runtime_object() -> tuple[Path, str]:
    """The runtime compiled, and the hash of its sources."""
    text = b"".join(f.read_bytes() for f in sorted(RUNTIME.iterdir()))
    key = hashlib.sha256(text + repr(_FLAGS).encode()).hexdigest()[:20]
    return compiled(f"runtime-{key}", ".o", ["gcc", "-O2", *_FLAGS, "-c", str(RUNTIME / "runtime.c")]), key


def shared_library(c_text: str) -> Path:
    """The .so of a translated program."""
    runtime, runtime_key = _runtime_object()
    key = hashlib.sha256((runtime_key + c_text).encode()).hexdigest()[:20]
    command = ["gcc", "-Og", *_FLAGS, "-I", str(RUNTIME), "-shared", "-x", "c", "-", "-x", "none", str(runtime), "-lm"]
    return compiled(f"module-{key}", ".so", command, c_text)


class Module:
    """The kernels of a PTX text.

    ptx: as NVRTC or Numba write it. `unsupported`: opcodes that the emulator does not know; a kernel fails where it executes
    one. Raises CalledProcessError where gcc refuses the translation, which would be a mistake of the translator.
    """

    def __init__(self, ptx: str | bytes):
        text = ptx.rstrip(b"\0").decode() if isinstance(ptx, bytes) else ptx
        program = parse(text)
        c_text, self.unsupported = translate(program)
        self.path = shared_library(c_text)
        self._library = ctypes.CDLL(str(self.path))
        self.kernels: dict[str, Function] = {f.name: f for f in program.functions if f.is_kernel}
        self._indices = {name: i for i, name in enumerate(self.kernels)}

    def launch(self, name: str, grid: Sequence[int], block: Sequence[int], args: Sequence[object], *, shared: int = 0,
               seed: int = 0, race_check: bool = False, late: bool = True, memory: Sequence[np.ndarray] = ()) -> None:
        """Runs a kernel to its end.

        grid, block: up to three numbers. args: an array for a pointer, a number, or bytes as they are. shared: bytes of dynamic
        shared memory. seed: 0 runs everything in order, others shuffle blocks, warps and lanes. late: asynchronous copies land
        as late as they may. memory: arrays the kernel reaches otherwise than by an argument. An array that is not writeable is
        read only to the kernel too. Raises EmulatorError.
        """
        function = self.kernels[name]
        grid3, block3 = ((*sizes, 1, 1)[:3] for sizes in (grid, block))
        threads = block3[0] * block3[1] * block3[2]
        if not 0 < threads <= function.max_threads or min(grid3) < 1:
            raise EmulatorError(f"{name}: {grid3} blocks of {block3} threads, and it may have {function.max_threads} threads")
        if len(args) != len(function.parameters):
            raise EmulatorError(f"{name}: {len(args)} arguments for {len(function.parameters)} parameters")
        ranges = _ranges([a for a in (*args, *memory) if isinstance(a, np.ndarray)])
        error = ctypes.create_string_buffer(1024)
        parameters = _aligned(_packed(function, args))
        what = _Launch((ctypes.c_uint32 * 3)(*grid3), (ctypes.c_uint32 * 3)(*block3), shared, len(ranges) // 3,
                       parameters.ctypes.data, ctypes.addressof(ranges), seed, race_check, late, STEP_LIMIT,
                       ctypes.cast(error, ctypes.c_char_p))
        if self._library.emu_launch(self._indices[name], ctypes.byref(what)):
            raise EmulatorError(error.value.decode())


def _ranges(arrays: list[np.ndarray]) -> ctypes.Array:
    """(first, end, writable) of each array, sorted, as the runtime wants them."""
    spans: dict[int, tuple[int, int]] = {}
    for a in arrays:
        if not a.flags.c_contiguous:
            raise EmulatorError("an array that is not contiguous")
        start, end, writable = a.ctypes.data, a.ctypes.data + a.nbytes, int(a.flags.writeable)
        known = spans.get(start, (start, 0))
        spans[start] = (max(known[0], end), writable | known[1])
    flat = [v for start, (end, writable) in sorted(spans.items()) for v in (start, end, writable)]
    return (ctypes.c_uint64 * max(len(flat), 3))(*flat)


def _packed(function: Function, args: Sequence[object]) -> bytearray:
    buffer = bytearray(max(function.size, 8))
    for p, a in zip(function.parameters, args, strict=True):
        buffer[p.offset:p.offset + p.size] = _argument(p, a)
    return buffer


def _argument(p: Parameter, a: object) -> bytes:
    if isinstance(a, np.ndarray):
        a = a.ctypes.data
    if isinstance(a, (bytes, bytearray)):
        if len(a) != p.size:
            raise EmulatorError(f"{len(a)} bytes for parameter {p.name} of {p.size}")
        return bytes(a)
    if p.type in ("f32", "f64") or isinstance(a, (float, np.floating)):
        return struct.pack("<f" if p.size == 4 else "<d", float(a))         # type: ignore[arg-type]
    return (int(a) % (1 << 8 * p.size)).to_bytes(p.size, "little")          # type: ignore[call-overload]


def _aligned(content: bytearray) -> np.ndarray:
    """The bytes at an address that is a multiple of 64, as tensor maps among the parameters need it."""
    space = np.zeros(len(content) + 64, np.uint8)
    start = -space.ctypes.data % 64
    space[start:start + len(content)] = np.frombuffer(content, np.uint8)
    return space[start:start + len(content)]


def poisoned(shape: int | tuple[int, ...], dtype: object) -> np.ndarray:
    """An array of 0xFF bytes: NaN in floats, -1 in integers. What a kernel leaves unwritten stays visible."""
    out = np.empty(shape, dtype)                                            # type: ignore[call-overload]
    out.view(np.uint8).fill(0xFF) if out.ndim else out.fill(-1)
    return out


def frozen(array: np.ndarray) -> np.ndarray:
    """A copy that kernels may only read."""
    out = np.array(array, order="C")
    out.flags.writeable = False
    return out


def tensor_map(array: np.ndarray, box: Sequence[int], swizzle: int = 128) -> bytes:
    """What cuTensorMapEncodeTiled makes of a C-contiguous array, in the emulator's own 128 bytes.

    box: like the array's shape, the outermost dimension first. swizzle: 0, 32, 64 or 128 bytes.
    """
    sizes, boxes = array.shape[::-1], tuple(box)[::-1]
    strides = [array.itemsize, *array.strides[::-1][1:]]
    pad = [0] * (5 - array.ndim)
    return struct.pack("<Q5Q5I5IHHHH", array.ctypes.data, *strides, *pad, *sizes, *pad, *boxes, *pad, array.ndim, swizzle, 0x7A7A, 0).ljust(
        128, b"\0")
