"""What HTTP, dialects, engine and scheduler cost: a server whose model says a word in no time, and clients beside it in
a process of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from bench.peer import ROOT
from tests.http.scripted import serving

TOKENS = 32


async def clients(url: str, concurrency: int, requests: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.client", url, str(concurrency), str(requests), "10", str(TOKENS)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_streams_of_a_model_that_costs_nothing(benchmark, figures, concurrency):
    async def once() -> dict[str, float]:
        async with serving(["word "] * TOKENS, rows=concurrency, blocks=1024) as harness:
            return await clients(harness.url, concurrency, 10 * concurrency)

    results = []
    benchmark.pedantic(lambda: results.append(asyncio.run(once())), rounds=3, warmup_rounds=0)
    best = max(results, key=lambda result: result["tokens_per_s"])
    name = f"stream of {TOKENS} tokens, {concurrency} at once"
    figures.note(benchmark, name, best["tokens_per_s"] / TOKENS, "requests/s")
    figures.note(benchmark, f"{name}: TTFT p50", best["ttft_p50_s"] * 1e3, "ms")
