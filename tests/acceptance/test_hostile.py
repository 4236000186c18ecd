"""Ten thousand constraints sent in bad faith: bounded time and memory; and what streams notice of them."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import statistics
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.constrain.hostile import hostile
from tests.constrain.test_hostile import walk
from tests.real.process import server
from tests.toylogits import compiler

CASES = 10_000
RSS_BYTES = 2 << 30
STREAMS, SECONDS = 4, 30
FIELDS = {"json_schema": "json_schema", "regex": "guided_regex", "grammar": "guided_grammar"}


def test_ten_thousand(request: pytest.FixtureRequest):
    made, draw = compiler(Path(request.config.cache.mkdir("kernels"))), random.Random(99)
    counts, slowest = Counter[str](), list[tuple[float, str]]()
    for _, spec in zip(range(CASES), hostile(draw), strict=False):
        began = time.thread_time()
        counts[walk(made, spec, draw, 4)] += 1
        slowest = sorted([*slowest, (time.thread_time() - began, f"{spec.kind.value} {spec.text[:80]!r}")])[-10:]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\n{dict(counts)}; {rss >> 20} MiB")
    for seconds, text in slowest:
        print(f"  {seconds:.2f} s  {text}")
    assert rss < RSS_BYTES


async def gaps(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Seconds between the chunks of STREAMS streams that go on for so long."""
    found: list[float] = []
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 0}

    async def one() -> None:
        last, end = 0.0, time.monotonic() + seconds
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                now = time.monotonic()
                if line.startswith("data: "):
                    if last:
                        found.append(now - last)
                    last = now
                if now > end:
                    return

    await asyncio.gather(*(one() for _ in range(STREAMS)))
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def test_streams_beside_hostile_constraints(smollm2_path: Path):
    async def test(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            await gaps(client, 3)
            quiet = await gaps(client, SECONDS)
            statuses, stop = Counter[int](), asyncio.Event()

            async def attack() -> None:
                for spec in hostile(random.Random(5)):
                    if stop.is_set():
                        return
                    if len(spec.text) < 200_000:
                        value = json.loads(spec.text) if spec.kind.value == "json_schema" else spec.text
                        field = FIELDS[spec.kind.value]
                        answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, field: value})
                        statuses[answer.status_code] += 1

            attacker = asyncio.create_task(attack())
            loaded = await gaps(client, SECONDS)
            stop.set()
            await attacker
        print(f"\n{dict(statuses)} answers to hostile constraints beside {STREAMS} streams; ms between tokens:")
        for name, values in (("alone", quiet), ("beside them", loaded)):
            print(f"  {name}: p50 {statistics.median(values) * 1e3:.1f}, p99 {p99(values) * 1e3:.1f}, n {len(values)}")
        assert set(statuses) <= {200, 400}

    with server("--model", str(smollm2_path)) as running:
        asyncio.run(test(running.url))
