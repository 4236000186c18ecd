"""Sampling on the device draws what `reference_sample` draws: the random plans of the CPU's sampler, and its check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from imp.model.sampling import Drawn, SamplingPlan
from tests.cpu.test_sample import check, make_plan, some_logits, some_row
from tests.gpu.kernels import Result, compiler, emulated, module, run

FLOATS = ("temperature", "top_p", "min_p", "typical_p", "repetition", "frequency", "presence", "xtc_probability",
          "xtc_threshold", "mirostat_tau", "mirostat_eta", "mu")  # fmt: skip
INTS = ("top_k", "mirostat", "top_logprobs", "targets", "mask_rows")


def filled(values: np.ndarray) -> np.ndarray:
    """At least one number, so that there is an address."""
    return values if values.size else np.zeros(1, values.dtype)


@dataclass
class DeviceSampler:
    """`Backend.sample` of kernels in the emulator."""

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        from imp.cuda.kernels.edit import EDIT, THREADS

        rows, ld = logits.shape
        floats = np.stack([getattr(plan, name) for name in FLOATS]).astype(np.float32)
        ints = np.stack([getattr(plan, name) for name in INTS]).astype(np.int32)
        width, bits = max(int(plan.top_logprobs.max()), 0), -(-plan.vocab // 32)
        built = emulated(compiler().compile(EDIT).ptx)
        args = [logits, Result((rows, ld)), floats, ints, plan.bias_starts, filled(plan.bias_tokens), filled(plan.bias_values),
                plan.seen_starts, filled(plan.seen_tokens), filled(plan.seen_counts), filled(plan.masks), plan.mask_tokens,
                filled(plan.mask_aliases), rows, ld, plan.vocab, plan.masks.shape[1], len(plan.mask_tokens), len(plan.mask_aliases)]  # fmt: skip
        (edited,) = run(built, next(iter(built.kernels)), (rows,), THREADS, args)
        args = [logits, edited, Result(values=floats), ints, plan.uniform, plan.bias_starts, plan.seen_starts, Result((rows,), np.int32),
                rows, ld, plan.vocab]  # fmt: skip
        floats, tokens = run(module("sample.cu"), "draw", (rows,), 512, args, 8 * bits)
        plan.mu[:] = floats[FLOATS.index("mu")]
        zeros = [Result(values=np.zeros(rows, np.float32)), Result(values=np.zeros(rows, np.int32))]
        top = [Result(values=np.zeros((rows, max(width, 1)), kind)) for kind in (np.int32, np.float32)]
        args = [logits, ints, tokens, *zeros, *top, rows, ld, plan.vocab, max(width, 1)]
        logprobs, ranks, top_tokens, top_values = run(module("sample.cu"), "report", (rows,), 512, args, 4 * bits)
        return Drawn(tokens, logprobs, ranks, top_tokens[:, :width], top_values[:, :width])


@pytest.mark.parametrize("vocab", [1, 2, 31, 64, 65, 1000, 1021])
@pytest.mark.parametrize("seed", range(4))
def test_random_plans_draw_what_the_reference_draws(seed: int, vocab: int) -> None:
    rng = np.random.default_rng(1000 * seed + vocab)
    logits = np.stack([some_logits(rng, vocab + 7) for _ in range(6)])
    logits[:, vocab:] = 99.0  # padding of the head: never drawn
    logits[:, :vocab][~np.isfinite(logits[:, :vocab]).any(axis=1)] = 0.0
    check(DeviceSampler(), logits, [some_row(rng, vocab) for _ in range(6)], vocab)  # type: ignore[arg-type]


def test_draws_follow_the_probabilities() -> None:
    x = np.log(np.array([0.5, 0.2, 0.2, 0.1], np.float32))
    rows = [{"u": (i + 0.5) / 100} for i in range(100)]
    tokens = DeviceSampler().sample(np.tile(x, (100, 1)), make_plan(rows, 4)).tokens
    assert np.bincount(tokens).tolist() == [50, 20, 20, 10]


def test_every_filter_at_a_larger_vocabulary() -> None:
    rng = np.random.default_rng(7)
    vocab = 8_001
    logits = rng.standard_normal((8, vocab)).astype(np.float32) * 2
    logits[5] = 1.25
    rows = [
        {"u": 0.3, "top_p": 0.9},
        {"u": 0.7, "top_k": 900, "top_p": 0.97},
        {"u": 0.9999, "typical_p": 0.8},
        {"u": 0.2, "top_p": 0.99, "min_p": 0.001, "temperature": 2.0},
        {"u": 0.6, "mirostat": 2, "mu": 12.0},
        {"u": 0.5, "top_p": 0.5, "top_logprobs": 3},
        {"u": 0.4, "mirostat": 1, "mu": 8.0},
        {"u": 0.1, "xtc_probability": 1.0, "xtc_threshold": 0.001, "top_logprobs": 20},
    ]
    check(DeviceSampler(), logits, rows, vocab)  # type: ignore[arg-type]
