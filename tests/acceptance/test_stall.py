"""Who is being answered is not held up by others' long prompts. The idle figure is of the same server and minute."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass

from bench.measure import percentile
from tests.acceptance.timed import asked, completion, milliseconds
from tests.real.process import ServerProcess, server

GAP = 2.5  # of the idle step, that the 99th percentile of gaps may be
LEAST_PACE = 0.3  # of a long prompt beside the answer, by its pace alone
LONG, SENT = 7000, 2  # tokens, and how many of them back to back
SAID = 200  # tokens of an answer


@dataclass(frozen=True, slots=True)
class Seen:
    idle: list[float]  # gaps of an answer that is alone, in seconds
    gaps: list[float]  # gaps of those beside long prompts
    alone_s: float  # a long prompt's time to the first token, alone
    beside_s: float  # the same beside an answer, the mean


async def watched(running: ServerProcess) -> Seen:
    rng = random.Random(1)
    await asked(running, completion(rng, 200, 40))
    idle = (await asked(running, completion(rng, 40, SAID))).gaps_s
    alone = await asked(running, completion(rng, LONG, 1))
    took: list[float] = []

    async def prompts() -> None:
        for _ in range(SENT):
            took.append((await asked(running, completion(rng, LONG, 1))).ttft_s)

    others = asyncio.create_task(prompts())
    gaps: list[float] = []
    while not others.done():  # one after the other, so that their own depth makes no step long
        gaps += (await asked(running, completion(rng, 40, SAID))).gaps_s
    await others
    return Seen(idle, gaps, alone.ttft_s, statistics.mean(took))


def test_long_prompts_back_to_back_do_not_hold_up_a_neighbour(smollm2_path):
    with server("--model", str(smollm2_path), "--request-timeout", "0") as running:
        seen = asyncio.run(watched(running))
        mixed = running.metrics()["imp_mixed_decode_steps_total"]
    step = statistics.median(seen.idle)
    beside = percentile(seen.gaps, 0.99)
    print(f"\nidle step {milliseconds(step)}, p99 {milliseconds(percentile(seen.idle, 0.99))}")
    print(f"beside {SENT} long prompts: p50 {milliseconds(percentile(seen.gaps, 0.5))}, p99 {milliseconds(beside)}")
    print(f"p99 by the idle step: {beside / step:.2f}; {mixed:.0f} mixed steps of {len(seen.gaps)}")
    print(
        f"a long prompt: alone {seen.alone_s:.2f} s, beside {seen.beside_s:.2f} s: {seen.alone_s / seen.beside_s:.2f} of it"
    )
    assert mixed > len(seen.gaps) / 2
    assert beside <= GAP * step
    assert seen.alone_s >= LEAST_PACE * seen.beside_s
