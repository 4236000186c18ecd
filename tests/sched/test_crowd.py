"""An urgent request beside hundreds that are not: its prompt is the next step's, and all of the others end.

The machine is made up, as in test_pace.py: a step takes what its positions cost.
"""

from __future__ import annotations

import random

import pytest

from imp.sched.aside import Aside
from imp.sched.burst import OVER
from imp.sched.pace import ALONE_LEAST, Pace
from imp.types import Batch, Limits, Request
from tests.sched.test_scheduler import prompt
from tests.toys import Stage

STEP_S, POSITION_S = 4e-3, 1e-3  # of a step with rows, and of each position
CROWD, PROMPT = 200, 100
IDLE_S = 2 * STEP_S + PROMPT * POSITION_S  # to the first token of an urgent one that is alone
SHORT_S = STEP_S + (ALONE_LEAST + ALONE_LEAST // OVER) * POSITION_S  # of a step where nothing decodes


def takes(batch: Batch) -> float:
    rows = STEP_S * bool(batch.rows) + POSITION_S * sum(row.count for row in batch.rows)
    batch.aside_took_s = min(batch.aside_s, POSITION_S * sum(row.count for row in batch.aside))
    return rows + batch.aside_took_s


def ended(stage: Stage, request_id: str) -> bool:
    out = stage.transcript.outputs.get((request_id, 0))
    return out is not None and out.finished is not None


def step(stage: Stage) -> float:
    """One step, and what it took."""
    stage.now -= 1.0  # which the stage adds
    stage.step()
    return stage.durations[-1]


@pytest.mark.parametrize("aside", [None, Aside(64, 8)], ids=["in rows", "aside"])
def test_an_urgent_request_waits_for_the_step_that_runs_and_for_nothing_else(aside):
    rng = random.Random(1)
    stage = Stage(4000, 16, max_rows=22, max_tokens=534, pace=Pace(), aside=aside, takes=takes)
    stage.submit(Request("teacher", prompt(PROMPT, 999), limits=Limits(4, min_tokens=4)))
    stage.run()
    limits = Limits(16, min_tokens=16)
    stage.submit(*[Request(f"low{i}", prompt(40, i), limits=limits, priority=10) for i in range(CROWD)])
    waited: list[float] = []
    crowd: list[float] = []
    while sum(ended(stage, f"low{i}") for i in range(CROWD)) < CROWD * 3 // 4:
        crowd.append(step(stage))
        came = stage.now - rng.random() * crowd[-1]  # while that step ran
        name = f"urgent{len(waited)}"
        stage.submit(Request(name, prompt(PROMPT, 1000 + len(waited)), limits=Limits(4, min_tokens=4)))
        while not (out := stage.transcript.outputs.get((name, 0))) or not out.tokens:
            step(stage)
        waited.append(stage.now - came)
        while not ended(stage, name):
            step(stage)
    assert len(waited) > 50 and max(waited) <= IDLE_S + max(crowd) + 1e-9
    assert max(crowd) <= SHORT_S + 1e-9
    stage.run()
    assert all(ended(stage, f"low{i}") for i in range(CROWD))
