"""A thousand constrained requests to a real server, judged by jsonschema; and what constraints cost in throughput."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx

from tests.real.constrained import tasks, verdicts
from tests.real.process import server

SCHEMAS, ROUNDS, CONCURRENCY, TOKENS = 100, 10, 8, 120
BATCH, LENGTH, TURNS = 8, 200, 5
LEAST = 0.93  # of the throughput of free text
WORDS = r"(?:[a-z]{1,12} ){400}"  # never complete within LENGTH tokens, so that both sides write as many


def test_a_thousand_requests_are_valid(smollm2_path: Path):
    with server("--model", str(smollm2_path)) as running:
        began = time.monotonic()
        counts, wrong = asyncio.run(verdicts(running.url, tasks(SCHEMAS), ROUNDS, CONCURRENCY, max_tokens=TOKENS))
        print(f"\n{counts.total()} requests in {time.monotonic() - began:.0f} s: {dict(counts)}")
        for line in wrong:
            print("  " + line)
        assert counts.total() == SCHEMAS * ROUNDS and not wrong
        print({name: value for name, value in running.metrics().items() if name.startswith("imp_constraint")})


async def rate(client: httpx.AsyncClient, **fields: object) -> float:
    """Tokens a second of BATCH requests at once."""
    body = {"prompt": "Once upon a time", "max_tokens": LENGTH, "ignore_eos": True, "temperature": 1, **fields}
    began = time.monotonic()
    answers = await asyncio.gather(*(client.post("/v1/completions", json=body | {"seed": i}) for i in range(BATCH)))
    tokens = sum(answer.json()["usage"]["completion_tokens"] for answer in answers)
    assert tokens == BATCH * LENGTH
    return tokens / (time.monotonic() - began)


def test_throughput_beside_free_text(smollm2_path: Path):
    async def test(url: str) -> list[tuple[float, float]]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            await rate(client, guided_regex=WORDS)
            return [(await rate(client), await rate(client, guided_regex=WORDS)) for _ in range(TURNS)]

    with server("--model", str(smollm2_path)) as running:
        pairs = asyncio.run(test(running.url))
    ratios = sorted(constrained / free for free, constrained in pairs)
    print(f"\nbatch {BATCH}: " + ", ".join(f"{free:.0f} free, {held:.0f} constrained tokens/s" for free, held in pairs))
    print(f"constrained / free: median {ratios[len(ratios) // 2]:.3f}")
    assert ratios[len(ratios) // 2] >= LEAST
