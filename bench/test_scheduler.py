"""What the scheduler costs, in processor time of its thread: per row and step, with all places taken."""

from __future__ import annotations

import random
import time

import pytest

from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.text.decode import TextDecoder
from imp.types import Batch, Limits, Request, RowResult
from tests.http.scripted import PieceTokenizer

ROWS, STEPS = 256, 100
MOST_CALLS = 100  # a row and step may cost as much as so many calls of _turn; 55 and 74 on an AMD EPYC
TOKENIZER = PieceTokenizer([b" word"])
WORD = 257


def scheduler() -> Scheduler:
    return Scheduler(
        BlockPool(ROWS * 40, 16),
        context=4096,
        max_rows=ROWS,
        max_tokens=ROWS + 512,
        max_logit_rows=ROWS,
        new_decoder=lambda request: TextDecoder(TOKENIZER, request.limits.stop_strings),
        eos_ids=TOKENIZER.eos_ids,
    )


def request(rng: random.Random, i: int, said: int) -> Request:
    """Of four owners; one in four has stop strings."""
    prompt = tuple(rng.randrange(256) for _ in range(rng.randrange(1, 128)))
    limits = Limits(said, stop_strings=("stop", "word.") if i % 4 == 0 else ())
    return Request(f"r{i}", prompt, limits=limits, owner="abcd"[i % 4])


def step(sched: Scheduler) -> tuple[int, float]:
    """(rows, seconds of plan, apply and snapshot). No time passes in the steps of a model there is none of."""
    began = time.thread_time()
    batch = sched.plan(0.0)
    seconds = time.thread_time() - began
    assert batch is not None
    results = said(batch)
    began = time.thread_time()
    sched.apply(batch, results, 0.0)
    sched.snapshot()
    return len(batch.rows), seconds + time.thread_time() - began


def said(batch: Batch) -> list[RowResult]:
    return [RowResult([WORD] if row.reaches_end else []) for row in batch.rows]


def cost_us(sched: Scheduler, refill: bool) -> float:
    """Microseconds per row and step. refill: outputs end, and for each that does one comes."""
    rng = random.Random(1)
    sent = 0
    rows = seconds = 0.0
    for i in range(STEPS * 2):
        while sent < 4 * ROWS or (refill and len(sched.waiting) < ROWS):
            sched.submit(request(rng, sent, rng.randrange(1, 200) if refill else 1000), 0.0)
            sent += 1
        count, took = step(sched)
        if i >= STEPS:
            rows, seconds = rows + count, seconds + took
    assert rows > 0.9 * ROWS * STEPS
    return seconds / rows * 1e6


class _Thing:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


def _turn(thing: _Thing, table: dict[int, _Thing]) -> _Thing | None:
    thing.value += 1
    table[thing.value & 7] = thing
    return table.get(thing.value & 3)


def call_us(calls: int = 50_000) -> float:
    """Microseconds of a small function of Python: how fast this machine's interpreter is."""
    thing, table = _Thing(), dict[int, _Thing]()
    began = time.thread_time()
    for _ in range(calls):
        _turn(thing, table)
    return (time.thread_time() - began) / calls * 1e6


@pytest.mark.parametrize("refill", [False, True], ids=["decoding", "coming and going"])
def test_the_scheduler_costs_little(benchmark, figures, refill):
    found: list[float] = []
    benchmark.pedantic(lambda: found.append(cost_us(scheduler(), refill)), rounds=3, warmup_rounds=1)
    name = "rows that come and go" if refill else "rows that decode"
    figures.note(benchmark, f"scheduling {ROWS} {name}", min(found), "us/row/step")
    call = min(call_us() for _ in range(5))
    assert min(found) <= MOST_CALLS * call
