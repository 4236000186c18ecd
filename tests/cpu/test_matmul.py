"""Matrix products of every weight format, and what packing costs, judged by the gguf package and float64."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.cache import CompiledKernels
from imp.cpu.pack import INT4_MINIMUM, INT8_HALVES, Arena, Packed
from imp.cpu.threads import Threads
from imp.cpu.variants import sums_bytes, variants
from imp.model.ops import Linear, Norm
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS
from tests.cpu.harness import FLOATS, SMALL, Workbench, quantised, step, values, weight

EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "F16", "BF16", "F32")
KEPT = ("Q3_K", "Q6_K", "IQ4_XS")  # integers as they are, scales rounded
FORMAT_NAMES = sorted(FORMATS)


@pytest.fixture(scope="module", params=variants())
def bench(request, kernel_folder):
    """Every kind of code this machine runs."""
    kernels = CompiledKernels(kernel_folder, request.param)
    threads = Threads(2, kernels)
    yield Workbench(kernels, threads)
    threads.close()


def inputs_of(name: str) -> int:
    return 512 if FORMATS[name].block == 256 else 96


def read_back(bench, w: Weight) -> np.ndarray:
    """Every row of a packed weight, by the embedding op."""
    x = step([(range(w.shape[0]), 0, range(w.shape[0]))])
    return bench.run(lambda ops: ops.embed(w), inputs=x)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("outputs", [1, 8, 21, 48])
def test_packing_keeps_the_weights(bench, name, outputs):
    w = weight(name, outputs, inputs_of(name), np.random.default_rng(outputs))
    found, expected = read_back(bench, w), values(w)
    if name in EXACT:
        np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-9)
        return
    if name in ("Q4_K", "Q5_K"):  # 2^-11 of the scaled integer and of the minimum, the lowest weight or below it
        blocks = expected.reshape(outputs, -1, 32)
        bound = 2.0**-11 * 4 * (np.ptp(blocks, axis=-1) + np.abs(blocks).max(axis=-1))
        assert (np.abs(found - expected).reshape(blocks.shape) <= bound[..., None] + 1e-7).all()
        return
    halves = expected.reshape(outputs, -1, 16)
    largest = np.abs(halves).max(axis=-1, keepdims=True)
    bound = largest * 2.0**-10 if name in KEPT else largest / 254 * 1.002
    assert (np.abs(found.reshape(halves.shape) - halves) <= bound + 1e-7).all()


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_repacking_adds_little_to_what_the_format_lost(bench, name):
    """The error of a format is half a step, uniformly: step / sqrt(12)."""
    w = weight(name, 40, inputs_of(name), np.random.default_rng(9))
    expected = values(w)
    added = np.sqrt(np.mean((read_back(bench, w) - expected) ** 2))
    groups = np.sort(expected.reshape(40, -1, 16), axis=-1)
    steps = np.diff(groups, axis=-1)
    smallest = np.where(steps > 1e-6, steps, np.inf).min(axis=-1)  # no smaller than the step of the format
    lost = np.sqrt(np.mean(np.where(np.isfinite(smallest), smallest, 0) ** 2) / 12)
    if name not in FLOATS:
        assert added <= 0.1 * lost


def test_missing_rows_are_zeros():
    w = weight("Q4_1", 11, 64, np.random.default_rng(0))
    packed, arena = Packed(w, "vnni"), Arena(4096)
    arena.pack(packed)
    assert packed.layout is INT4_MINIMUM and packed.groups == 2 and packed.size == 2 * 2 * 160
    start = packed.address - arena._memory.ctypes.data
    last = arena._memory[start : start + packed.size].view(packed.layout.record)[2:]
    assert not last["d"][:, 3:].any() and not last["m"][:, 3:].any() and not last["q"][:, :, 3:].any()


def test_a_tiny_block_keeps_its_scale():
    w = Weight("tiny", (np.full((8, 32), 1e-6, np.float32)).view(np.uint8), FORMATS["F32"], (8, 32))
    fields = INT8_HALVES, Packed(weight("Q2_K", 8, 256, np.random.default_rng(0)), "vnni")
    assert fields[1].layout is INT8_HALVES
    requantised = fields[1].read(w, slice(0, 8))
    assert (requantised["d"] > 0).all()
    assert requantised["q"].view(np.int8).max() <= 127


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("tokens, outputs", [(1, 8), (1, 124), (2, 40), (3, 17), (4, 64), (7, 5), (20, 16), (130, 30)])
def test_linear(bench, name, tokens, outputs):
    rng = np.random.default_rng(tokens * 100 + outputs)
    w = weight(name, outputs, inputs_of(name), rng)
    bias = rng.standard_normal(outputs).astype(np.float32)
    x = rng.standard_normal((tokens, w.shape[1])).astype(np.float32)
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,), bias)), x)
    seen = quantised(x, bench.kernels.variant, name)
    expected = seen @ values(w).T + bias
    size = np.abs(seen) @ np.abs(values(w)).T
    assert (np.abs(found - expected) <= size * (3e-6 if name in EXACT else 4e-3) + 1e-6).all()


@pytest.mark.parametrize("inputs", [1, 7, 45])
@pytest.mark.parametrize("name", FLOATS)
def test_float_weights_of_any_width(bench, name, inputs):
    rng = np.random.default_rng(inputs)
    w = weight(name, 19, inputs, rng)
    x = rng.standard_normal((6, inputs)).astype(np.float32)
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x)
    np.testing.assert_allclose(found, x @ values(w).T, rtol=1e-5, atol=1e-5)


def test_parts_of_different_formats_stand_side_by_side(bench):
    rng = np.random.default_rng(4)
    parts = tuple(weight(name, n, 256, rng) for name, n in (("Q4_K", 21), ("F16", 3), ("Q8_0", 40), ("Q6_K", 9)))
    bias = rng.standard_normal(73).astype(np.float32)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    found = bench.run(lambda ops, x: ops.linear(x, Linear(parts, bias)), x)
    kind = bench.kernels.variant
    expected = np.concatenate([quantised(x, kind, p.format.name) @ values(p).T for p in parts], axis=1)
    size = np.concatenate([np.abs(x) @ np.abs(values(p)).T for p in parts], axis=1)
    assert (np.abs(found - expected - bias) <= size * 4e-3 + 1e-6).all()


def test_linear_add_adds_to_the_residual(bench):
    rng = np.random.default_rng(5)
    w, bias = weight("Q8_0", 29, 64, rng), rng.standard_normal(29).astype(np.float32)
    x, residual = (rng.standard_normal((9, n)).astype(np.float32) for n in (64, 29))
    found = bench.run(lambda ops, x, r: ops.linear_add(x, Linear((w,), bias), r), x, residual)
    np.testing.assert_allclose(found, residual + quantised(x, bench.kernels.variant, "Q8_0") @ values(w).T + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name in ("Q4_0", "Q5_0", "Q8_0")])
@pytest.mark.parametrize("columns", [32, 256, 608])
def test_activations_are_rounded_by_half_a_step_at_most(bench, name, columns):
    """Products with the unit matrix are the activations as they are multiplied."""
    bits = {"Q4_0": 4, "Q5_0": 5, "Q8_0": 8}[name]
    integers = np.eye(columns, dtype=np.int64).reshape(columns, -1, 32) + (1 << (bits - 1)) * (bits < 8)
    eye = Weight("eye", packed_integers(name, integers), FORMATS[name], (columns, columns))
    np.testing.assert_array_equal(values(eye), np.eye(columns))
    x = np.random.default_rng(columns).standard_normal((9, columns)).astype(np.float32)
    x[1, 3], x[2, ::7], x[3] = 1000.0, 1e-3, 0.0
    found = bench.run(lambda ops, x: ops.linear(x, Linear((eye,))), x)
    of_row = np.abs(x).max(axis=1, keepdims=True)
    of_half = np.repeat(np.abs(x).reshape(9, -1, 16).max(axis=-1), 16, axis=1)
    if sums_bytes(bench.kernels.variant):
        steps = of_half / 127
    elif name in SMALL:
        steps = of_half / 127 + of_row / (127 * 32767)
    else:
        steps = of_row / 32767
    assert (np.abs(found - x) <= steps / 2 * 1.001 + 1e-30).all()


def packed_integers(name: str, integers: np.ndarray) -> np.ndarray:
    """integers: [rows, blocks, 32], not negative below 8 bits. With scales of 1."""
    scale = np.broadcast_to(np.frombuffer(np.float16(1).tobytes(), np.uint8), (*integers.shape[:2], 2))
    if name == "Q8_0":
        parts = [scale, integers.astype(np.int8).view(np.uint8)]
    else:
        nibbles = integers & 15
        high = np.packbits((integers >> 4).astype(np.uint8), axis=-1, bitorder="little")
        parts = [scale, *[high] * (name == "Q5_0"), (nibbles[..., :16] | nibbles[..., 16:] << 4).astype(np.uint8)]
    return np.concatenate(parts, axis=-1).reshape(len(integers), -1)


def test_zeros_and_huge_activations_quantise(bench):
    w = weight("Q4_1", 16, 64, np.random.default_rng(6))
    x = np.zeros((3, 64), np.float32)
    x[1], x[2, 5] = 1e30, 1e-35
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], 1e30 * values(w).sum(1), rtol=1e-4, atol=1e26)
    assert np.abs(found[2]).max() < 1e-30


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q6_K", "F16", "BF16", "F32"])
def test_a_token_is_the_same_bits_in_every_batch(bench, name):
    """Tiles of every size, several tiles, several units of tokens, streams of one token; with the norm and gating that
    quantise for it."""
    rng = np.random.default_rng(7)
    w, down = weight(name, 124, 256, rng), weight(name, 20, 32 if FORMATS[name].block == 1 else 256, rng)
    norm = Norm(rng.uniform(0.5, 1.5, 256).astype(np.float32), 1e-5)
    x = rng.standard_normal((300, 256)).astype(np.float32)

    def product(count: int, first: int = 0) -> np.ndarray:
        part = x[first : first + count]
        return bench.run(lambda ops, x: ops.linear(ops.norm(x, norm), Linear((w,))), part).view(np.uint32)

    whole = product(300)
    for count in (1, 2, 3, 4, 5, 8, 12, 13, 16, 17, 31, 64, 129):
        np.testing.assert_array_equal(product(count), whole[:count])
    for first in (1, 2, 3, 150):  # other places in a tile
        np.testing.assert_array_equal(product(7, first), whole[first : first + 7])

    def gated(count: int) -> np.ndarray:
        columns = 2 * down.shape[1]
        part = np.resize(x, (300, columns))[:count]
        return bench.run(lambda ops, x: ops.linear(ops.glu(x, "silu"), Linear((down,))), part).view(np.uint32)

    whole = gated(300)
    for count in (1, 2, 3, 4, 5, 17, 64):
        np.testing.assert_array_equal(gated(count), whole[:count])


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q6_K"])
def test_every_fast_variant_gives_the_same_bits(name, kernel_folder):
    """Instructions that add up in the same width change how long a text takes, not what it says."""
    rng = np.random.default_rng(9)
    w = weight(name, 48, inputs_of(name), rng)
    x = rng.standard_normal((30, w.shape[1])).astype(np.float32)
    x[3] *= 1000
    found = []
    kinds = [kind for kind in variants() if sums_bytes(kind)]
    if len(kinds) < 2:
        pytest.skip("this machine has one kind of code whose byte products add up in 32 bits, or none")
    for variant in kinds:
        kernels = CompiledKernels(kernel_folder, variant)
        threads = Threads(1, kernels)
        bench = Workbench(kernels, threads)
        counts = (1, 2, 3, 4, 5, 8, 9, 16, 30)
        found.append([bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x[:n]).view(np.uint32) for n in counts])
        threads.close()
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_packing_lets_the_pages_of_the_file_go(tmp_path: Path):
    path = tmp_path / "weights"
    w = weight("Q8_0", 4096, 1024, np.random.default_rng(0))
    path.write_bytes(w.data.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapping, np.uint8).reshape(w.data.shape)
    packed = Packed(Weight("mapped", data, w.format, w.shape))
    Arena(packed.size).pack(packed)
    assert _resident_kib(data.ctypes.data) < 64
    np.testing.assert_array_equal(data, w.data)  # and they come back


def _resident_kib(address: int) -> int:
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.endswith("kB"):
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            found = low <= address < high
        elif found and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("the mapping is not there")


def test_memory_that_is_no_file_is_left_alone():
    w = weight("Q8_0", 4096, 64, np.random.default_rng(0))
    before = w.data.copy()
    w.data.flags.writeable = False
    packed = Packed(w)
    Arena(packed.size).pack(packed)
    np.testing.assert_array_equal(w.data, before)
