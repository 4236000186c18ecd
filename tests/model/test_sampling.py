"""The order of operations, the filters against transformers' (golden_sampling.json), the counter RNG. Ids are scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imp.model.plan import MaskBits, dry_penalties, plan_step
from imp.model.sampling import SamplingPlan, _kept, _penalised, log_softmax, reference_sample, uniform
from imp.types import Batch, Limits, Request, Row, Sampling, Sequence

GOLDEN = json.loads(Path(__file__).with_name("golden_sampling.json").read_text())


def plan(
    sampling: Sampling | None = None,
    *,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    limits: Limits | None = None,
    width: int = 60,
    vocab: int = 60,
    index: int = 0,
    **changes: Any,
) -> SamplingPlan:
    """The plan of one decoding row."""
    request = Request("r", prompt, sampling or Sampling(**changes), limits or Limits())
    seq = Sequence(request, index, 0, [*prompt, *output], computed=len(prompt) + len(output) - 1)
    return plan_step(Batch([Row(seq, seq.computed, 1)]), vocab, width, MaskBits.in_order(vocab))[0]


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(60) * 3


def draw(values: Any, **changes: Any) -> int:
    row = np.asarray(values, np.float32)[None]
    return int(reference_sample(row, plan(width=row.shape[1], vocab=row.shape[1], **changes)).tokens[0])


@pytest.mark.parametrize("golden", GOLDEN["kept"], ids=lambda g: f"{g['case']}-{g['seed']}")
def test_filters_keep_what_transformers_keeps(golden):
    x = logits(golden["seed"])
    keep = _kept(x, np.exp(log_softmax(x)), plan(temperature=1.0, **golden["case"]), 0)
    assert np.flatnonzero(keep).tolist() == golden["kept"]


@pytest.mark.parametrize("golden", GOLDEN["penalised"], ids=lambda g: f"{g['penalty']}-{g['seed']}")
def test_the_repetition_penalty_is_that_of_transformers(golden):
    made = plan(repetition_penalty=golden["penalty"], prompt=(3, 7, 7), output=(11, 59))
    ours = _penalised(logits(golden["seed"]), made, 0)
    assert np.abs(ours - np.array(golden["logits"])).max() < 1e-6  # penalties are float32 in the plan


def test_penalties_count_the_output_once_each():  # G05-08
    x = np.array([2.0, -2.0, 1.0, 0.5])
    made = plan(
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=2.0,
        prompt=(1,),
        output=(0, 0),
        width=4,
        vocab=4,
    )
    assert _penalised(x.copy(), made, 0).tolist() == [2.0 / 2 - 1.0 - 0.5 * 2, -2.0 * 2, 1.0, 0.5]
    made = plan(presence_penalty=1.0, frequency_penalty=0.5, prompt=(1, 1), output=(0,), width=4, vocab=4)
    assert _penalised(x.copy(), made, 0).tolist() == [2.0 - 1.5, -2.0, 1.0, 0.5]


def test_penalties_look_back_as_far_as_asked():
    made = plan(repetition_penalty=2.0, repeat_last_n=2, prompt=(5, 6), output=(7,))
    assert sorted(made.seen_tokens.tolist()) == [6, 7]
    assert not len(plan(repetition_penalty=2.0, repeat_last_n=0, prompt=(5, 6)).seen_tokens)


def test_bias_and_bans_come_before_everything():
    assert draw([0.0, 1.0, 2.0], temperature=0.0, bias=((0, 5.0),)) == 0
    banned = Limits(min_tokens=1, stop_ids=frozenset({2}))
    assert draw([0.0, 1.0, 2.0], temperature=0.0, limits=banned) == 1
    assert draw([0.0, 1.0, 2.0], temperature=0.0, limits=banned, output=(0,)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 1e-8},
        {"temperature": 1e-4},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 1.0},
    ],
)
def test_narrow_settings_are_greedy(changes):  # G05-03
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(50)
        assert draw(values, seed=seed, **changes) == int(np.argmax(values))


def test_wide_settings_limit_nothing_and_one_token_always_survives():  # G05-03
    x = logits(0)
    keep = _kept(x, np.exp(log_softmax(x)), plan(top_k=9_999_999, temperature=2.0), 0)
    assert keep.all()
    x[:] = -np.inf
    x[7] = -50.0
    assert draw(x, temperature=1.0, top_p=0.5, top_k=3, min_p=0.5) == 7


def test_draws_follow_the_distribution():
    values = np.log([0.5, 0.3, 0.15, 0.05])
    counts = np.bincount([draw(values, temperature=1.0, seed=seed) for seed in range(4000)], minlength=4)
    assert np.abs(counts / 4000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.025  # 3 sigma is 0.024
    hot = np.bincount([draw(values, temperature=2.0, seed=seed) for seed in range(4000)], minlength=4) / 4000
    wanted = np.exp(values / 2) / np.exp(values / 2).sum()
    assert np.abs(hot - wanted).max() < 0.025


def test_the_random_numbers_are_uniform_and_depend_on_everything():  # G05-01, G05-02
    many = np.array([uniform(s, i, p) for s in range(10) for i in range(10) for p in range(100)])
    assert len(set(many)) == len(many) and many.min() >= 0 and many.max() < 1
    counts = np.histogram(many, 20, (0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert uniform(0, 0, 0) == uniform(0, 0, 0) and uniform(7, 1, 3, 0) != uniform(7, 1, 3, 1)


def test_padding_rows_of_the_head_are_never_drawn():
    values = np.zeros(64)
    values[60:] = 100.0
    row = values.astype(np.float32)[None]
    for temperature in (0.0, 1.0):
        assert reference_sample(row, plan(temperature=temperature, width=64, vocab=60)).tokens[0] < 60


def test_xtc_drops_all_but_the_least_likely_of_the_likely():
    values = np.log([0.4, 0.3, 0.2, 0.1])
    drawn = {draw(values, temperature=1.0, seed=s, xtc_probability=1.0, xtc_threshold=0.15) for s in range(200)}
    assert drawn == {2, 3}
    only = {draw(values, temperature=1.0, seed=s, xtc_probability=1.0, xtc_threshold=0.35) for s in range(200)}
    assert only == {0, 1, 2, 3}  # one likely token alone is kept


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_the_surprise_to_its_target(version):
    values = -1.1 * np.log(np.arange(1, 2001))  # a Zipf distribution, as the paper assumes
    p = np.exp(log_softmax(values))
    mu, surprises = 0.0, []
    for position in range(600):
        made = plan(
            mirostat=version, mirostat_tau=3.0, temperature=1.0, prompt=(1,) * (1 + position), width=2000, vocab=2000
        )
        made.mu[0] = mu or 6.0
        token = int(reference_sample(values.astype(np.float32)[None], made).tokens[0])
        mu = float(made.mu[0])
        surprises.append(-np.log2(p[token]))
    assert abs(np.mean(surprises[100:]) - 3.0) < 0.5


def brute_dry(tokens: list[int], allowed: int, breakers: frozenset[int] = frozenset()) -> dict[int, int]:
    """Token -> length of the longest repetition it would extend, by comparing every pair of suffixes."""
    out: dict[int, int] = {}
    for end in range(len(tokens) - 1):
        length = 0
        while (
            length <= end
            and tokens[end - length] == tokens[len(tokens) - 1 - length]
            and tokens[end - length] not in breakers
        ):
            length += 1
        if length >= allowed and tokens[end + 1] not in breakers:
            out[tokens[end + 1]] = max(out.get(tokens[end + 1], 0), length)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_dry_penalises_what_would_extend_a_repetition(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 4, 60).tolist()
    sampling = Sampling(dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2, dry_breakers=frozenset({3}))
    expected = {t: 0.8 * 1.75 ** (n - 2) for t, n in brute_dry(tokens, 2, frozenset({3})).items()}
    assert dry_penalties(tokens, sampling) == pytest.approx(expected)


def test_logprobs_are_raw_whatever_is_drawn():
    row = logits(1).astype(np.float32)[None]
    made = plan(temperature=0.7, top_k=1, logprobs=4, repetition_penalty=5.0, prompt=(3, 7), bias=((9, 50.0),))
    drawn = reference_sample(row, made)
    raw = log_softmax(row[0])
    assert drawn.tokens[0] == 9 and drawn.logprobs[0] == pytest.approx(raw[9], abs=1e-6)
    assert drawn.top_tokens[0].tolist() == np.argsort(-row[0], kind="stable")[:4].tolist()
    assert drawn.ranks[0] == 1 + int((row[0] > row[0, 9]).sum())


class AllowList:
    """A constraint over a set of tokens, one set per position."""

    def __init__(self, sets: list[set[int]]):
        self.sets, self.at, self.done = sets, 0, False

    def ready(self) -> bool:
        return True

    def fill_mask(self, out: np.ndarray) -> None:
        out[:] = 0
        for token in self.sets[self.at]:
            out[token // 32] |= np.uint32(1 << (token % 32))

    def accept(self, token: int) -> bool:
        self.at += token in self.sets[self.at]
        return True

    def rollback(self, count: int) -> None:
        self.at -= count

    def forced(self) -> list[int]:
        return []


def test_a_constraint_masks_every_position_of_a_draft():
    seq = Sequence(Request("r", (1,), Sampling(temperature=0.0)), 0, 0, [1], draft=[40, 50])
    seq.constraint = AllowList([{40, 41}, {50}, {33}])
    made, _ = plan_step(Batch([Row(seq, 0, 3)]), 60, 60, MaskBits.in_order(60))
    drawn = reference_sample(np.tile(logits(2), (3, 1)).astype(np.float32), made)
    assert drawn.tokens[0] in (40, 41) and drawn.tokens[1:].tolist() == [50, 33]
    assert seq.constraint.at == 0  # rolled back
