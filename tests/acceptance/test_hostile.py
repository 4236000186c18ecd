"""Ten thousand constraints sent in bad faith: bounded time and memory; and what streams notice of them.

make acceptance-hostile, some quarter of an hour. Streams are judged by the same streams without attackers: stretches
with and without take turns in one run, so that what else the machine does is in both.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from imp import garbage
from tests.constrain.hostile import hostile
from tests.constrain.test_hostile import LIMIT_S, walk
from tests.real.process import ROOT, server
from tests.toylogits import compiler

CASES = 10_000
RSS_BYTES = 2 << 30
STREAMS, TURNS, SECONDS = 4, 6, 12
MOST = 1.3  # p99 between tokens beside attackers, over p99 alone
HEALTH_S, UNSEEN_S = 0.1, 0.1
STORY = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 0}


def test_ten_thousand(request: pytest.FixtureRequest):
    """Each is compiled or refused within LIMIT_S of its thread's time (`walk` asserts it), lets others run all the
    while, and no memory stays."""
    made, draw = compiler(Path(request.config.cache.mkdir("kernels"))), random.Random(99)
    counts, slowest, unseen = Counter[str](), list[tuple[float, str]](), list[tuple[float, str]]()
    garbage.begin()
    for _, spec in zip(range(CASES), hostile(draw), strict=False):
        began, looks, name = time.thread_time(), list[float](), f"{spec.kind.value} {spec.text[:80]!r}"
        counts[walk(made, spec, draw, 4, looks.append)] += 1
        slowest = sorted([*slowest, (time.thread_time() - began, name)])[-10:]
        unseen = sorted([*unseen, (max(looks, default=0.0), name)])[-10:]
        if garbage.is_due(busy=True):
            gc.collect()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\n{dict(counts)}; {rss >> 20} MiB")
    for seconds, text in slowest:
        print(f"  {seconds:.2f} s  {text}")
    print("longest without a look at the clock:")
    for seconds, text in unseen:
        print(f"  {seconds * 1e3:.1f} ms  {text}")
    assert counts.total() == CASES and slowest[-1][0] < 2 * LIMIT_S
    assert rss < RSS_BYTES
    assert unseen[-1][0] < UNSEEN_S


class Gaps:
    """Seconds between the chunks of STREAMS streams that go on all the time."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client, self.found = client, list[float]()

    async def stream(self) -> None:
        while True:
            last = 0.0
            async with self.client.stream("POST", "/v1/completions", json=STORY) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        now = time.monotonic()
                        if last:
                            self.found.append(now - last)
                        last = now

    def taken(self) -> list[float]:
        found, self.found = self.found, []
        return found


async def attack(url: str, seed: int) -> Counter[str]:
    """For SECONDS, by another process."""
    command = [sys.executable, "-m", "tests.real.attack", url, str(seed), str(SECONDS)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    told, _ = await process.communicate()
    assert process.returncode == 0
    return Counter(json.loads(told))


async def health(url: str, times: list[float]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            began = time.monotonic()
            assert (await client.get("/health")).status_code == 200
            times.append(time.monotonic() - began)
            await asyncio.sleep(0.2)


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def test_streams_beside_hostile_constraints(smollm2_path: Path):
    async def test(url: str) -> tuple[list[float], list[float], list[float], Counter[str]]:
        alone, beside, probes, told = list[float](), list[float](), list[float](), Counter[str]()
        async with httpx.AsyncClient(base_url=url, timeout=120) as client, asyncio.TaskGroup() as group:
            gaps = Gaps(client)
            streams = [group.create_task(gaps.stream()) for _ in range(STREAMS)]
            streams.append(group.create_task(health(url, probes)))
            await asyncio.sleep(5)
            for turn in range(TURNS):
                gaps.taken()
                await asyncio.sleep(SECONDS)
                alone += gaps.taken()
                probes.clear() if not turn else None
                told += await attack(url, turn)
                beside += gaps.taken()
                await asyncio.sleep(1)
            for task in streams:
                task.cancel()
        return alone, beside, probes, told

    with server("--model", str(smollm2_path)) as running:
        alone, beside, probes, statuses = asyncio.run(test(running.url))
        rss = running.rss_bytes()
    print(f"\n{dict(statuses)} for hostile constraints beside {STREAMS} streams, {rss >> 20} MiB; ms between tokens:")
    for name, values in (("alone", alone), ("beside them", beside), ("/health", probes)):
        print(f"  {name}: p50 {statistics.median(values) * 1e3:.1f}, p99 {p99(values) * 1e3:.1f}, most {max(values) * 1e3:.1f}, n {len(values)}")
    ratio = p99(beside) / p99(alone)
    print(f"  p99 beside them / alone: {ratio:.2f}")
    assert set(statuses) <= {"200", "400", "left"} and statuses["200"] and statuses["400"]
    assert rss < RSS_BYTES
    assert ratio <= MOST
    assert p99(probes) < HEALTH_S
