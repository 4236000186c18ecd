"""Who is urgent is not held up by a crowd that is not. The idle figure is of the same server and minute."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass

from bench.measure import percentile
from tests.acceptance.timed import asked, completion, milliseconds
from tests.real.process import ServerProcess, server

TTFT = 1.5  # of the idle time to the first token, and one step, that the 99th percentile may be
CROWD = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds."""

    idle: list[float]  # to the first token, before and after the crowd
    beside: list[float]  # the same beside the crowd
    gaps: list[float]  # between tokens of the crowd's answers


async def firsts(running: ServerProcess, rng: random.Random, count: int) -> list[float]:
    return [(await asked(running, completion(rng, 100, 4))).ttft_s for _ in range(count)]


async def watched(running: ServerProcess) -> Seen:
    rng = random.Random(2)
    await asked(running, completion(rng, 200, 40))
    idle = await firsts(running, rng, 10)
    crowd = [asyncio.create_task(asked(running, completion(rng, 40, 16, priority=10))) for _ in range(CROWD)]
    while not running.metrics()["imp_decode_batch_last_rows"]:
        await asyncio.sleep(0.1)
    beside: list[float] = []
    while sum(not each.done() for each in crowd) > CROWD // 4:
        beside += await firsts(running, rng, 1)
    answers = await asyncio.gather(*crowd)
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    return Seen(idle + await firsts(running, rng, 10), beside, gaps)


def test_a_crowd_of_low_priority_does_not_hold_up_an_interactive_request(smollm2_path):
    limits = ("--max-concurrent", str(CROWD + 8), "--request-timeout", "0")
    with server("--model", str(smollm2_path), *limits) as running:
        seen = asyncio.run(watched(running))
        preempted = running.metrics()["imp_kv_preemptions_total"]
    idle, step, worst = statistics.median(seen.idle), statistics.median(seen.gaps), percentile(seen.beside, 0.99)
    print(f"\nidle TTFT {milliseconds(idle)}; a step of the crowd, the median, {milliseconds(step)}")
    print(
        f"{len(seen.beside)} interactive: p50 {milliseconds(percentile(seen.beside, 0.5))}, p99 {milliseconds(worst)}"
    )
    print(f"allowed {milliseconds(TTFT * idle + step)}; {preempted:.0f} preemptions; all of the crowd ended")
    assert worst <= TTFT * idle + step
