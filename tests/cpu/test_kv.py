"""Formats of keys and values: their definitions against what the formats' own specifications say, and the kernels that
store them against the definitions, byte for byte."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from imp.cpu.kv import KEPT
from imp.model.kv import E2M1, E4M3, FORMATS, KVFormat, bf16, turned
from imp.model.ops import Attention
from tests.cpu.harness import BLOCK, step
from tests.cpu.kept import head_of_block

CODED = [form for form in FORMATS.values() if form.turns]


def by_name(form: KVFormat) -> str:
    return form.name


# -- definitions


def test_e4m3_and_e2m1_are_those_of_their_specifications():
    """OCP 8-bit floats 1.0, table 1; OCP MX formats 1.0, section 5.3.3."""
    assert E2M1.values(np.arange(16, dtype=np.uint8)).tolist() == [
        *(0, 0.5, 1, 1.5, 2, 3, 4, 6),
        *(-0.0, -0.5, -1, -1.5, -2, -3, -4, -6),
    ]
    e4m3 = E4M3.values(np.arange(127, dtype=np.uint8))
    assert e4m3[[1, 7, 8, 0x38, 0x7E]].tolist() == [2.0**-9, 7 * 2.0**-9, 2.0**-6, 1.0, 448.0]
    assert np.all(np.diff(e4m3) > 0)


@pytest.mark.parametrize("small, count", [(E4M3, 127), (E2M1, 8)])
def test_a_number_becomes_the_nearest_code_ties_to_even(small, count):
    values = small.values(np.arange(count, dtype=np.uint8)).astype(np.float64)
    between = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(between.astype(np.float32), np.float32(to)) for to in (0, 1e3)]
    x = np.concatenate(
        [values, between, *beside, [values[-1] * 2], np.random.default_rng(0).uniform(0, values[-1], 5000)]
    ).astype(np.float32)
    distance = np.abs(x[:, None].astype(np.float64) - values)
    ties = distance == distance.min(axis=1, keepdims=True)
    even = np.arange(count) % 2 == 0
    wanted = np.where(ties.sum(axis=1) > 1, (ties & even).argmax(axis=1), ties.argmax(axis=1))
    np.testing.assert_array_equal(small.codes(x), wanted)
    np.testing.assert_array_equal(small.codes(-x), wanted | 1 << (small.exponent + small.mantissa))
    np.testing.assert_array_equal(small.values(small.codes(-x)), -small.values(small.codes(x)))


def test_bf16_is_rounded_to_nearest_even():
    x = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    x = np.concatenate([x, bf16(x) * np.float32(1 + 2**-8), [0.0, -0.0, 1e-40, 3e38]]).astype(np.float32)
    raw = gguf.quantize(x[None], GGMLQuantizationType.BF16)
    wanted = gguf.dequantize(raw, GGMLQuantizationType.BF16)[0]
    np.testing.assert_array_equal(bf16(x), wanted)


@pytest.mark.parametrize("d", [8, 40, 64, 96, 256])
def test_turning_is_its_own_inverse_and_keeps_products(d):
    rng = np.random.default_rng(d)
    q, k = rng.standard_normal((2, 5, d)).astype(np.float32)
    np.testing.assert_allclose(turned(turned(k)), k, atol=1e-6)
    np.testing.assert_allclose((turned(q) * turned(k)).sum(-1), (q * k).sum(-1), atol=1e-5)
    size = d & -d
    matrix = turned(np.eye(d, dtype=np.float32)) * np.sqrt(np.float32(size))
    blocks = np.kron(np.eye(d // size), np.ones((size, size)))
    np.testing.assert_allclose(np.abs(matrix), blocks, atol=1e-6)


LOSS = {"fp16": 3e-4, "bf16": 2.5e-3, "fp8": 0.03, "int8": 0.01, "int4": 0.09, "nvfp4": 0.12, "mxfp4": 0.16}


@pytest.mark.parametrize("name", LOSS)
@pytest.mark.parametrize("d", [64, 80, 256])
def test_a_format_keeps_what_its_bits_can_keep(name, d):
    """Root of the mean square error, of numbers of which some channels are twenty times the others."""
    x = np.random.default_rng(2).standard_normal((500, d)).astype(np.float32)
    x[:, [3, d // 2]] *= 20
    error = FORMATS[name].through(x) - x
    assert np.sqrt(np.mean(error**2) / np.mean(x**2)) < LOSS[name]
    np.testing.assert_array_equal(FORMATS[name].through(np.zeros((1, d))), 0)


def test_a_centre_is_put_back_and_makes_the_error_smaller():
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((300, 64)) + 4 * rng.standard_normal(64)).astype(np.float32)
    centre = turned(x).mean(axis=0)
    for form in CODED:
        before, after = (np.sqrt(np.mean((form.through(x, c) - x) ** 2)) for c in (0.0, centre))
        assert after < 0.5 * before, form.name


@pytest.mark.parametrize("form", CODED, ids=by_name)
def test_one_vector_has_no_part_in_another(form):
    x = np.random.default_rng(4).standard_normal((2, 3, 64)).astype(np.float32)
    alone = [form.kept(x[i, j]) for i in range(2) for j in range(3)]
    np.testing.assert_array_equal(form.kept(x).reshape(6, 64), alone)


# -- kernels


def awkward(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors of zeros, of one number, of tiny and of large ones among ordinary ones; [..., d]."""
    x = rng.standard_normal(shape).astype(np.float32)
    kinds = rng.integers(0, 8, shape[:-1])
    x[kinds == 0] = 0
    x[kinds == 1] = 1.25
    x[kinds == 2] *= 1e-30
    x[kinds == 3] *= 3e4
    x[kinds == 4, shape[-1] // 2] = 500
    return x


@pytest.mark.parametrize("d", [16, 64, 80, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_stored_is_what_the_definition_says_and_only_where_it_belongs(bench, name, d):
    """Without rope and norms nothing is computed before."""
    form, rng, g, tokens = FORMATS[name], np.random.default_rng(d), 3, 37
    a = Attention(0, 2, g, d, scale=1.0, rope=None)
    qkv = awkward(rng, tokens, a.heads + 2 * g, d)
    if name == "fp16":
        qkv = np.clip(qkv, -6e4, 6e4)
    centre = rng.standard_normal((g, d)).astype(np.float32)
    blocks = [4, 1, 3, 0]
    memory = np.full((6, g, 2 * BLOCK * form.record_bytes(d)), 255, np.uint8)
    wanted = memory.copy()

    def stored(recorder, x):
        recorder.kept = KEPT[name]
        q = recorder.rotate_store(x, a)
        recorder.centres[0][:] = centre
        return q

    q = bench.run(stored, qkv.reshape(tokens, -1), inputs=step([(range(tokens), 7, blocks)]), cache=memory)
    queries, keys, values = np.split(qkv, [a.heads, a.heads + g], axis=1)
    for i, block in enumerate(blocks[:3]):
        first = max(0, 7 - i * BLOCK)
        own = slice(max(0, i * BLOCK - 7), min(tokens, (i + 1) * BLOCK - 7))
        for head in range(g):
            given = keys[own, head], values[own, head]
            wanted[block, head] = head_of_block(form, *given, first=first, centre=centre[head])
    np.testing.assert_array_equal(memory, wanted)
    np.testing.assert_array_equal(q.reshape(queries.shape), turned(queries) if form.turns else queries)
