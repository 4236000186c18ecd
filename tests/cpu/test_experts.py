"""Mixtures of experts on the CPU against float64: every kind of weights, choices, many rows, the same bits for a token."""

from __future__ import annotations

import numpy as np
import pytest

from bench import experts as bench_experts
from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import Experts
from imp.model.reference import ReferenceBackend, silu
from imp.weights.checkpoint import UnsupportedModel, Weight
from tests.cpu.harness import quantised, step, values, weight
from tests.cpu.test_adapters import LIMITS, spans
from tests.gpu.tiny import model
from tests.model import tiny
from tests.model.random_adapters import random
from tests.model.test_arch import checkpoint

HIDDEN = 64


def mixture(
    rng: np.random.Generator, formats: tuple[str, str, str], inner: int, hidden: int, count: int, chosen: int, normalised=True
) -> Experts:
    """formats: of gate, up and down."""
    gate, up, down = (
        tuple(weight(form, *shape, rng) for _ in range(count))
        for form, shape in zip(formats, ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True)
    )
    return Experts(gate, up, down, chosen, normalised, "silu")


def expected(bench, experts: Experts, x: np.ndarray, scores: np.ndarray, before: np.ndarray) -> np.ndarray:
    def products(matrix: Weight, x: np.ndarray) -> np.ndarray:
        return quantised(x, bench.kernels.variant, matrix.format.name, 256) @ values(matrix).T

    p = np.exp(scores.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    out = before.astype(np.float64)
    for t in range(len(x)):
        chosen = sorted(range(experts.count), key=lambda e: (-scores[t, e], e))[: experts.chosen]
        total = p[t, chosen].sum() if experts.normalised else 1.0
        for e in chosen:
            row = x[t : t + 1].astype(np.float64)
            inner = silu(products(experts.gate[e], row)) * products(experts.up[e], row)
            out[t] += p[t, e] / total * products(experts.down[e], inner)[0]
    return out


def given(rng: np.random.Generator, tokens: int, experts: Experts) -> list[np.ndarray]:
    hidden = experts.gate[0].shape[1]
    shapes = ((tokens, hidden), (tokens, experts.count), (tokens, hidden))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def through(bench, experts: Experts, arrays: list[np.ndarray]) -> np.ndarray:
    return bench.run(lambda recorder, x, scores, out: recorder.experts_add(x, scores, experts, out), *arrays)


@pytest.mark.parametrize(
    ("formats", "inner", "hidden", "tolerance"),
    [
        (("F32", "F32", "F32"), 40, 72, 2e-6),
        (("Q4_1", "Q4_1", "Q8_0"), 96, 64, 3e-3),  # what the middle is rounded to depends on its last bits
        (("Q8_0", "F16", "Q4_1"), 64, 96, 3e-3),
    ],
)
def test_what_experts_add_is_what_float64_says(bench, formats, inner, hidden, tolerance):
    """A token and many, experts of one token, of more than fit one item, and of none."""
    rng = np.random.default_rng(inner)
    for count, chosen, normalised, tokens in ((7, 3, True, 1), (5, 2, False, 33), (2, 1, True, 300)):
        experts = mixture(rng, formats, inner, hidden, count, chosen, normalised)
        arrays = given(rng, tokens, experts)
        arrays[1][:, 0] -= 40 * (count > 5)
        added = expected(bench, experts, *arrays) - arrays[2]
        found = through(bench, experts, arrays) - arrays[2].astype(np.float64)
        assert np.abs(found - added).max() < tolerance * np.abs(added).max()


def test_of_equal_scores_the_first_experts_are_chosen(bench):
    rng = np.random.default_rng(3)
    experts = mixture(rng, ("F32",) * 3, 32, HIDDEN, 6, 3)
    x, scores, before = given(rng, 4, experts)
    scores[0], scores[1], scores[2] = 0.0, [1, 5, 5, 2, 5, 5], [-np.inf, -np.inf, 0, -np.inf, -np.inf, 1]
    found = through(bench, experts, [x, scores, before])
    assert np.abs(found - expected(bench, experts, x, scores, before)).max() < 1e-5


def test_scores_that_are_no_numbers_spoil_their_own_token_alone(bench):
    rng = np.random.default_rng(4)
    experts = mixture(rng, ("F32",) * 3, 32, HIDDEN, 6, 3)
    arrays = given(rng, 5, experts)
    whole = through(bench, experts, arrays)
    arrays[1][2] = np.nan
    found = through(bench, experts, arrays)
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(whole, 2, 0))


@pytest.mark.parametrize("formats", [("F32",) * 3, ("Q4_1", "Q4_1", "Q8_0")])
def test_a_token_gets_the_same_bits_alone_and_among_others(bench, formats):
    rng = np.random.default_rng(5)
    experts = mixture(rng, formats, 64, HIDDEN, 4, 2)
    arrays = given(rng, 280, experts)
    whole = through(bench, experts, arrays)
    for rows in (slice(0, 1), slice(130, 133), slice(275, 280), slice(3, 250)):
        np.testing.assert_array_equal(through(bench, experts, [each[rows] for each in arrays]), whole[rows])


def test_experts_in_formats_of_their_own_are_refused(bench):
    rng = np.random.default_rng(6)
    one, other = (mixture(rng, (form,) * 3, 32, HIDDEN, 1, 1) for form in ("F32", "Q8_0"))
    mixed = Experts(one.gate + other.gate, one.up + other.up, one.down + other.down, 1, True, "silu")
    with pytest.raises(UnsupportedModel, match="all must be kept alike"):
        through(bench, mixed, given(rng, 1, mixed))


def test_adapters_add_to_a_model_with_experts_what_float64_says(kernel_folder):
    """Beside tokens without one, whose bits stay."""
    some, tokens = arch.build(checkpoint("qwen3-moe")), tiny.prompt("qwen3-moe")
    backend, judge = CpuBackend(2, kernel_folder), ReferenceBackend(np.float64)
    adapter, found = random(some, 4, seed=1, size=0.1), []
    plain = step([(tokens, 0, range(3)), (tokens, 0, range(3, 6))])
    for each in (backend, judge):
        each.load(some, LIMITS)
        found.append(each.run(plain).copy())
        inputs = type(plain)(**{n: getattr(plain, n) for n in plain.__slots__} | {"adapted": spans((0, 40, each.add_adapter(adapter)))})
        found.append(each.run(inputs).copy())
    backend.close()
    before, ours, _, theirs = found
    assert np.abs(ours - theirs).max() < 3e-4 and np.abs(ours[0] - before[0]).max() > 0.1
    np.testing.assert_array_equal(ours[1], before[1])


def test_a_quantised_model_is_the_same_bits_however_its_prompt_is_cut(kernel_folder):
    tokens = tiny.prompt("qwen3-moe")
    backend = CpuBackend(2, kernel_folder)
    backend.load(model("qwen3-moe", "Q4_1"), LIMITS)
    whole = backend.run(step([(tokens, 0, range(3))])).copy()
    backend.run(step([(tokens[:23], 0, range(4, 7)), (tokens[::-1], 0, range(8, 11))]))
    for at in range(23, 40):
        last = backend.run(step([(tokens[at : at + 1], at, range(4, 7))]))
    np.testing.assert_array_equal(last, whole)
    backend.close()


def test_the_bench_measures_both(kernel_folder):
    shape = bench_experts.Shape(hidden=64, inner=32, experts=4, chosen=2)
    found = list(bench_experts.measured(shape, "F32", [1, 5], 2, kernel_folder))
    assert [(form, count) for form, count, *_ in found] == [("F32", 1), ("F32", 5)]
    assert all(dense > 0 and mixed > 0 for *_, dense, mixed in found)
