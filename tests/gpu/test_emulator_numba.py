"""Kernels in Python, compiled by Numba, run in the emulator: the same PTX as on a GPU, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")
pytest.importorskip("numba.cuda", reason="needs the cuda packages")

from numba import cuda, float32, int32, int64, types, uint32

from imp.cuda.compile import Compiler, PythonKernel
from tests.gpu.emulator import EmulatorError, Module, frozen, poisoned
from tests.gpu.emulator.module import build_folder, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs gcc")

P = types.CPointer
THREADS = 128


def built(kernel: PythonKernel) -> tuple[Module, str]:
    module = Module(Compiler(build_folder().parent, "sm_90a").compile(kernel).ptx)
    assert module.unsupported == []
    (name,) = module.kernels
    return module, name


def _norms(x, w, out, columns, eps):
    room = cuda.shared.array(4, float32)
    row, t = int64(cuda.blockIdx.x), cuda.threadIdx.x
    total = float32(0)
    for i in range(t, columns, THREADS):
        v = float32(x[row * columns + i])
        total += v * v
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
        step >>= 1
    if t % 32 == 0:
        room[t // 32] = total
    cuda.syncthreads()
    total = room[0] + room[1] + room[2] + room[3]
    scale = float32(1) / math.sqrt(total / float32(columns) + eps)
    for i in range(t, columns, THREADS):
        out[row * columns + i] = types.float16(float32(x[row * columns + i]) * scale * float32(w[i]))


def _unsynchronised(x, w, out, columns, eps):
    room = cuda.shared.array(4, float32)
    t = cuda.threadIdx.x
    if t % 32 == 0:
        room[t // 32] = float32(x[t])
    out[t] = types.float16(room[0] + room[1] + room[2] + room[3])


def _histogram(x, out, n):
    room = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        room[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < n:
        cuda.atomic.add(room, x[i] & 15, 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(out, t, room[t])


def _numbers(x, y, out, n):
    """Integers and doubles, as metadata and sampling need them."""
    i = cuda.grid(1)
    if i >= n:
        return
    a, b = int64(x[i]), int64(y[i])
    out[8 * i] = a // b
    out[8 * i + 1] = a % b
    out[8 * i + 2] = int64(math.floor(math.log(float(abs(a) + 1)) * 1000))
    out[8 * i + 3] = int64(math.exp(float(b % 20)))
    out[8 * i + 4] = cuda.popc(uint32(x[i]))
    out[8 * i + 5] = cuda.ffs(uint32(x[i]))
    out[8 * i + 6] = min(a, b) if (a ^ b) & 1 else max(a, b)
    out[8 * i + 7] = int64(math.pow(float(i), 2.5) + 0.5)


def _votes(x, out):
    t = cuda.threadIdx.x
    ballot = cuda.ballot_sync(0xFFFFFFFF, x[t] > 3)
    same = cuda.match_any_sync(0xFFFFFFFF, x[t])
    out[2 * t] = int64(ballot)
    out[2 * t + 1] = int64(same)


FLOATS = (P(types.float16), P(types.float16), P(types.float16), types.int32, types.float32)


def test_a_norm_with_shuffles_and_shared_memory() -> None:
    module, name = built(PythonKernel("norms", _norms, FLOATS, THREADS))
    rng = np.random.default_rng(0)
    x, w, out = rng.normal(size=(4, 500)).astype(np.float16), rng.normal(size=500).astype(np.float16), poisoned((4, 500), np.float16)
    for seed in (0, 3):
        module.launch(name, (4,), (THREADS,), [frozen(x), frozen(w), out, 500, 1e-5], seed=seed, race_check=True)
        wide = x.astype(np.float64)
        expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
        assert np.linalg.norm(out - expected) < 5e-4 * np.linalg.norm(expected)


def test_its_missing_barrier_is_found_with_the_line_of_python_or_without() -> None:
    module, name = built(PythonKernel("unsynchronised", _unsynchronised, FLOATS, THREADS))
    x = np.ones(THREADS, np.float16)
    with pytest.raises(EmulatorError, match="race: read of a shared byte"):
        module.launch(name, (1,), (THREADS,), [x, x.copy(), x.copy(), 1, 0.0], race_check=True)


def test_atomics_on_arrays() -> None:
    """An array argument is seven parameters."""
    kernel = PythonKernel("histogram", _histogram, (types.int32[::1], types.int32[::1], types.int32), THREADS)
    module, name = built(kernel)
    x, out = np.random.default_rng(1).integers(0, 1000, 5000).astype(np.int32), np.zeros(16, np.int32)

    def array(a: np.ndarray) -> list[object]:
        return [0, 0, a.size, a.itemsize, a, a.size, a.itemsize]

    module.launch(name, (3,), (THREADS,), [*array(frozen(x)), *array(out), len(x)], race_check=True)
    assert (out == np.bincount(x & 15, minlength=16)).all()


def test_integers_and_doubles() -> None:
    module, name = built(PythonKernel("numbers", _numbers, (P(types.int32), P(types.int32), P(types.int64), types.int32), THREADS))
    rng = np.random.default_rng(2)
    x, y = rng.integers(-(2**31), 2**31, 100).astype(np.int32), rng.integers(-50, 50, 100).astype(np.int32)
    y[y == 0] = 7
    out = poisoned((100, 8), np.int64)
    module.launch(name, (1,), (THREADS,), [frozen(x), frozen(y), out, 100])
    a, b = x.astype(np.int64), y.astype(np.int64)
    assert (out[:, 0] == a // b).all() and (out[:, 1] == a % b).all()
    assert (np.abs(out[:, 2] - np.floor(np.log(np.abs(a) + 1.0) * 1000)) <= 1).all()
    assert (np.abs(out[:, 3] - np.exp(np.abs(b % 20).astype(float))) <= 1 + out[:, 3] * 1e-12).all()
    bits = x.view(np.uint32)
    assert (out[:, 4] == [int(v).bit_count() for v in bits]).all()
    assert (out[:, 5] == [(int(v) & -int(v)).bit_length() for v in bits]).all()
    assert (out[:, 6] == np.where((a ^ b) & 1, np.minimum(a, b), np.maximum(a, b))).all()
    assert (np.abs(out[:, 7] - np.floor(np.arange(100.0) ** 2.5 + 0.5)) <= 1).all()


def test_votes_and_matches() -> None:
    module, name = built(PythonKernel("votes", _votes, (P(types.int32), P(types.int64)), 32))
    x, out = np.random.default_rng(3).integers(0, 6, 32).astype(np.int32), poisoned((32, 2), np.int64)
    module.launch(name, (1,), (32,), [frozen(x), out])
    assert (out[:, 0] & 0xFFFFFFFF == sum(1 << int(i) for i in np.flatnonzero(x > 3))).all()
    assert (out[:, 1] & 0xFFFFFFFF == [sum(1 << j for j in range(32) if x[j] == v) for v in x]).all()
