"""diagnostics.step_timing: the parts of a step are told apart, and nothing outside of steps is counted."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from imp.engine import Engine
from imp.model.runner import ModelRunner
from imp.obs.metrics import Metrics
from imp.obs.stopwatch import PHASES, Stopwatch
from imp.types import Batch, Limits, Request, Row, Sequence
from tests.test_engine import make, read
from tests.toys import ToyRunner


def test_time_goes_to_the_part_that_was_entered_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("imp.obs.stopwatch.time.perf_counter", lambda: now)
    watch, metrics = Stopwatch(), Metrics()
    watch.connect(metrics)
    for i, part in enumerate(PHASES):
        watch.enter(part)
        now += 0.25 * (i + 1)
    watch.enter("")
    now += 50  # idle
    watch.enter("plan")
    watch.enter("")
    assert list(watch.seconds.values()) == [0.25 * (i + 1) for i in range(len(PHASES))] and watch.steps == 1
    text = metrics.expose().decode()
    assert "imp_steps_timed_total 1\n" in text and 'imp_step_phase_seconds_total{phase="forward"} 0.75' in text


def test_the_engine_tells_each_part_of_each_step() -> None:
    async def main() -> None:
        told: list[str] = []
        unwatched, scheduler, runner = make(ToyRunner(1000, 4))
        await unwatched.stop()
        engine = Engine(scheduler, runner, asyncio.get_running_loop(), watch=told.append)
        await read(engine.open([Request("a", (1, 2, 3), limits=Limits(3))]))
        await engine.stop()
        assert told[:5] == ["plan", "forward", "apply", "deliver", ""]
        assert told.count("forward") == told.count("apply") == engine.stats.steps

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_runner_tells_packing_running_and_drawing_apart() -> None:
    class Backend:
        def run(self, inputs: object) -> np.ndarray:
            told.append("running")
            return np.zeros((0, 8), np.float32)

        def hidden(self) -> np.ndarray:
            return np.zeros((0, 4), np.float32)

    told: list[str] = []
    runner = ModelRunner(Backend(), 8, 16)  # type: ignore[arg-type]
    runner.watch = told.append
    part = Row(Sequence(Request("a", (1, 2, 3)), 0, 0, [1, 2, 3], blocks=[0]), 0, 2)
    assert [result.tokens for result in runner.step(Batch([part]))] == [[]]
    assert told == ["pack", "forward", "running", "sample"]
