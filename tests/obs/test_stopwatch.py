"""diagnostics.step_timing: the parts of a step are told apart, and nothing outside of steps is counted."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from imp.engine import Engine
from imp.model.runner import ModelRunner
from imp.obs.metrics import Metrics
from imp.obs.stopwatch import PHASES, Stopwatch
from imp.types import Batch, Limits, Request
from tests.test_engine import make, read
from tests.toys import ToyRunner


def test_time_goes_to_the_part_that_was_entered_last() -> None:
    watch, metrics = Stopwatch(), Metrics()
    watch.connect(metrics)
    began = time.perf_counter()
    for part in PHASES:
        watch.enter(part)
        time.sleep(0.002)
    watch.enter("")
    wall = time.perf_counter() - began
    time.sleep(0.05)  # idle
    watch.enter("plan")
    watch.enter("")
    assert all(seconds >= 0.002 for seconds in watch.seconds.values())
    assert sum(watch.seconds.values()) == pytest.approx(wall, abs=0.01) and watch.steps == 1
    text = metrics.expose().decode()
    assert "imp_steps_timed_total 1\n" in text and 'imp_step_phase_seconds_total{phase="forward"} 0.00' in text


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

    told: list[str] = []
    runner = ModelRunner(Backend(), 8, 16)  # type: ignore[arg-type]
    runner.watch = told.append
    assert runner.step(Batch([])) == []
    assert told == ["pack", "forward", "running", "sample"]
