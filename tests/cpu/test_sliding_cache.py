"""A conversation with a model whose layers attend to a window: every turn finds the one before in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import StepLimits
from imp.model.runner import ModelRunner
from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.types import Delta, Limits, Request, Sampling, Started
from tests.model import tiny
from tests.model.test_arch import checkpoint
from tests.toys import ToyDecoder

LIMITS = StepLimits(tokens=64, rows=8, logit_rows=64, context=256, blocks=64)
BLOCK = 16
TURNS, APPENDED, ANSWER = 6, 12, 8
Told = list[tuple[int, float]]  # tokens and their log-probabilities


@pytest.fixture(scope="module", params=["gemma3", "mistral-sliding"])
def sliding(request: pytest.FixtureRequest, kernel_folder: Path) -> Iterator[tuple[str, ModelRunner]]:
    """Windows of 10 and 12 tokens; in gemma3 every sixth layer sees everything."""
    name = request.param
    backend = CpuBackend(2, kernel_folder)
    backend.load(arch.build(checkpoint(name)), LIMITS)
    yield name, ModelRunner(backend, tiny.CONFIGS[name]["vocab_size"], BLOCK)
    backend.close()


def scheduler() -> Scheduler:
    return Scheduler(
        BlockPool(LIMITS.blocks, BLOCK),
        context=LIMITS.context,
        max_rows=LIMITS.rows,
        max_tokens=LIMITS.tokens,
        max_logit_rows=LIMITS.logit_rows,
        new_decoder=ToyDecoder,
    )


def ask(sched: Scheduler, runner: ModelRunner, id: str, prompt: Sequence[int]) -> tuple[int, Told]:
    """Prompt tokens that were found in the cache, and the answer."""
    sampling = Sampling(temperature=0, logprobs=0)
    events = list(sched.submit(Request(id, tuple(prompt), sampling, Limits(max_tokens=ANSWER)), 0.0))
    while (batch := sched.plan(0.0)) is not None:
        events += sched.apply(batch, runner.step(batch), 0.0)
        sched.check()
    [cached] = [event.cached for event in events if isinstance(event, Started)]
    reports = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
    return cached, [(entry.token, entry.logprob) for entry in reports]


def test_g07_10_every_turn_of_a_conversation_reuses_the_ones_before(sliding: tuple[str, ModelRunner]) -> None:
    name, runner = sliding
    warm = scheduler()
    draw = np.random.default_rng(710)
    user = [draw.integers(0, tiny.BASE["vocab_size"], APPENDED).tolist() for _ in range(TURNS + 1)]
    history: list[int] = tiny.prompt(name, 90)
    before: list[list[int]] = []  # the conversation when each turn began
    known = 0  # of it, tokens the cache may know
    answers: list[tuple[list[int], Told]] = []
    for turn in range(TURNS):
        before.append(history)
        prompt = history + user[turn]
        cached, told = ask(warm, runner, f"turn {turn}", prompt)
        assert len(prompt) - cached <= (len(prompt) - known) + BLOCK, turn
        assert (cached > len(history) - ANSWER - BLOCK) == (turn > 0)
        answers.append((prompt, told))
        known = len(prompt) + ANSWER
        history = prompt + [token for token, _ in told]
    assert len(history) > 200 and len(told) == ANSWER

    edited = before[3] + user[TURNS]  # the fourth turn says something else
    cached, told = ask(warm, runner, "edited", edited)
    assert len(before[3]) - BLOCK < cached <= len(before[3])
    answers.append((edited, told))

    for prompt, told in answers:  # afterwards, because both caches are the same memory
        assert (0, told) == ask(scheduler(), runner, "cold", prompt)
