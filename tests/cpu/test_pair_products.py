"""Products of prompts in tiles of bfloat16, judged by the gguf package and float64."""

from __future__ import annotations

import numpy as np
import pytest

from imp.cpu.cache import CompiledKernels
from imp.cpu.threads import Threads
from imp.cpu.variants import variants
from imp.model.ops import Linear, Norm
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS
from tests.cpu.harness import Workbench, quantised, values, weight

pytestmark = pytest.mark.skipif("amx" not in variants(), reason="this machine has no tiles (AMX)")

INTEGERS = sorted(name for name in FORMATS if name not in ("F16", "BF16", "F32"))
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")  # packing keeps them as they are
ROUNDED = 2.0**-8 + 2.0**-11  # of a product of two numbers that were rounded to bfloat16, one of them to a half before
REPACKED = 4e-3  # what packing may change of a weight, see test_matmul


@pytest.fixture(scope="module")
def bench(kernel_folder):
    kernels = CompiledKernels(kernel_folder, "amx")
    threads = Threads(2, kernels)
    yield Workbench(kernels, threads)
    threads.close()


def inputs_of(name: str) -> int:
    return 512 if FORMATS[name].block == 256 else 96


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("tokens, outputs", [(1, 8), (5, 40), (16, 32), (17, 33), (40, 64), (130, 80)])
def test_linear(bench, name, tokens, outputs):
    rng = np.random.default_rng(tokens * 100 + outputs)
    w = weight(name, outputs, inputs_of(name), rng)
    bias = rng.standard_normal(outputs).astype(np.float32)
    x = rng.standard_normal((tokens, w.shape[1])).astype(np.float32)
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,), bias)), x, prompts_from=0)
    expected = x.astype(np.float64) @ values(w).T + bias
    size = np.abs(x.astype(np.float64)) @ np.abs(values(w)).T
    assert (np.abs(found - expected) <= size * (ROUNDED + REPACKED) + 1e-5).all()
    spread = np.sqrt((x.astype(np.float64) ** 2) @ (values(w) ** 2).T)  # of a sum of independent terms
    if tokens >= 16:
        assert np.sqrt(np.mean(((found - expected) / spread) ** 2)) < (2.5e-3 if name in EXACT else 6e-3)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("tokens", [1, 16, 31, 64, 100])
def test_numbers_of_few_bits_are_multiplied_exactly(bench, name, tokens):
    """Integers times scales that are powers of two have 8 bits at most."""
    rng = np.random.default_rng(tokens)
    w = weight(name, 53, 128, rng)
    blocks = w.data.reshape(-1, {"Q4_0": 18, "Q8_0": 34}[name])
    blocks[:, :2] = (
        (2.0 ** rng.integers(-6, 1, len(blocks)).astype(np.float32)).astype(np.float16)[:, None].view(np.uint8)
    )
    x = rng.integers(-127, 128, (tokens, 128)).astype(np.float32)
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x, prompts_from=0)
    np.testing.assert_array_equal(found, x.astype(np.float64) @ values(w).T)


def test_outputs_and_prompts_side_by_side(bench):
    """Each in its way, and the same bits as alone."""
    rng = np.random.default_rng(3)
    w = weight("Q4_K", 70, 512, rng)
    x = rng.standard_normal((90, 512)).astype(np.float32)
    seen, exact = quantised(x, "amx", w.format.name) @ values(w).T, x.astype(np.float64) @ values(w).T
    size = np.abs(x.astype(np.float64)) @ np.abs(values(w)).T

    def run(rows, prompts_from):
        return bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x[rows], prompts_from=prompts_from)

    for first in (1, 13, 16, 47, 89):
        found = run(slice(0, 90), first)
        assert (np.abs(found - seen)[:first] <= 4e-3 * size[:first]).all()
        assert (np.abs(found - exact)[first:] <= (ROUNDED + REPACKED) * size[first:]).all()
        np.testing.assert_array_equal(found[:first], run(slice(0, first), first))
        np.testing.assert_array_equal(found[first:], run(slice(first, 90), 0))


@pytest.mark.parametrize("tokens", [1, 7, 64, 81])
def test_a_token_is_the_same_bits_in_any_company(bench, tokens):
    rng = np.random.default_rng(tokens)
    parts = tuple(weight(name, n, 256, rng) for name, n in (("Q4_K", 21), ("Q8_0", 48), ("Q6_K", 9)))
    x, residual = (rng.standard_normal((150, n)).astype(np.float32) for n in (256, 78))
    for bias in (None, rng.standard_normal(78).astype(np.float32)):

        def run(rows, bias=bias):
            ops = lambda ops, x, r: ops.linear_add(x, Linear(parts, bias), r)  # noqa: E731
            return bench.run(ops, x[rows], residual[rows], prompts_from=0)

        whole = run(slice(0, 150))
        for first in (0, 3, 150 - tokens):
            np.testing.assert_array_equal(run(slice(first, first + tokens)), whole[first : first + tokens])


@pytest.mark.parametrize("columns", [96, 512, 2048])
def test_makers_of_activations_write_pairs(bench, columns):
    rng = np.random.default_rng(columns)
    w = weight("Q8_0", 24, columns, rng)
    x = rng.standard_normal((37, 2 * columns)).astype(np.float32)
    norm = Norm(rng.standard_normal(columns).astype(np.float32), 1e-5)
    normed = bench.run(
        lambda ops, x: ops.linear(ops.norm(x, norm), Linear((w,))), x[:, :columns].copy(), prompts_from=5
    )
    own = x[:, :columns].astype(np.float64)
    expected = own / np.sqrt(np.mean(own**2, axis=1, keepdims=True) + 1e-5) * norm.weight
    np.testing.assert_allclose(normed, expected @ values(w).T, atol=1e-2 * np.abs(expected).max() * columns**0.5)
    gated = bench.run(lambda ops, x: ops.linear(ops.glu(x, "silu"), Linear((w,))), x, prompts_from=5)
    gate, up = x[:, :columns].astype(np.float64), x[:, columns:]
    expected = gate / (1 + np.exp(-gate)) * up
    spread = np.sqrt(expected**2 @ (values(w) ** 2).T)
    assert np.sqrt(np.mean(((gated - expected @ values(w).T) / spread)[5:] ** 2)) < 2.5e-3


def test_wide_ranges(bench):
    """Large and tiny activations and weights keep 8 bits; what is none but zeros is zeros."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((32, 64)).astype(np.float32) * np.float32(10.0) ** rng.integers(-6, 6, (32, 1))
    x[3] = 0
    raw = rng.standard_normal((16, 64)).astype(np.float32) * np.float32(10.0) ** rng.integers(-4, 2, (16, 1))
    scales = (np.abs(raw.reshape(16, 2, 32)).max(axis=2) / 127).astype(np.float16)
    integers = np.clip(np.rint(raw.reshape(16, 2, 32) / scales[..., None]), -127, 127).astype(np.int8)
    data = np.concatenate([scales[..., None].view(np.uint8).reshape(16, 2, 2), integers.view(np.uint8)], axis=2)
    w = Weight("wide", data.reshape(16, -1).copy(), FORMATS["Q8_0"], (16, 64))
    found = bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x, prompts_from=0)
    expected = x.astype(np.float64) @ values(w).T
    size = np.abs(x.astype(np.float64)) @ np.abs(values(w)).T
    assert (np.abs(found - expected) <= size * ROUNDED).all() and not found[3].any()


@pytest.mark.parametrize("name, activation", [("Q4_0", "silu"), ("Q4_K", "silu"), ("Q8_0", "gelu_tanh"), ("Q6_K", "silu")])
@pytest.mark.parametrize("tokens", [1, 16, 45, 200])
def test_gate_and_up_are_gated_where_they_are_computed(bench, name, activation, tokens):
    """Of prompts; what a neighbour of another length, or the ops one by one, make of it are the same bits."""
    rng = np.random.default_rng(tokens)
    inputs, inner = inputs_of(name) * 2, 256
    gate, up, down = (weight(name, *shape, rng) for shape in ((inner, inputs), (inner, inputs), (40, inner)))
    x = rng.standard_normal((tokens, inputs)).astype(np.float32) / np.float32(np.abs(values(gate)).mean() * inputs**0.5)

    def whole(ops, x):
        return ops.linear(ops.glu(ops.linear(x, Linear((gate, up))), activation), Linear((down,)))

    def one_by_one(ops, x):
        inner = ops.glu(ops.linear(x, Linear((gate, up))), activation)
        ops._as_floats(inner)
        return ops.linear(inner, Linear((down,)))

    found = bench.run(whole, x, prompts_from=0)
    np.testing.assert_array_equal(found, bench.run(one_by_one, x, prompts_from=0))
    for first in {0, tokens // 3}:
        np.testing.assert_array_equal(found[first:], bench.run(whole, x[first:], prompts_from=0))
    outputs = bench.run(whole, x, prompts_from=tokens)
    mixed = bench.run(whole, x, prompts_from=tokens // 2)
    np.testing.assert_array_equal(mixed[tokens // 2 :], found[tokens // 2 :])
    np.testing.assert_array_equal(mixed[: tokens // 2], outputs[: tokens // 2])
    g, u = (x.astype(np.float64) @ values(w).T for w in (gate, up))
    gated = u * (g / (1 + np.exp(-g)) if activation == "silu" else g / (1 + np.exp(-1.5957691216 * (g + 0.044715 * g**3))))
    spread = np.sqrt(gated**2 @ (values(down) ** 2).T)
    assert np.sqrt(np.mean(((found - gated @ values(down).T) / spread) ** 2)) < (0.01 if name in EXACT else 0.02)
