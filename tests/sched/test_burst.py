"""Where nothing decodes, prompts are computed in short steps, and yet end together as in a long one.

The machine is made up, as in test_pace.py: a step takes what its positions cost.
"""

from __future__ import annotations

import math
from itertools import chain

import pytest

from imp.sched.aside import Aside
from imp.sched.burst import OVER
from imp.sched.pace import ALONE_LEAST, ALONE_S, Pace
from imp.types import Batch, Limits, Request, RowResult
from tests.sched.test_scheduler import prompt
from tests.toys import Stage, ToyRunner, reference

STEP_S, ROW_S = 4e-3, 4e-4  # of a step with rows, and of each that decodes
DEAR_S, CHEAP_S = 6e-4, 4e-5  # of a position of a prompt: on two machines
LEAST, TOKENS = ALONE_LEAST, 512
SHORT = LEAST + LEAST // OVER  # positions of the longest step where positions are dear


def machine(position_s: float):
    def takes(batch: Batch) -> float:
        rows = sum(ROW_S if row.count == 1 else position_s * row.count for row in batch.rows)
        batch.aside_took_s = min(batch.aside_s, position_s * sum(row.count for row in batch.aside))
        return STEP_S * bool(batch.rows) + rows + batch.aside_took_s

    return takes


def stage_of(position_s: float = DEAR_S, aside: Aside | None = None, taught: bool = True) -> Stage:
    """taught: it knows what positions take."""
    takes = machine(position_s)
    stage = Stage(4000, 16, max_rows=22, max_tokens=TOKENS, pace=Pace(), aside=aside, takes=takes)
    if taught:
        stage.submit(
            *[Request(f"teacher{i}", prompt(100 * i + 60, i), limits=Limits(8, min_tokens=8)) for i in range(3)]
        )
        stage.run()
        forget(stage)
    return stage


def forget(stage: Stage) -> None:
    stage.batches.clear()
    stage.durations.clear()
    stage.aside.clear()


def request(name: str, tokens: int, seed: int, said: int = 4, priority: int = 0) -> Request:
    return Request(name, prompt(tokens, 100 + seed), limits=Limits(said, min_tokens=said), priority=priority)


def positions(stage: Stage) -> list[int]:
    return [sum(count for _, _, count in rows) for rows in stage.batches]


def test_a_prompt_that_is_alone_is_computed_in_short_steps():
    stage = stage_of()
    stage.submit(request("long", 2000, 1, said=1))
    stage.run()
    assert sum(positions(stage)) == 2000 and max(positions(stage)) <= SHORT
    assert len(stage.batches) == 2000 // LEAST  # the last one took what was left
    assert stage.transcript["long"].tokens == reference(request("long", 2000, 1, said=1)).tokens


def test_where_positions_are_cheap_steps_are_as_long_as_they_may_be():
    stage = stage_of(CHEAP_S)
    stage.submit(request("long", 2000, 1, said=1))
    stage.run()
    assert max(stage.durations) <= 1.4 * ALONE_S and max(positions(stage)) == TOKENS
    assert len(stage.batches) == math.ceil(2000 / TOKENS)


def test_with_nothing_known_of_time_the_whole_budget_is_used():
    stage = stage_of(taught=False)
    stage.submit(request("long", 2000, 1, said=1))
    stage.step()
    assert positions(stage) == [TOKENS]


@pytest.mark.parametrize("aside", [None, Aside(64, 8)], ids=["in rows", "aside"])
def test_prompts_that_end_in_a_burst_end_together_and_decode_together(aside):
    stage = stage_of(aside=aside)
    stage.submit(*[request(f"r{i}", 40, i) for i in range(8)])
    stage.run()
    ends = [at for at, rows in enumerate(stage.batches) for _, start, count in rows if start + count == 40]
    assert len(ends) == 8 and len(set(ends)) == 1
    assert max(positions(stage)) <= SHORT and [len(rows) for rows in stage.batches[ends[0] + 1 :]] == [8] * 3
    for i in range(8):
        assert stage.transcript[f"r{i}"].tokens == reference(request(f"r{i}", 40, i)).tokens


def test_a_burst_is_no_larger_than_the_step_it_stands_for():
    """Half of the budget goes by rank, as ever: the long prompt gets on, and the short ones end without it."""
    stage = stage_of()
    stage.submit(request("long", 4000, 0, said=1), *[request(f"r{i}", 40, i + 1, said=1) for i in range(3)])
    while len(stage.sched.running) != 1 or stage.sched.waiting:
        stage.step()
    assert sum(positions(stage)) == TOKENS
    assert stage.sched.running[0].computed == TOKENS - 3 * 40


@pytest.mark.parametrize("aside", [None, Aside(64, 8)], ids=["in rows", "aside"])
def test_who_is_more_urgent_and_comes_in_a_burst_has_the_next_step(aside):
    stage = stage_of(aside=aside)
    stage.submit(*[request(f"low{i}", 40, i, priority=10) for i in range(8)])
    for _ in range(3):
        stage.step()
    stage.submit(request("urgent", 50, 50))
    stage.step()
    assert stage.batches[-1] == [("urgent", 0, 50)]
    assert max(stage.durations) <= STEP_S + SHORT * DEAR_S
    stage.run()
    assert all(stage.transcript[f"low{i}"].tokens == reference(request(f"low{i}", 40, i)).tokens for i in range(8))


def test_ends_wait_for_a_burst_and_not_for_whatever_else_decodes():
    """An urgent one decodes for long: whose end had been held back decodes beside it at once."""
    stage = stage_of(aside=Aside(64, 8))
    stage.submit(*[request(f"low{i}", 40, i, priority=10) for i in range(8)])
    for _ in range(3):
        stage.step()
    held = [seq.request.id for seq in stage.sched.running if seq.computed == 39]
    assert len(held) >= 2
    stage.submit(request("urgent", 50, 50, said=100))
    stage.step()
    stage.step()
    assert set(held) <= {name for name, _, count in stage.batches[-1] if count == 1}


def test_one_of_a_burst_leaves_and_the_others_go_on():
    stage = stage_of()
    stage.submit(*[request(f"r{i}", 40, i) for i in range(8)])
    stage.step()
    stage.step()
    stage.abort("r5")
    stage.run()
    for i in set(range(8)) - {5}:
        assert stage.transcript[f"r{i}"].tokens == reference(request(f"r{i}", 40, i)).tokens


def test_a_crowd_decodes_in_groups_also_when_some_was_begun_aside():
    """One comes first, and the others while it decodes: its end is no reason to go on one by one."""
    stage = stage_of(aside=Aside(64, 8))
    stage.runner.piece = lambda: 4
    stage.submit(request("first", 40, 99, said=16))
    stage.step()
    before = stage.sched.snapshot()
    stage.submit(*[request(f"r{i}", 40, i, said=16) for i in range(60)])
    stage.run()
    stats = stage.sched.snapshot()
    assert (stats.decode_rows - before.decode_rows) / (stats.decode_steps - before.decode_steps) > 8
    assert max(stage.durations) <= STEP_S + SHORT * DEAR_S


class Withheld(ToyRunner):
    """The first token of `slow` never comes."""

    def step(self, batch: Batch) -> list[RowResult]:
        results = super().step(batch)
        for row, result in zip(batch.rows, results, strict=False):
            if row.seq.request.id == "slow" and row.reaches_end:
                result.tokens, result.late = [], True
        return results


@pytest.mark.parametrize("aside", [None, Aside(64, 8)], ids=["in rows", "aside"])
def test_whose_token_is_late_holds_up_nobody(aside):
    stage = Stage(4000, 16, runner=Withheld(4000, 16), max_rows=22, max_tokens=TOKENS, aside=aside)
    stage.submit(request("slow", 40, 0))
    for _ in range(3):
        stage.step()
    stage.submit(*[request(f"r{i}", 40, i + 1) for i in range(8)])
    for _ in range(60):
        stage.step()
    assert [seq.request.id for seq in stage.sched.running] == ["slow"] and not stage.sched.waiting


@pytest.mark.parametrize("aside", [None, Aside(64, 8)], ids=["in rows", "aside"])
def test_who_comes_in_a_burst_joins_it_and_all_decode_together(aside):
    """As clients do that send at the same moment: the first one's prompt has begun when the others' come."""
    stage = stage_of(aside=aside)
    stage.submit(request("r0", 100, 0, said=16))
    stage.step()
    stage.submit(*[request(f"r{i}", 100, i, said=16) for i in range(1, 4)])
    stage.run()
    ends = [at for at, rows in enumerate(stage.batches) for _, start, count in rows if start + count == 100]
    assert len(ends) == 4 and len(set(ends)) == 1
    assert max(positions(stage)) <= SHORT and [len(rows) for rows in stage.batches[ends[0] + 1 :]] == [4] * 15
    for i in range(4):
        assert stage.transcript[f"r{i}"].tokens == reference(request(f"r{i}", 100, i, said=16)).tokens


def test_a_burst_that_is_joined_is_no_larger_than_the_step_it_stands_for():
    """However many come one after the other, the first one's token comes after that many positions."""
    stage = stage_of(aside=Aside(64, 8))
    stage.submit(request("r0", 100, 0))
    while ("r0", 99, 1) not in chain.from_iterable(stage.batches):
        stage.step()
        stage.submit(request(f"r{len(stage.batches)}", 100, len(stage.batches)))
    assert TOKENS - 100 < sum(positions(stage)) <= TOKENS
    stage.run()
