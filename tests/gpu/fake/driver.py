"""Building the fake driver, loading it by its name, and finding the PTX that a cubin was compiled from."""

import ctypes
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.gpu.emulator.module import build_folder, compiled, shared_library
from tests.gpu.emulator.parse import parse
from tests.gpu.emulator.translate import translate

SOURCES = Path(__file__).parent
ROOT = Path(__file__).parents[3]
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-Wl,-soname,libcuda.so.1", "-ldl")
_PATH_BYTES = 4096
_Translator = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
_watched: list[Path] = []


class Counters(ctypes.Structure):
    """What was asked of the driver since `reset`."""

    _fields_ = [(name, ctypes.c_uint64) for name in
                ("launches", "graph_launches", "allocations", "frees", "copies", "synchronizations", "loads", "unloads")]


def has_compiler() -> bool:
    return shutil.which("g++") is not None and shutil.which("gcc") is not None


@cache
def library_path() -> Path:
    """libcuda.so.1, built once for these sources, in a folder of its own so that a loader finds it by name."""
    text = b"".join(f.read_bytes() for f in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]))
    key = hashlib.sha256(text + repr(_FLAGS).encode()).hexdigest()[:16]
    built = compiled(f"libcuda-{key}", ".so", ["g++", str(SOURCES / "libcuda.cpp"), *_FLAGS])
    named = build_folder() / f"libcuda-{key}" / "libcuda.so.1"
    if not named.exists():
        named.parent.mkdir(exist_ok=True)
        temporary = named.with_suffix(f".{os.getpid()}")
        temporary.symlink_to(built)
        os.replace(temporary, named)
    return named


def install(folder: Path | None = None, total_bytes: int | None = None) -> None:
    """Loads the fake driver into this process, for good: the next dlopen of libcuda.so.1 finds it.

    folder: compiled kernels are under its cuda/, each with its PTX beside it. total_bytes: of the device. Raises RuntimeError
    where another libcuda is loaded already.
    """
    if folder is not None:
        watch(folder)
    with open("/proc/self/maps") as maps:
        if any("/libcuda.so" in line for line in maps):
            raise RuntimeError("a libcuda.so.1 is loaded already")
    library = _library()
    library.fake_set_translator(_translate_callback)
    if total_bytes is not None:
        library.fake_set_total(ctypes.c_uint64(total_bytes))


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_LOCAL)
    library.fake_counters.restype = ctypes.POINTER(Counters)
    return library


def counters() -> Counters:
    return Counters.from_buffer_copy(_library().fake_counters().contents)


def reset() -> None:
    """Takes back faults, queued work and captures, and counts from nothing."""
    _library().fake_reset()


def set_total(total_bytes: int) -> None:
    _library().fake_set_total(ctypes.c_uint64(total_bytes))


def set_runs_kernels(yes: bool) -> None:
    """False: launches are checked and counted, and nothing runs; for what the host's part costs."""
    _library().fake_set_runs_kernels(int(yes))


def set_seed(seed: int) -> None:
    """Kernels run in another order of blocks, warps and lanes; 0 is in order."""
    _library().fake_set_seed(ctypes.c_uint32(seed))


def fault_after(launches: int) -> None:
    """The kernel of that launch from now on dies and takes the context with it; 0: none does."""
    _library().fake_set_fault_after(ctypes.c_uint64(launches))


def watch(folder: Path) -> None:
    """Look for cubins, with their PTX beside them, under this folder too."""
    _watched.append(folder)


def environment(folder: Path | None = None, **settings: int) -> dict[str, str]:
    """What another process needs to run on the fake driver. folder: as for `install`. settings: total_bytes, poisoned_bytes,
    fault_after, capability, seed, nop, no_device."""
    path = os.environ.get("LD_LIBRARY_PATH")
    folders = os.pathsep.join(map(str, [*([folder] if folder else []), *_folders()]))
    return {
        "LD_LIBRARY_PATH": str(library_path().parent) + (f":{path}" if path else ""),
        "FAKE_CUDA_TRANSLATOR": f"PYTHONPATH={ROOT} {sys.executable} -m tests.gpu.fake.translate",
        "FAKE_CUDA_CUBINS": folders,
        **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()},
    }


def _folders(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    yield from _watched
    yield from map(Path, filter(None, environ.get("FAKE_CUDA_CUBINS", "").split(os.pathsep)))
    if kept := environ.get("IMP_CACHE_DIR"):
        yield Path(kept)
    yield Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imp"


_known: dict[bytes, Path] = {}


def ptx_of(image: bytes) -> str:
    """The PTX of an image: itself, or the .ptx beside the .cubin of the same bytes. Raises LookupError."""
    if not image.startswith(b"\x7fELF"):
        return image.decode()
    for folder in _folders():
        for cubin in (folder / "cuda").rglob("*.cubin"):
            if abs(cubin.stat().st_size - len(image)) > 64:
                continue
            content = cubin.read_bytes()
            if content[:len(image)] == image[:len(content)]:        # the image's end is known from its headers alone
                return cubin.with_suffix(".ptx").read_text()
    raise LookupError(f"no .ptx for a cubin of {len(image)} bytes under {', '.join(map(str, _folders()))}")


def emulated(image: bytes) -> Path:
    """The shared library that runs an image's kernels."""
    key = hashlib.sha256(image).digest()
    if key not in _known:
        _known[key] = shared_library(translate(parse(ptx_of(image)))[0])
    return _known[key]


@_Translator
def _translate_callback(image: int, size: int, path: int) -> int:
    try:
        answer = str(emulated(ctypes.string_at(image, size))).encode() + b"\0"
    except Exception as error:          # a callback of C has nobody to raise to
        print(f"fake libcuda: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    assert len(answer) <= _PATH_BYTES
    ctypes.memmove(path, answer, len(answer))
    return 0
