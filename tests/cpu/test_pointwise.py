"""Embedding, norms, gating, rope, the KV store and softcap against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from imp.cpu.ops import Activation
from imp.model.ops import Attention, Linear, Norm, Rope
from imp.model.reference import ReferenceBackend
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS
from tests.cpu.harness import BLOCK, quantised, step, values, weight

TOKENS = (1, 5, 16, 33)
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture
def judge() -> ReferenceBackend:
    return ReferenceBackend(np.float64)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def make_norm(rng: np.random.Generator, n: int, eps: float = 1e-5) -> Norm:
    return Norm(rng.uniform(0.2, 2, n).astype(np.float32), eps)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ["Q4_1", "F16", "BF16", "F32"])
def test_embed(bench, name, tokens):
    rng = np.random.default_rng(tokens)
    table = weight(name, 37, 64, rng)
    ids = rng.integers(0, 37, tokens)
    found = bench.run(lambda ops: ops.embed(table, 3.5), inputs=step([(ids, 0, range(3))]))
    np.testing.assert_allclose(found, values(table)[ids] * 3.5, **CLOSE)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("columns", [8, 9, 45, 64, 576])
def test_norm(bench, judge, tokens, columns):
    rng = np.random.default_rng(columns)
    x, norm = normal(rng, tokens, columns) * 3, make_norm(rng, columns)
    found = bench.run(lambda ops, x: ops.norm(x, norm), x)
    np.testing.assert_allclose(found, judge.norm(x.astype(np.float64), norm), **CLOSE)


def test_norm_of_zeros_and_of_tiny_numbers(bench, judge):
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e-12
    norm = make_norm(np.random.default_rng(0), 64, eps=1e-6)
    np.testing.assert_allclose(
        bench.run(lambda ops, x: ops.norm(x, norm), x), judge.norm(x.astype(np.float64), norm), **CLOSE
    )


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("columns", [13, 96])
def test_norm_add(bench, judge, tokens, columns):
    rng = np.random.default_rng(tokens)
    x, residual, norm = normal(rng, tokens, columns), normal(rng, tokens, columns), make_norm(rng, columns)
    found = bench.run(lambda ops, x, r: ops.norm_add(x, norm, r), x, residual)
    np.testing.assert_allclose(found, judge.norm_add(x.astype(np.float64), norm, residual), **CLOSE)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("columns", [12, 96, 1100])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_glu(bench, judge, activation, tokens, columns):
    rng = np.random.default_rng(columns)
    x = normal(rng, tokens, 2 * columns) * 4
    found = bench.run(lambda ops, x: ops.glu(x, activation), x)
    np.testing.assert_allclose(found, judge.glu(x.astype(np.float64), activation), rtol=1e-5, atol=2e-6)


def test_glu_of_extreme_gates(bench, judge):
    x = np.zeros((1, 16), np.float32)
    x[0, :8], x[0, 8:] = [-1e4, -100, -20, 0, 20, 100, 1e4, -0.0], 1
    for activation in ("silu", "gelu_tanh"):
        found = bench.run(lambda ops, x, a=activation: ops.glu(x, a), x)
        with np.errstate(over="ignore"):
            expected = judge.glu(x.astype(np.float64), activation)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


ATTENTIONS = {
    "plain": {"heads": 3, "kv_heads": 3, "head_dim": 16, "turning": 8},
    "grouped": {"heads": 6, "kv_heads": 2, "head_dim": 64, "turning": 32},
    "partial": {"heads": 4, "kv_heads": 2, "head_dim": 32, "turning": 10},
    "unturned": {"heads": 2, "kv_heads": 1, "head_dim": 24, "turning": 0},
    "normed": {"heads": 4, "kv_heads": 1, "head_dim": 40, "turning": 20, "norms": True},
}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_rotate_store(bench, judge, kind, tokens):
    rng = np.random.default_rng(tokens)
    shape = dict(ATTENTIONS[kind])
    turning, norms = shape.pop("turning"), shape.pop("norms", False)
    angles = rng.uniform(0, 6.28, (64, turning))
    rope = Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)) if turning else None
    a = Attention(layer=0, scale=1.0, rope=rope, **shape)
    if norms:
        a = Attention(
            layer=0, scale=1.0, rope=rope, **shape, q_norm=make_norm(rng, 40), k_norm=make_norm(rng, 40, 1e-3)
        )
    g, d, blocks = a.kv_heads, a.head_dim, [4, 1, 3, 0]
    inputs = step([(range(tokens), 7, blocks)])
    qkv = normal(rng, tokens, (a.heads + 2 * g) * d)
    cache = np.full((6, g, 2 * BLOCK * d), 77, np.float16)
    untouched = cache.copy()
    found = bench.run(lambda ops, x: ops.rotate_store(x, a), qkv, inputs=inputs, cache=cache)

    judge.inputs = inputs
    judge.keys, judge.values = ([np.full((6 * BLOCK, g, d), 77.0)] for _ in range(2))
    np.testing.assert_allclose(found, judge.rotate_store(qkv.astype(np.float64), a), **CLOSE)
    keys = cache[:, :, : BLOCK * d].reshape(6, g, d, BLOCK).transpose(0, 3, 1, 2).reshape(6 * BLOCK, g, d)
    stored = cache[:, :, BLOCK * d :].reshape(6, g, BLOCK, d).transpose(0, 2, 1, 3).reshape(6 * BLOCK, g, d)
    np.testing.assert_allclose(keys, judge.keys[0], rtol=1e-3, atol=1e-4)  # halves
    np.testing.assert_array_equal(stored, judge.values[0].astype(np.float16))
    others = [b for b in range(6) if b not in inputs.table]
    np.testing.assert_array_equal(cache[others], untouched[others])


@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("vocab", [16, 43])
def test_logits_of_the_wanted_rows(bench, judge, vocab, cap):
    rng = np.random.default_rng(vocab)
    head, norm = weight("F32", vocab, 48, rng), make_norm(rng, 48)
    x = normal(rng, 9, 48) * 5
    inputs = step([(range(9), 0, [0])], wanted=[0, 3, 4, 8])
    out = np.full((6, vocab), -1, np.float32)
    bench.run(lambda ops, x: ops.logits(x, norm, Linear((head,)), cap), x, inputs=inputs, logits=out)
    judge.inputs = inputs
    expected = judge.logits(x.astype(np.float64), norm, Linear((head,)), cap)
    np.testing.assert_allclose(out[:4], expected, rtol=1e-4, atol=1e-4)
    assert (out[4:] == -1).all()


def test_no_logits_are_wanted(bench):
    rng = np.random.default_rng(0)
    head, norm = weight("Q8_0", 16, 64, rng), make_norm(rng, 64)
    out = np.full((2, 16), -1, np.float32)
    inputs = step([(range(3), 0, [0])], wanted=[])
    bench.run(lambda ops, x: ops.logits(x, norm, Linear((head,))), normal(rng, 3, 64), inputs=inputs, logits=out)
    assert (out == -1).all()


def test_both_forms_of_one_activation(bench):
    """A norm read by an integer matrix and by a float one at once."""
    rng = np.random.default_rng(1)
    eye = np.eye(32, dtype=np.float32)
    exact = Weight("eye", eye.view(np.uint8), FORMATS["F32"], (32, 32))
    rough, norm, x = weight("Q8_0", 32, 32, rng), make_norm(rng, 32), normal(rng, 5, 32)

    def record(ops, x: Activation) -> Activation:
        y = ops.norm(x, norm)
        return ops.linear_add(y, Linear((exact,)), ops.linear(y, Linear((rough,))))

    y = ReferenceBackend(np.float64).norm(x.astype(np.float64), norm)
    np.testing.assert_allclose(bench.run(record, x), y + quantised(y, bench.kernels.variant, "Q8_0") @ values(rough).T, rtol=1e-4, atol=1e-3)


def test_a_residual_is_quantised_anew_after_it_changed(bench):
    """linear_add reuses the residual's memory, so an old quantised form must not be taken for the new contents."""
    rng = np.random.default_rng(2)
    w = weight("Q8_0", 32, 32, rng)
    x = normal(rng, 4, 32)

    def record(ops, x: Activation) -> Activation:
        return ops.linear(ops.linear_add(x, Linear((w,)), x), Linear((w,)))

    kind = bench.kernels.variant, "Q8_0"
    once = x + quantised(x, *kind) @ values(w).T
    np.testing.assert_allclose(bench.run(record, x), quantised(once, *kind) @ values(w).T, rtol=1e-3, atol=1e-2)
