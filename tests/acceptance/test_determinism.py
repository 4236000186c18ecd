"""64 mixed requests at once, five times in another order: the same tokens and the same log-probabilities."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx

from bench.client import words
from tests.real.process import server

REQUESTS, RUNS = 64, 5
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def requests() -> list[dict[str, Any]]:
    """Greedy and seeded, long and short, that begin alike and not, several choices, forms, penalties, stop strings."""
    rng = random.Random(64)
    beginnings = [words(rng, 120) for _ in range(4)]
    found = []
    for i in range(REQUESTS):
        prompt = " ".join([*rng.choice(beginnings).split()[: rng.choice([0, 40, 120])], words(rng, rng.randrange(5, 60))])
        body = {"prompt": prompt, "max_tokens": rng.randrange(4, 32), "temperature": rng.choice([0, 0.7, 1.2])}
        body |= {"seed": i, "logprobs": 3, "return_token_ids": True, "n": 1 + (i % 8 == 3)}
        body |= [{}, {"top_p": 0.9}, {"repetition_penalty": 1.2}, {"stop": [" the", "e"]}][i % 4]
        if i % 8 == 5:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        found.append(body)
    return found


async def run(url: str, bodies: list[dict[str, Any]], order: random.Random) -> dict[int, str]:
    """What came of each, as text that is equal where every token and number is."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=REQUESTS)) as client:

        async def one(i: int) -> tuple[int, str]:
            await asyncio.sleep(order.random() * 2)
            answer = await client.post("/v1/completions", json=bodies[i])
            assert answer.status_code == 200, answer.text
            told = answer.json()
            choices = [{key: choice[key] for key in ("text", "token_ids", "logprobs")} for choice in told["choices"]]
            return i, json.dumps(choices)

        return dict(await asyncio.gather(*map(one, order.sample(range(REQUESTS), REQUESTS))))


def test_64_mixed_requests_five_times_in_another_order(smollm2_path):
    bodies = requests()
    # memory for a third of them: they wait, and take blocks from each other
    little = ("--set", "kv_cache.max_blocks=200", "--max-concurrent", "80", "--request-timeout", "0")
    with server("--model", str(smollm2_path), *little) as running:
        seen: list[dict[int, str]] = []
        for number in range(RUNS):
            began = time.monotonic()
            seen.append(asyncio.run(run(running.url, bodies, random.Random(number))))
            print(f"run {number}: {time.monotonic() - began:.1f} s")
        metrics = running.metrics()
    for name in ("kv_preemptions", "prefix_cache_hits", "spec_accepted", "mixed_decode_steps"):
        print(f"{name}: {metrics[f'imp_{name}_total']:.0f}")
    different = [i for i in range(REQUESTS) if any(run[i] != seen[0][i] for run in seen[1:])]
    print(f"{REQUESTS} requests, {RUNS} runs: {len(different)} differ")
    assert not different
