"""Vectors of prompts (Request.pool): the hidden states transformers' logits imply, whatever the steps and the company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.runner import ModelRunner
from imp.model.sampling import log_softmax
from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.types import Delta, Event, Finished, Limits, Pool, Reason, Request, Sampling, Started
from tests.model import tiny
from tests.model.test_arch import GOLDEN, checkpoint, run_in_steps
from tests.toys import ToyDecoder

LIMITS = StepLimits(tokens=64, rows=8, logit_rows=64, context=256, blocks=64)
NAMES = ["llama", "llama-biased", "mistral-sliding", "gemma3"]


def head(name: str) -> np.ndarray:
    """float64 [vocab, hidden]: the matrix between hidden states and logits."""
    tensors = tiny.tensors(name)
    return tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)


def implied(name: str, logits: np.ndarray) -> np.ndarray:
    """The hidden states [T, hidden] whose logits these are; there are more logits than columns."""
    return np.linalg.lstsq(head(name), logits.T.astype(np.float64), rcond=None)[0].T


class Host:
    """A tiny model behind the real scheduler and runner."""

    def __init__(self, backend, name: str, limits: StepLimits = LIMITS):
        backend.load(arch.build(checkpoint(name)), limits)
        self.backend, self.limits = backend, limits
        self.runner = ModelRunner(backend, tiny.CONFIGS[name]["vocab_size"], 16)

    def run(self, requests: Sequence[Request], positions: int = 64, blocks: int = 0) -> list[Event]:
        """Every event of these requests; `positions` and `blocks`: of a step, and of the cache."""
        scheduler = Scheduler(
            BlockPool(blocks or self.limits.blocks, 16),
            context=self.limits.context,
            max_rows=min(self.limits.rows, positions),
            max_tokens=positions,
            max_logit_rows=self.limits.logit_rows,
            new_decoder=ToyDecoder,
        )
        for _ in range(50):
            scheduler.places.lengths.add(1)  # it counts on short outputs, so that memory can run short
        events = [event for request in requests for event in scheduler.submit(request, 0.0)]
        while (batch := scheduler.plan(0.0)) is not None:
            events += scheduler.apply(batch, self.runner.step(batch), 0.0)
            scheduler.check()
        self.preemptions = scheduler.snapshot().preemptions
        return events


def vector(events: list[Event], id: str = "v") -> np.ndarray:
    found = [event for event in events if isinstance(event, Finished) and event.request == id]
    assert len(found) == 1 and found[0].reason is Reason.LENGTH and found[0].usage.generated == 0
    assert found[0].vector is not None
    return np.array(found[0].vector, np.float32)


def pooled(name: str, pool: Pool, id: str = "v", length: int = 40) -> Request:
    return Request(id, tuple(tiny.prompt(name, length)), limits=Limits(max_tokens=0), pool=pool)


def generating(id: str, prompt: Sequence[int], tokens: int = 30) -> Request:
    return Request(id, tuple(prompt), Sampling(temperature=0), Limits(max_tokens=tokens))


@pytest.fixture(scope="module")
def folder(kernel_folder: Path) -> Path:
    return kernel_folder


@pytest.mark.parametrize("name", NAMES)
def test_the_last_state_is_the_one_behind_transformers_logits(name):
    """Least squares through the head: 160 logits determine 96 columns. Without a softcap they are linear."""
    expected = implied(name, np.array(GOLDEN[name][-1:]))[0]  # of position 39, the last
    found = vector(Host(ReferenceBackend(np.float64), name).run([pooled(name, Pool.LAST)]))
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", NAMES)
def test_mean_and_first_are_those_of_float64(folder, features, name):
    """The reference's logits, which test_arch.py holds against transformers, taken back through the head."""
    judge = ReferenceBackend(np.float64)
    judge.load(arch.build(checkpoint(name)), LIMITS)
    states = implied(name, run_in_steps(judge, tiny.prompt(name), [40]))
    host = Host(CpuBackend(2, folder, features), name)
    for pool, expected in ((Pool.MEAN, states.mean(0)), (Pool.FIRST, states[0]), (Pool.LAST, states[-1])):
        found = vector(host.run([pooled(name, pool)]))
        assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    host.backend.close()


@pytest.mark.parametrize("pool", Pool)
def test_steps_neighbours_and_preemption_do_not_change_a_bit(folder, pool):
    name = "gemma3"
    host = Host(CpuBackend(2, folder), name)
    alone = vector(host.run([pooled(name, pool)]))
    others = [pooled(name, other, other.value, 60) for other in Pool]
    for positions, blocks in ((7, 0), (16, 0), (64, 0), (64, 8)):
        crowd = [generating("a", [5, 6, 7], 80), generating("b", tiny.prompt(name)[:20], 80)]
        events = host.run([*crowd, pooled(name, pool), *others], positions, blocks)
        np.testing.assert_array_equal(vector(events).view(np.uint32), alone.view(np.uint32))
    host.backend.close()


def test_a_prompt_that_lost_its_memory_midway_is_summed_from_the_start(folder):
    """The pooling prompt, the least urgent, gives its blocks to those that grow while it is computed."""
    name = "llama"
    host = Host(CpuBackend(2, folder), name)
    alone = vector(host.run([pooled(name, Pool.MEAN, length=100)]))
    crowd = [generating(id, (5, 6, 7), 60) for id in "ab"]
    events = host.run([*crowd, pooled(name, Pool.MEAN, length=100)], positions=4, blocks=11)
    assert host.preemptions > 0
    np.testing.assert_array_equal(vector(events).view(np.uint32), alone.view(np.uint32))
    host.backend.close()


@pytest.mark.parametrize("pool, cached", [(Pool.MEAN, 0), (Pool.FIRST, 0), (Pool.LAST, 39)])
def test_only_what_the_last_state_needs_is_taken_from_the_cache(folder, pool, cached):
    name = "llama"
    host = Host(CpuBackend(2, folder), name)
    alone = vector(host.run([pooled(name, pool)]))
    events = host.run([pooled(name, Pool.MEAN, "before"), pooled(name, pool)], positions=8)
    started = [e for e in events if isinstance(e, Started) and e.request == "v"]
    assert started[0].cached == cached
    np.testing.assert_array_equal(vector(events).view(np.uint32), alone.view(np.uint32))
    host.backend.close()


def test_named_tokens_are_reported_however_unlikely(folder):
    """Raw log-probabilities from the same logits, before bias and penalties; a token past the vocabulary has none."""
    name, asked = "llama", (3, 159, 7, 3, 500)
    judge = ReferenceBackend(np.float64)
    judge.load(arch.build(checkpoint(name)), LIMITS)
    prompt = tiny.prompt(name)
    expected = log_softmax(run_in_steps(judge, prompt, [40])[-1])
    sampling = Sampling(temperature=0, logprobs=1, logprob_tokens=asked, bias=((7, 50.0),), repetition_penalty=1.5)
    request = Request("r", tuple(prompt), sampling, Limits(max_tokens=3))
    host = Host(CpuBackend(2, folder), name)
    events = host.run([request, generating("other", prompt[:9])])
    reports = [entry for e in events if isinstance(e, Delta) and e.request == "r" for entry in e.logprobs]
    assert len(reports) == 3 and reports[0].token == 7
    assert [token for token, _ in reports[0].asked] == list(asked)
    values = [value for _, value in reports[0].asked]
    np.testing.assert_allclose(values[:4], expected[list(asked[:4])], atol=2e-4)
    assert values[4] == -np.inf and abs(values[2] - reports[0].logprob) < 1e-4
    assert all(not e.logprobs for e in events if isinstance(e, Delta) and e.request == "other")
    host.backend.close()
