"""Logits as the sampler gets them, against float64: biases, masks in an order of their own with tokens that share a bit, and
penalties on what was seen. Drawing alone would not show most of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from imp.model.sampling import SamplingPlan
from tests.cpu.test_sample import make_plan
from tests.gpu.kernels import Result, compiler, emulated, run
from tests.gpu.test_kernels_sample import FLOATS, INTS, filled

ROWS = (
    {},
    {"bias": {3: 2.5, 60: -np.inf, 7: -1.0}},
    {"seen": {1: 0, 5: 2, 9: 1, 64: 3}, "repetition": 1.3, "frequency": 0.4, "presence": 0.7},
    {"seen": {2: 0, 6: 4}, "repetition": 0.8, "frequency": -0.2, "presence": -0.5, "bias": {6: 1.0}, "allowed": [2, 6, 11, 30, 31]},
    {"allowed": [0, 32, 33, 40]},
)


def plan_of(vocab: int, rng: np.random.Generator) -> SamplingPlan:
    """Bits of masks are tokens in a random order; the last three tokens share the bits of others."""
    plan = make_plan([dict(row) for row in ROWS], vocab)
    order = rng.permutation(vocab - 3).astype(np.int32)
    aliases = np.array([(vocab - 3, 2), (vocab - 2, 33), (vocab - 1, 50)], np.int32)  # bits of the first mask, of the second, of none
    return replace(plan, mask_tokens=order, mask_aliases=aliases)


def expected(x: np.ndarray, plan: SamplingPlan, r: int, vocab: int) -> np.ndarray:
    """Token by token, as imp/model/sampling.py words steps 2 to 4."""
    out = x[:vocab].astype(np.float64)
    for k in range(plan.bias_starts[r], plan.bias_starts[r + 1]):
        out[plan.bias_tokens[k]] += plan.bias_values[k]
    if plan.mask_rows[r] >= 0:
        bit_of = {int(token): bit for bit, token in enumerate(plan.mask_tokens)} | {int(t): int(b) for t, b in plan.mask_aliases}
        words = plan.masks[plan.mask_rows[r]]
        for token in range(vocab):
            if not int(words[bit_of[token] // 32]) >> (bit_of[token] % 32) & 1:
                out[token] = -np.inf
    for k in range(plan.seen_starts[r], plan.seen_starts[r + 1]):
        token, count = plan.seen_tokens[k], plan.seen_counts[k]
        out[token] = out[token] / plan.repetition[r] if out[token] > 0 else out[token] * plan.repetition[r]
        out[token] -= plan.frequency[r] * count + (plan.presence[r] if count else 0)
    return out


def test_logits_are_edited_as_the_plan_says() -> None:
    from imp.cuda.kernels.edit import EDIT, THREADS

    rng, vocab, ld = np.random.default_rng(0), 70, 72
    plan = plan_of(vocab, rng)
    x = rng.normal(size=(len(ROWS), ld)).astype(np.float32) * 3
    floats = np.stack([getattr(plan, name) for name in FLOATS]).astype(np.float32)
    ints = np.stack([getattr(plan, name) for name in INTS]).astype(np.int32)
    lists = [filled(getattr(plan, name)) for name in ("bias_tokens", "bias_values", "seen_tokens", "seen_counts", "masks", "mask_aliases")]
    args = [x, Result(x.shape), floats, ints, plan.bias_starts, *lists[:2], plan.seen_starts, *lists[2:5], plan.mask_tokens, lists[5],
            len(ROWS), ld, vocab, plan.masks.shape[1], len(plan.mask_tokens), len(plan.mask_aliases)]  # fmt: skip
    built = emulated(compiler().compile(EDIT).ptx)
    (edited,) = run(built, next(iter(built.kernels)), (len(ROWS),), THREADS, args)
    assert np.isnan(edited[0]).all()                # nothing to edit: drawn from as it is
    for r in range(1, len(ROWS)):
        np.testing.assert_allclose(edited[r, :vocab], expected(x[r], plan, r, vocab), rtol=1e-6)
        assert np.isnan(edited[r, vocab:]).all()
