"""Clients that each send a request as soon as their last one has been answered, with guesses that are often right: how
long they wait for the first token, and how long for the next.

The machine is made up, as in test_pace.py: a step takes what its positions cost.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from imp.sched.aside import Aside
from imp.sched.costs import StepCosts
from imp.sched.pace import Pace
from imp.sched.speculation import Speculation
from imp.types import Batch, Delta, Finished, Limits, Request, RowResult
from tests.sched.test_scheduler import prompt
from tests.toys import ScriptedRunner, Stage

STEP_S, ROW_S, PROMPT_S = 3e-3, 4e-4, 3e-4  # of a step with rows, of each position that decodes, of each of a prompt
PROMPT, SAID = 100, 64
SPREAD_S = 2e-3  # clients that are answered together send this much apart


class Writer(ScriptedRunner):
    """Everybody says the same letter; what it proposes is wrong now and then. A chunk aside is done in its time."""

    def __init__(self) -> None:
        super().__init__(defaultdict(lambda: [*b"a" * SAID]), draft=16)
        self.rng = random.Random(1)
        self.done_s = 0.0

    def step(self, batch: Batch) -> list[RowResult]:
        results = super().step(batch)
        for row, result in zip(batch.rows, results, strict=True):
            if result.tokens[:-1] != row.seq.draft:
                del result.tokens[1:]
            if result.draft and self.rng.random() < 0.1:
                result.draft = [ord("b")] * 16
        batch.aside_took_s = 0.0
        if batch.aside:
            left = PROMPT_S * sum(row.count for row in batch.aside) - self.done_s
            batch.aside_took_s = min(batch.aside_s, left)
            pending = left > batch.aside_s
            self.done_s = self.done_s + batch.aside_s if pending else 0.0
            results += [RowResult([], pending=pending) for _ in batch.aside]
        return results


def takes(batch: Batch) -> float:
    decode = [row.count for row in batch.rows if row.start + row.count > PROMPT]
    prompts = sum(row.count for row in batch.rows) - sum(decode)
    return STEP_S * bool(batch.rows) + ROW_S * sum(decode) + PROMPT_S * prompts + batch.aside_took_s


@dataclass
class Seen:
    firsts: list[float] = field(default_factory=list)  # seconds to the first token
    gaps: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # rows and positions that decode, of every step
    positions: list[int] = field(default_factory=list)


def served(clients: int, requests: int) -> Seen:
    """So many requests of so many clients, which begin with the first of them a bit early."""
    speculation = Speculation(costs=StepCosts())
    stage = Stage(
        **{"blocks": 8000, "size": 16, "max_rows": 22, "max_tokens": 534, "max_logit_rows": 300},
        **{"runner": Writer(), "speculation": speculation, "pace": Pace(), "aside": Aside(64, 8), "takes": takes},
    )
    stage.submit(Request("teacher", prompt(PROMPT, 999), limits=Limits(SAID)))
    stage.run()
    seen, sent, last = Seen(), {}, {}
    coming = [stage.now + i * SPREAD_S for i in range(clients)]
    while len(seen.firsts) < requests or stage.sched.running:
        while coming and coming[0] <= stage.now and len(sent) < requests:
            name = f"r{len(sent)}"
            sent[name] = coming.pop(0)
            stage.submit(Request(name, prompt(PROMPT, len(sent)), limits=Limits(SAID)))
        if not stage.sched.running and not stage.sched.waiting:
            stage.now = coming[0]
            continue
        stage.now -= 1.0  # which the stage adds
        events = stage.step() or []
        decode = [count for _, start, count in stage.batches[-1] if start + count > PROMPT]
        seen.rows.append(len(decode))
        seen.positions.append(sum(decode))
        for event in events:
            if isinstance(event, Delta):
                before = last.get(event.request)
                (seen.firsts if before is None else seen.gaps).append(stage.now - (before or sent[event.request]))
                last[event.request] = stage.now
            elif isinstance(event, Finished):
                coming.append(stage.now + SPREAD_S * sum(isinstance(each, Finished) for each in events))
        coming.sort()
    return seen


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


@pytest.mark.parametrize("clients", [2, 4, 8, 16])
def test_gaps_are_no_longer_than_a_few_steps_of_rows_alone(clients):
    seen = served(clients, 6 * clients)
    assert percentile(seen.gaps, 0.99) <= 2.6 * (STEP_S + ROW_S * clients)
    assert clients > 4 or sum(seen.positions) > 1.2 * sum(seen.rows), "there have been guesses"


@pytest.mark.parametrize("clients", [2, 4])
def test_who_sends_with_others_waits_for_their_prompts_and_for_little_else(clients):
    """The first one's prompt is there before the others come, so they are computed beside its answer."""
    seen = served(clients, clients)
    alone = clients * PROMPT * PROMPT_S
    assert max(seen.firsts) <= 1.7 * alone
