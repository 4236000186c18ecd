"""Kernels of imp/cuda/kernels, compiled and run in the emulator in every way it can run them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from imp.cuda.compile import Compiler, Source
from tests.gpu.emulator import Module, poisoned
from tests.gpu.emulator.module import build_folder, has_compiler

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")
if not has_compiler():
    pytest.skip("needs gcc", allow_module_level=True)

ARCHITECTURE = "sm_90a"  # whose PTX is run
# in order; in any order, with shared memory watched; with asynchronous copies that land at once
WAYS = ({}, {"seed": 11, "race_check": True}, {"late": False, "seed": 5})
TOLERANCE = {"f32": 1e-5, "f16": 5e-4, "bf16": 4e-3}  # of `error`, by the least exact number on the way


class Result:
    """An array that a kernel writes: `values` before it runs, or nothing."""

    def __init__(self, shape: int | tuple[int, ...] = (), dtype: object = np.float32, values: np.ndarray | None = None):
        self.before = poisoned(shape, dtype) if values is None else values


@cache
def compiler(architecture: str = ARCHITECTURE) -> Compiler:
    return Compiler(build_folder().parent, architecture)


@cache
def module(file: str, **defines: int) -> Module:
    """The emulated kernels of a file. Whatever they execute, the emulator knows."""
    return emulated(compiler().compile(Source(file, tuple(sorted(defines.items())))).ptx)


def emulated(ptx: str) -> Module:
    built = Module(ptx)
    assert not built.unsupported
    return built


def run(
    built: Module,
    entry: str,
    grid: Sequence[int],
    block: int,
    args: Sequence[object],
    shared: int = 0,
    memory: Sequence[np.ndarray] = (),
) -> list[np.ndarray]:
    """The arrays of the Results among `args`, after the kernel: the same bits whichever way it ran. Other arrays may only be
    read. memory: what is reached by addresses in arrays."""
    found: list[list[np.ndarray]] = []
    for way in WAYS:
        given = [np.array(a.before) if isinstance(a, Result) else _frozen(a) for a in args]
        built.launch(entry, grid, (block,), given, shared=shared, memory=memory, **way)  # type: ignore[arg-type]
        found.append([g for g, a in zip(given, args, strict=True) if isinstance(a, Result)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), "bits depend on the order of threads")
    return found[0]


def _frozen(a: object) -> object:
    if not isinstance(a, np.ndarray):
        return a
    copy = np.array(a, order="C")
    copy.flags.writeable = False
    return copy


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The norm of the difference over the norm of what is right; NaN where anything was not written."""
    expected = expected.astype(np.float64)
    return float(np.linalg.norm(found.astype(np.float64) - expected) / max(np.linalg.norm(expected), 1e-30))


# -- numbers and rows --------------------------------------------------------------------------------------------------


def bf16(x: np.ndarray) -> np.ndarray:
    """Bits, uint16: the nearest, ties to even."""
    raw = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def values(bits: np.ndarray, form: str) -> np.ndarray:
    """float32 of float32, float16 or bfloat16 bits."""
    if form == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if form == "f16" else bits


def operand(x: np.ndarray, form: str, stride: int) -> np.ndarray:
    """x [tokens, columns] as an operand of that form, with zeros to the stride."""
    wide = np.zeros((len(x), stride), np.float32)
    wide[:, : x.shape[1]] = x
    return bf16(wide) if form == "bf16" else wide.astype(np.float16).view(np.uint16) if form == "f16" else wide


def rows(x: np.ndarray, stride: int, fill: float = np.nan) -> np.ndarray:
    """x [tokens, columns] float32 with what must not be read behind it."""
    wide = np.full((len(x), stride), fill, np.float32)
    wide[:, : x.shape[1]] = x
    return wide


def counts(tokens: int, tiles: int = 0, splits: int = 0, wanted: int = 0) -> np.ndarray:
    """The first numbers of a step's metadata: tokens, rows, wanted, pooled, tiles, splits."""
    return np.array([tokens, 0, wanted, 0, tiles, splits, 0, 0], np.int32)


FORMS = {"f32": 0, "f16": 1, "bf16": 2}
FORM_TYPES = {"f32": np.float32, "f16": np.uint16, "bf16": np.uint16}


def padded(columns: int) -> int:
    return -(-columns // 64) * 64
