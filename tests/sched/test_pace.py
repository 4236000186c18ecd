"""How long steps take is learnt from steps, and prompts beside rows that decode are cut so that none is long.

The machine is made up: its steps take what a formula says, with noise; nothing here looks at a clock.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import chain, combinations

import numpy as np
import pytest

from imp.sched.aside import Aside
from imp.sched.pace import IDLE_STEPS, LEAST, SHORT, STALE, Decode, Fit, Load, Pace
from imp.types import Batch, Limits, Request
from tests.sched.test_scheduler import prompt
from tests.toys import ScriptedRunner, Stage, reference


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, 100 * share, method="higher"))


def machine(seed: int, base: float, row: float, key: float, position: float, noise: float) -> Callable[[Batch], float]:
    """Seconds of a step: weights are read once, each row and prompt position costs, each key that is read does."""
    rng = random.Random(seed)

    def takes(batch: Batch) -> float:
        seconds = base
        for r in batch.rows:
            seconds += (row if r.start + r.count > len(r.seq.request.prompt) else position) * r.count
            seconds += key * r.count * (r.start + r.count / 2)
        return seconds * rng.lognormvariate(0, noise)

    return takes


def stage_of(takes: Callable[[Batch], float], pace: Pace | None = None) -> Stage:
    """Requests named victim say something for ever, all others nothing."""
    runner = ScriptedRunner(defaultdict(list, victim=[*b"a" * 5000]))
    limits = {"max_rows": 4, "max_tokens": 512, "max_logit_rows": 8}
    return Stage(4000, 16, runner=runner, pace=pace, takes=takes, **limits)


CPU = {"base": 8e-3, "row": 3e-4, "key": 3e-7, "position": 6e-4}
GPU = {"base": 6e-3, "row": 2e-5, "key": 2e-9, "position": 4e-6}


def gaps(takes: Callable[[Batch], float], pace: Pace, tokens: int) -> tuple[Stage, list[float], float]:
    """One that decodes beside prompts back to back: seconds of its steps, and of an idle one of them, the median."""
    stage = stage_of(takes, pace)
    stage.submit(Request("victim", prompt(20), limits=Limits(400)))
    for _ in range(40):
        stage.step()
    idle = sorted(stage.durations[10:])[15]
    stage.durations.clear()
    sent = 0
    while not stage.transcript["victim"].finished:
        if len(stage.sched.running) + len(stage.sched.waiting) == 1:
            sent += 1
            stage.submit(Request(f"long{sent}", prompt(tokens, sent), limits=Limits(1)))
        stage.step()
    assert sent > 0 and stage.sched.snapshot().mixed_steps > 100
    return stage, stage.durations, idle


# G07-01
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("costs", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("tokens", [300, 3000])
def test_g07_01_rows_that_decode_never_wait_long(noise, costs, tokens):
    _, seconds, idle = gaps(machine(3, **costs, noise=noise), Pace(), tokens)
    assert percentile(seconds, 0.99) <= 2.5 * idle
    assert max(seconds) <= IDLE_STEPS * idle


def test_what_may_be_used_is_used():
    """Not a token at a time, and on a machine on which prompts are cheap the whole budget."""
    stage, _, _ = gaps(machine(3, **GPU, noise=0.05), Pace(), 3000)
    chunks = [count for rows in stage.batches[60:] for name, _, count in rows if name.startswith("long")]
    assert percentile(chunks, 0.5) == 511
    stage, seconds, idle = gaps(machine(3, **CPU, noise=0.05), Pace(), 3000)
    mixed = [s for s, rows in zip(seconds, stage.batches[40:], strict=True) if len(rows) == 2]
    assert percentile(mixed, 0.5) > 1.5 * idle


@pytest.mark.parametrize(("bound", "most"), [(0.1, 0.1), (0.04, 0.04), (1e-4, 8e-3 + LEAST * 12e-4 + 2e-3)])
def test_the_bound_that_is_set_is_kept_as_far_as_the_machine_can(bound, most):
    """A bound below an idle step is none that can be kept: the least there is of a prompt goes with every step."""
    stage, seconds, _ = gaps(machine(3, **CPU, noise=0.05), Pace(bound), 2000)
    assert percentile(seconds, 0.99) <= most
    ends = (start + count for rows in stage.batches for name, start, count in rows if count < LEAST and name != "victim")
    assert all(end == 2000 for end in ends)


def learnt(max_stall_s: float | None = None) -> Pace:
    """One that knows that a row decodes in 10 ms."""
    pace = Pace(max_stall_s)
    for _ in range(30):
        pace.learn(Load(decode_positions=1), 0.01)
    return pace


def test_what_is_over_soon_gets_longer_pieces_aside_than_what_goes_on_for_long():
    pace = learnt()
    assert pace.piece(Decode(1, 0, 1, 0), SHORT) == pytest.approx(0.6 * 4 * 0.01 - 0.01)
    assert pace.piece(Decode(1, 0, 1, 0), SHORT + 1) == pytest.approx(0.01 * 0.12)
    bounded = learnt(max_stall_s=0.05)
    assert bounded.piece(Decode(1, 0, 1, 0), SHORT) == pytest.approx(0.6 * 0.05 - 0.01)
    assert bounded.piece(Decode(1, 0, 1, 0), 7000) == pytest.approx(0.28 * 0.05 - 0.01)


def test_guesses_have_no_longer_steps_for_it():
    """What they take is taken from what is computed aside, of which there is always some; the bound is that of a step
    without them."""
    pace = learnt()
    for _ in range(30):
        pace.learn(Load(decode_positions=9), 0.02)
    idle, guessed = Decode(1, 0, 1, 0), Decode(9, 0, 1, 0)
    assert pace.piece(idle, SHORT) - pace.piece(guessed, SHORT) == pytest.approx(0.01, rel=2e-2)
    assert pace.piece(guessed, SHORT + 1) == pytest.approx(0.01 * 0.12, rel=2e-2)


def test_how_much_longer_guesses_make_a_step():
    """Half of the bound, and not at all where short prompts wait for that time."""
    assert Pace().stretch(1, 0, left=0) == learnt().stretch(1, 0, left=SHORT + 1) == 0.5 * IDLE_STEPS
    assert learnt().stretch(1, 0, left=SHORT) == 1.0
    assert learnt(max_stall_s=0.05).stretch(1, 0, left=0) == pytest.approx(0.5 * 0.05 / 0.01)
    assert Pace(0.05).stretch(1, 0, left=0) == math.inf


def test_rows_make_no_guesses_as_long_as_a_short_prompt_waits():
    script = [*b"a" * 300]
    runner = ScriptedRunner({"talker": script, "short": [], "long": []}, draft=4)
    limits = {"max_rows": 4, "max_tokens": 512, "max_logit_rows": 64}
    stage = Stage(4000, 16, runner=runner, pace=learnt(), takes=lambda batch: 0.01, **limits)
    stage.submit(Request("talker", prompt(5), limits=Limits(300)))
    for _ in range(3):
        stage.step()
    assert stage.batches[-1][0][2] == 5
    stage.submit(Request("short", prompt(SHORT, 1), limits=Limits(1)))
    stage.step()
    assert next(count for _, _, count in stage.batches[-1]) == 1
    stage.run()


def test_a_prompt_is_as_long_as_what_is_left_of_it():
    """Until that is an eighth of it."""
    seen = set()

    def takes(batch: Batch) -> float:
        if batch.aside:
            seen.add((batch.aside[0].seq.pending <= SHORT, batch.aside_s > 0.01))
        return 0.01

    stage = Stage(4000, 16, pace=learnt(), takes=takes, aside=Aside(64, 2), max_rows=4, max_tokens=512)
    stage.submit(Request("talker", prompt(5), limits=Limits(300, min_tokens=300)))
    stage.step()
    stage.submit(Request("long", prompt(4 * SHORT, 1), limits=Limits(1)))
    stage.run()
    assert seen == {(False, False), (True, True)}
    seen.clear()
    stage.submit(Request("talker2", prompt(6), limits=Limits(600, min_tokens=600)))
    stage.step()
    stage.submit(Request("longer", prompt(9 * SHORT, 2), limits=Limits(1)))
    stage.run()
    assert seen == {(False, False), (True, False)}


def test_a_machine_that_becomes_slower_is_noticed():
    slow = False
    fast_takes, slow_takes = machine(3, **CPU, noise=0.05), machine(3, **CPU | {"position": 1.5e-3}, noise=0.05)
    stage = stage_of(lambda batch: (slow_takes if slow else fast_takes)(batch))
    stage.submit(Request("victim", prompt(20), limits=Limits(700)))
    stage.submit(Request("long", prompt(20_000, 1), limits=Limits(1)))
    for _ in range(200):
        stage.step()
    slow = True
    stage.durations.clear()
    for _ in range(200):
        stage.step()
    assert percentile(stage.durations[40:], 0.99) <= 2.5 * 9e-3


def test_a_step_without_prompts_is_made_now_and_then_to_learn_from():
    stage = stage_of(machine(3, **CPU, noise=0.05))
    stage.submit(Request("victim", prompt(20), limits=Limits(2000)), Request("long", prompt(40_000, 1), limits=Limits(1)))
    for _ in range(3 * STALE):
        stage.step()
    alone = [i for i, rows in enumerate(stage.batches) if [name for name, _, _ in rows] == ["victim"]]
    assert len(alone) in (3, 4) and alone[0] < 3


def test_texts_do_not_depend_on_time():
    for takes in (None, machine(1, **CPU, noise=0.5), machine(2, **GPU, noise=0.5)):
        stage = Stage(blocks=300, size=4, max_rows=6, max_tokens=40, takes=takes)
        requests = [Request(f"r{i}", prompt(7 * i + 3, i), limits=Limits(15)) for i in range(12)]
        stage.submit(*requests)
        stage.run()
        assert all(stage.transcript[r.id].essence == reference(r).essence for r in requests)


def test_without_times_there_are_only_the_limits_in_positions():
    pace = Pace()
    assert pace.chunk(Decode(3, 100, 3, 100), 0) is None and not pace.wants_to_learn
    pace.learn(Load(prompt_positions=100, prompt_keys=5000), 0.1)
    assert pace.wants_to_learn
    pace.learn(Load(3, 300), 0.01)
    assert not pace.wants_to_learn and pace.chunk(Decode(3, 100, 3, 100), 0) is not None
    pace.learn(Load(3, 300), 0.0)  # no time has passed: a clock without ticks


def non_negative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The least squares of a x - b with no x below 0: the best of those with some of them 0."""
    best, least = np.zeros(a.shape[1]), float(b @ b)
    for chosen in map(list, chain.from_iterable(combinations(range(a.shape[1]), n) for n in (1, 2, 3))):
        x = np.zeros(a.shape[1])
        x[chosen] = np.linalg.lstsq(a[:, chosen], b)[0]
        error = float(np.square(a @ x - b).sum())
        if x.min() >= 0 and error < least:
            best, least = x, error
    return best


@pytest.mark.parametrize("seed", range(20))
def test_coefficients_are_those_of_non_negative_least_squares(seed):
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0, 2, 3) * (rng.random(3) < 0.7)
    fit, rows, seconds = Fit(3), [], []
    for _ in range(200):
        x = np.array([1.0, rng.integers(1, 200), rng.uniform(0, 300)])
        y = float(x @ truth + 0.5) * rng.lognormal(0, 0.2)
        fit.add(tuple(x), y)
        rows.append(x / y)
        seconds.append(1.0)
        fit.values  # noqa: B018  # asked in every step, as the scheduler does
    weight = 0.97 ** (np.arange(200)[::-1] / 2)
    expected = non_negative(np.array(rows) * weight[:, None], np.array(seconds) * weight)
    for _ in range(200):
        fit._settled = False
        fit.values  # noqa: B018
    np.testing.assert_allclose(fit.values, expected, rtol=1e-3, atol=1e-3)
