"""Whatever arrives in whatever order, is cut, cached, guessed or preempted: the same tokens and the same bits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import StepLimits
from imp.model.runner import ModelRunner
from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.pace import Pace
from imp.sched.scheduler import Scheduler
from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from imp.types import Delta, Limits, Request, Sampling
from tests.model import tiny
from tests.model.test_arch import checkpoint
from tests.toys import ToyDecoder

LIMITS = StepLimits(tokens=96, rows=16, logit_rows=96, context=256, blocks=400)
BLOCK, VOCAB = 16, tiny.BASE["vocab_size"]
Told = dict[tuple[str, int], list[tuple[int, str, tuple[tuple[int, float], ...]]]]


@pytest.fixture(scope="module", params=[("llama", False), ("gemma3", False), ("llama", True)])
def runner(request: pytest.FixtureRequest, kernel_folder: Path) -> Iterator[ModelRunner]:
    name, deterministic = request.param
    backend = CpuBackend(2, kernel_folder, deterministic=deterministic)
    backend.load(arch.build(checkpoint(name)), LIMITS)
    yield ModelRunner(backend, VOCAB, BLOCK)
    backend.close()


def crowd(count: int) -> list[Request]:
    """Greedy and seeded, long and short, alike and not, of two owners and classes, some several times."""
    rng = random.Random(5)
    beginnings = [tuple(rng.randrange(VOCAB) for _ in range(40)) for _ in range(3)]
    requests = []
    for i in range(count):
        prompt = (*rng.choice(beginnings)[: rng.randrange(41)], *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))))
        sampling = Sampling(rng.choice([0.0, 0.7, 1.3]), top_k=rng.choice([0, 20]), seed=i, logprobs=3)
        sampling = replace(sampling, repetition_penalty=rng.choice([1.0, 1.2]), mirostat=2 if i % 11 == 3 else 0)
        more = {"n": 1 + (i % 9 == 4), "owner": "ab"[i % 2], "priority": i % 3 // 2}
        requests.append(Request(f"r{i}", prompt, sampling, Limits(rng.randrange(3, 40)), **more))
    return requests


def scheduler(rng: random.Random, folder: Path) -> Scheduler:
    """Little memory or much, guesses or none, small steps or large ones."""
    rows = rng.randrange(4, LIMITS.rows + 1)
    return Scheduler(
        BlockPool(rng.choice([30, 60, LIMITS.blocks]), BLOCK, tells_apart=True),
        context=LIMITS.context,
        max_rows=rows,
        max_tokens=rng.randrange(rows + 1, LIMITS.tokens + 1),
        max_logit_rows=LIMITS.logit_rows,
        new_decoder=lambda request: ToyDecoder(replace(request, limits=replace(request.limits, stop_strings=()))),
        speculation=Speculation(SuffixLookup(folder, 2, 4096)) if rng.random() < 0.5 else None,
        pace=Pace(rng.choice([None, 0.001])),
        aside=rng.choice([None, Aside(rng.randrange(4, 65), rng.randrange(1, 9))]),
    )


def told(runner: ModelRunner, requests: list[Request], rng: random.Random, folder: Path) -> Told:
    """Every token of every sequence with its log-probabilities. The requests come in any order, a few at a time."""
    sched, found, now = scheduler(rng, folder), Told(), 0.0
    coming = rng.sample(requests, len(requests))
    while True:
        for _ in range(rng.randrange(5)):
            if coming:
                sched.submit(coming.pop(), now)
        batch = sched.plan(now)
        if batch is None and not coming:
            return found
        if batch is None:
            continue
        now += rng.uniform(0.001, 0.02)
        for event in sched.apply(batch, runner.step(batch), now):
            if isinstance(event, Delta):
                own = found.setdefault((event.request, event.index), [])
                own += [(e.token, e.logprob.hex(), e.top) for e in event.logprobs]


def test_g05_01_arrival_memory_and_guesses_do_not_change_a_bit(runner: ModelRunner, kernel_folder: Path) -> None:
    requests = crowd(28)
    runs = [told(runner, requests, random.Random(seed), kernel_folder) for seed in range(5)]
    assert len(runs[0]) == sum(request.n for request in requests)
    for run in runs[1:]:
        assert run == runs[0]
