"""Sampling in machine code draws what `reference_sample` draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.cpu.cache import CompiledKernels
from imp.cpu.sample import Sampler
from imp.model.sampling import SamplingPlan, log_softmax, reference_sample, uniform

DEFAULTS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition": 1.0,
    "frequency": 0.0,
    "presence": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "mu": 10.0,
    "top_logprobs": -1,
    "targets": -1,
}
WHOLE = ("top_k", "mirostat", "top_logprobs", "targets")


def make_plan(rows: list[dict], vocab: int) -> SamplingPlan:
    """Row by row: any of DEFAULTS, and u, coin, bias {token: value}, seen {token: count}, allowed [tokens]."""
    arrays = {
        name: np.array([row.get(name, default) for row in rows], np.int32 if name in WHOLE else np.float32)
        for name, default in DEFAULTS.items()
    }

    def lists(name: str) -> tuple[np.ndarray, list, list]:
        found = [row.get(name, {}) for row in rows]
        starts = np.cumsum([0, *map(len, found)]).astype(np.int32)
        return starts, [t for each in found for t in each], [v for each in found for v in each.values()]

    bias_starts, bias_tokens, bias_values = lists("bias")
    seen_starts, seen_tokens, seen_counts = lists("seen")
    masks, mask_rows = [], []
    for row in rows:
        mask_rows.append(-1 if row.get("allowed") is None else len(masks))
        if row.get("allowed") is not None:
            bits = np.zeros(-(-vocab // 32) * 32, bool)
            bits[list(row["allowed"])] = True
            masks.append(np.packbits(bits, bitorder="little").view(np.uint32))
    return SamplingPlan(
        **arrays,
        uniform=np.array([[row.get("u", 0.5), row.get("coin", 0.0)] for row in rows]),
        bias_starts=bias_starts,
        bias_tokens=np.array(bias_tokens, np.int32),
        bias_values=np.array(bias_values, np.float32),
        seen_starts=seen_starts,
        seen_tokens=np.array(seen_tokens, np.int32),
        seen_counts=np.array(seen_counts, np.int32),
        masks=np.array(masks, np.uint32).reshape(len(masks), -(-vocab // 32)),
        mask_rows=np.array(mask_rows, np.int32),
        mask_tokens=np.arange(vocab, dtype=np.int32),
        mask_aliases=np.zeros((0, 2), np.int32),
        vocab=vocab,
    )


@pytest.fixture(scope="module")
def sampler(features: str, kernel_folder: Path) -> Sampler:
    return Sampler(CompiledKernels(kernel_folder, features))


def copied(plan: SamplingPlan, **changes: np.ndarray) -> SamplingPlan:
    arrays = {f.name: getattr(plan, f.name) for f in fields(plan)}
    return replace(plan, **({k: v.copy() for k, v in arrays.items() if isinstance(v, np.ndarray)} | changes))


def nearby(plan: SamplingPlan) -> Iterator[SamplingPlan]:
    """Plans whose thresholds differ by what float32 may round away."""
    for du, dp, dt, dm, dx in itertools.product((0, -3e-6, 3e-6), repeat=5):
        yield copied(
            plan,
            uniform=np.clip(plan.uniform + np.array([du, 0.0]), 0, 1 - 2**-53),
            top_p=np.where(plan.top_p < 1, plan.top_p.astype(np.float64) + dp, 1.0),
            typical_p=np.where(plan.typical_p < 1, plan.typical_p.astype(np.float64) + dt, 1.0),
            min_p=plan.min_p.astype(np.float64) * (1 + dm),
            xtc_threshold=plan.xtc_threshold.astype(np.float64) * (1 + dx),
        )


def check(sampler: Sampler, logits: np.ndarray, rows: list[dict], vocab: int) -> np.ndarray:
    """The tokens, which are the reference's."""
    plan = make_plan(rows, vocab)
    wanted_plan, got_plan = copied(plan), copied(plan)
    with np.errstate(all="ignore"):
        want = reference_sample(logits.copy(), wanted_plan)
    got = sampler.sample(logits.copy(), got_plan)
    for r in np.flatnonzero(want.tokens != got.tokens):
        alone = make_plan([rows[r]], vocab)
        with np.errstate(all="ignore"):
            near = {int(reference_sample(logits[r : r + 1].copy(), p).tokens[0]) for p in nearby(alone)}
        assert int(got.tokens[r]) in near, (rows[r], want.tokens[r], got.tokens[r])
    same = want.tokens == got.tokens
    np.testing.assert_allclose(got_plan.mu[same], wanted_plan.mu[same], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.logprobs[same], want.logprobs[same], rtol=1e-6, atol=2e-6)
    assert np.array_equal(got.ranks[same], want.ranks[same])
    assert np.array_equal(got.top_tokens, want.top_tokens)
    np.testing.assert_allclose(got.top_values, want.top_values, rtol=1e-6, atol=2e-6)
    return got.tokens


def some_logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    kind = rng.integers(0, 6)
    x = rng.standard_normal(vocab) * rng.choice([0.01, 1, 3, 10])
    if kind == 1:  # many ties
        x = np.round(x * 2) / 2
    elif kind == 2:
        x[:] = x[0]
    elif kind == 3:  # a peaked head
        x[rng.integers(0, vocab, 5)] += 12
    elif kind == 4:
        x[rng.random(vocab) < 0.7] = -np.inf
        x[rng.integers(vocab)] = 0.5
    elif kind == 5:  # one far above, the rest close together
        x = x * 1e-3
        x[rng.integers(vocab)] = 1000
    return x.astype(np.float32)


def some_row(rng: np.random.Generator, vocab: int) -> dict:
    row: dict = {"u": rng.random(), "coin": rng.random()}

    def perhaps(chance: float, name: str, value: object) -> None:
        if rng.random() < chance:
            row[name] = value

    perhaps(0.8, "temperature", float(rng.choice([0.0, 1e-4, 0.2, 0.7, 1.3, 2.0])))
    perhaps(0.4, "top_k", int(rng.choice([1, 2, 5, 40, vocab // 2, vocab, 10**7])))
    perhaps(0.4, "top_p", float(rng.choice([1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999])))
    perhaps(0.3, "min_p", float(rng.choice([1e-4, 0.02, 0.3, 1.0])))
    perhaps(0.2, "typical_p", float(rng.choice([0.05, 0.3, 0.9])))
    perhaps(0.2, "xtc_probability", 0.5)
    perhaps(0.5, "xtc_threshold", float(rng.choice([0.01, 0.05, 0.3])))
    perhaps(0.2, "mirostat", int(rng.integers(1, 3)))
    perhaps(0.5, "mu", float(rng.choice([0.1, 1.0, 4.0, 9.0])))
    perhaps(0.3, "repetition", float(rng.choice([0.8, 1.2])))
    perhaps(0.3, "frequency", 0.5)
    perhaps(0.3, "presence", -0.7)
    some = rng.choice(vocab, size=min(vocab, 9), replace=False).tolist()
    perhaps(0.3, "seen", {t: int(rng.integers(0, 4)) for t in some})
    perhaps(0.3, "bias", {t: float(rng.choice([-np.inf, -3.0, 2.5])) for t in some[:3]})
    perhaps(0.2, "allowed", np.flatnonzero(rng.random(vocab) < rng.choice([0.0, 0.01, 0.5])).tolist())
    perhaps(0.3, "top_logprobs", int(rng.choice([0, 1, 5, 20, vocab])))
    perhaps(0.1, "targets", int(rng.integers(vocab)))
    return row


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 31, 63, 64, 65, 129, 1000, 5003]), st.integers(0, 70))
def test_random_plans_draw_what_the_reference_draws(sampler: Sampler, seed: int, vocab: int, padding: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.stack([some_logits(rng, vocab + padding) for _ in range(6)])
    logits[:, vocab:] = 99.0  # padding of the head: never drawn
    logits[:, :vocab][~np.isfinite(logits[:, :vocab]).any(axis=1)] = 0.0
    check(sampler, logits, [some_row(rng, vocab) for _ in range(6)], vocab)


def test_draws_follow_the_probabilities(sampler: Sampler) -> None:
    x = np.log(np.array([0.5, 0.2, 0.2, 0.1], np.float32))
    rows = [{"u": (i + 0.5) / 1000} for i in range(1000)]
    tokens = sampler.sample(np.tile(x, (1000, 1)), make_plan(rows, 4)).tokens
    assert np.bincount(tokens).tolist() == [500, 200, 200, 100]


def test_a_large_flat_vocabulary(sampler: Sampler) -> None:
    rng = np.random.default_rng(7)
    vocab = 50_001
    logits = rng.standard_normal((6, vocab)).astype(np.float32) * 2
    logits[5] = 1.25
    rows = [
        {"u": 0.3, "top_p": 0.9},
        {"u": 0.7, "top_k": 9000, "top_p": 0.97},
        {"u": 0.9999, "typical_p": 0.8},
        {"u": 0.2, "top_p": 0.99, "min_p": 0.001, "temperature": 2.0},
        {"u": 0.6, "mirostat": 2, "mu": 14.0},
        {"u": 0.5, "top_p": 0.5, "top_logprobs": 3},
    ]
    check(sampler, logits, rows, vocab)


# G05-01
@pytest.mark.parametrize("neighbours", [1, 7, 31])
def test_a_row_does_not_depend_on_its_neighbours(sampler: Sampler, neighbours: int) -> None:
    rng = np.random.default_rng(11)
    vocab, probe = 3000, {"temperature": 0.8, "u": uniform(42, 0, 5), "top_p": 0.9, "top_logprobs": 4}
    own = some_logits(rng, vocab)
    alone = sampler.sample(own[None].copy(), make_plan([probe], vocab))
    for _ in range(5):
        others = [{**some_row(rng, vocab), "top_logprobs": 4} for _ in range(neighbours)]
        logits = np.stack([some_logits(rng, vocab) for _ in range(neighbours + 1)])
        at = int(rng.integers(neighbours + 1))
        logits[at] = own
        drawn = sampler.sample(logits, make_plan([*others[:at], probe, *others[at:]], vocab))
        for name in ("tokens", "logprobs", "ranks", "top_tokens", "top_values"):
            assert np.array_equal(getattr(drawn, name)[at], getattr(alone, name)[0]), name


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 200, 3001])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.99, 1.0])
def test_masks_in_any_order_of_bits_ban_what_a_bias_of_minus_infinity_bans(
    sampler: Sampler, vocab: int, share: float
) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((8, vocab + 5)).astype(np.float32)
    alike = rng.permutation(vocab)[: vocab // 5]  # these share the bit of another token
    tokens = rng.permutation(np.setdiff1d(np.arange(vocab), alike)).astype(np.int32)
    aliases = np.stack([alike, rng.integers(0, len(tokens), len(alike))], axis=1).astype(np.int32)
    bits = rng.random((8, -(-len(tokens) // 32) * 32)) < share
    bits[:, 0] = True
    rows: list[dict] = [
        {"u": rng.random(), "temperature": t, "top_p": p} for t in (0.0, 1.0) for p in (0.3, 0.8, 0.9, 1)
    ]
    plan = copied(
        make_plan(rows, vocab),
        masks=np.packbits(bits, axis=1, bitorder="little").view(np.uint32),
        mask_rows=np.arange(8, dtype=np.int32),
        mask_tokens=tokens,
        mask_aliases=aliases,
    )
    for r, row in enumerate(rows):
        banned = set(tokens[~bits[r, : len(tokens)]].tolist()) | set(alike[~bits[r, aliases[:, 1]]].tolist())
        row["bias"] = dict.fromkeys(sorted(banned), -np.inf)
    want = reference_sample(logits.copy(), make_plan(rows, vocab)).tokens
    assert sampler.sample(logits.copy(), copied(plan)).tokens.tolist() == want.tolist()
    assert reference_sample(logits.copy(), copied(plan)).tokens.tolist() == want.tolist()


# G05-03
def test_extreme_parameters_beside_a_constrained_greedy_row(sampler: Sampler) -> None:
    rng = np.random.default_rng(3)
    vocab = 1000
    x = (rng.standard_normal(vocab) * 4).astype(np.float32)
    for temperature, top_p, top_k, min_p, u in itertools.product(
        (0.0, 1e-8, 1e-4, 2.0), (1e-9, 1.0), (-1, 0, 1, 9_999_999), (0.0, 1.0), (0.0, 0.4, 1 - 2**-53)
    ):
        row = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "u": u}
        token, forced = check(sampler, np.stack([x, x]), [row, {"temperature": 0.0, "allowed": [17, 900]}], vocab)
        assert forced == (17 if x[17] > x[900] else 900)
        if temperature <= 1e-5 or top_p < 1 or top_k == 1 or min_p == 1:
            assert token == x.argmax()


def test_nothing_allowed_still_gives_a_token(sampler: Sampler) -> None:
    x = np.arange(100, dtype=np.float32)[None]
    assert check(sampler, x, [{"allowed": []}], 100) == [0]


def test_equal_logits_go_to_the_lowest_ids(sampler: Sampler) -> None:
    x = np.zeros((1, 500), np.float32)
    assert check(sampler, x, [{"temperature": 0.0}], 500) == [0]
    assert check(sampler, x, [{"top_k": 100, "u": 0.9999999}], 500) == [99]
    assert check(sampler, x, [{"top_p": 0.25, "u": 0.9999999}], 500) == [124]
    assert check(sampler, x, [{"min_p": 1.0, "u": 0.9999999}], 500) == [499]


def test_not_a_number_does_no_harm(sampler: Sampler) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        logits = np.stack([some_logits(rng, 300) for _ in range(4)])
        logits[rng.random(logits.shape) < rng.choice([0.01, 1.0])] = np.nan
        rows = [{**some_row(rng, 300), "targets": -1} for _ in range(4)]
        tokens = sampler.sample(logits, make_plan(rows, 300)).tokens
        assert ((tokens >= 0) & (tokens < 300)).all()


# G05-08
def test_penalties_act_once_on_the_documented_history(sampler: Sampler) -> None:
    a, b, vocab = 0, 1, 4  # a was generated twice, b is in the prompt

    def chosen(x: list[float], **row: object) -> int:
        return int(check(sampler, np.array([x], np.float32), [{"temperature": 0.0, **row}], vocab)[0])

    seen = {a: 2, b: 0}
    # presence takes 1.0 from a, once, and nothing from b
    assert chosen([2.0, -9, 1.01, -9], seen=seen, presence=1.0) == 2
    assert chosen([2.0, -9, 0.99, -9], seen=seen, presence=1.0) == 0
    assert chosen([-9, 2.0, 1.99, -9], seen=seen, presence=1.0) == 1
    # frequency takes 0.5 for each of the two
    assert chosen([2.0, -9, 1.01, -9], seen=seen, frequency=0.5) == 2
    assert chosen([2.0, -9, 0.99, -9], seen=seen, frequency=0.5) == 0
    assert chosen([-9, 2.0, 1.99, -9], seen=seen, frequency=0.5) == 1
    # repetition halves what is positive and doubles what is negative, of prompt and output alike
    for t in (a, b):
        x = [-9.0] * vocab
        x[t] = 2.0
        assert chosen([*x[:2], 1.01, -9], seen=seen, repetition=2.0) == 2
        assert chosen([*x[:2], 0.99, -9], seen=seen, repetition=2.0) == t
        x[t] = -2.0
        assert chosen([*x[:2], -3.99, -9], seen=seen, repetition=2.0) == 2
        assert chosen([*x[:2], -4.01, -9], seen=seen, repetition=2.0) == t


def test_logprobs_are_those_of_the_raw_logits(sampler: Sampler) -> None:
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((1, 2000)) * 3).astype(np.float32)
    row = {"temperature": 0.0, "bias": {7: 100.0}, "seen": {3: 2}, "presence": 1.0, "top_logprobs": 5}
    drawn = sampler.sample(x.copy(), make_plan([row], 2000))
    want = log_softmax(x[0])
    assert drawn.tokens[0] == 7
    assert drawn.logprobs[0] == pytest.approx(want[7], abs=1e-5)
    assert drawn.ranks[0] == 1 + (x[0] > x[0, 7]).sum()
    assert drawn.top_tokens[0].tolist() == np.argsort(-x[0], kind="stable")[:5].tolist()


def test_a_target_is_reported_not_drawn(sampler: Sampler) -> None:
    x = np.array([[0.0, 3.0, 1.0]], np.float32)
    drawn = sampler.sample(x.copy(), make_plan([{"targets": 2, "top_logprobs": 0}], 3))
    assert drawn.tokens[0] == 2 and drawn.ranks[0] == 2
    assert drawn.logprobs[0] == pytest.approx(1.0 - np.log(np.exp([0.0, 3.0, 1.0]).sum()), abs=1e-6)
