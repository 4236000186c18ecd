"""64 mixed requests at once, and next turns of some, five times in another order: the same tokens.

With runtime.deterministic=true they have the same log-probabilities too, to the last bit, next turns included, whether or
not the cache still has the answers that these go on with. Without it, next turns may differ (docs/DETERMINISM.md).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx
import pytest

from bench.client import words
from tests.real.process import server

REQUESTS, RUNS = 64, 5
TURN = " And what came of it in the end? I was told that"
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
        prompt = " ".join(
            [*rng.choice(beginnings).split()[: rng.choice([0, 40, 120])], words(rng, rng.randrange(5, 60))]
        )
        body = {"prompt": prompt, "max_tokens": rng.randrange(4, 32), "temperature": rng.choice([0, 0.7, 1.2])}
        body |= {"seed": i, "logprobs": 3, "return_token_ids": True, "n": 1 + (i % 8 == 3)}
        body |= {"priority": -1} if i % 5 == 2 else {}
        body |= [{}, {"top_p": 0.9}, {"repetition_penalty": 1.2}, {"stop": [" the", "e"]}][i % 4]
        if i % 8 == 5:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        found.append(body)
    return found


Told = list[dict[str, Any]]  # the choices of an answer


async def run(url: str, bodies: list[dict[str, Any]], order: random.Random) -> dict[str, Told]:
    """What came of each, and of the next turn of every other."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=REQUESTS)) as client:

        async def ask(body: dict[str, Any]) -> Told:
            await asyncio.sleep(order.random() * 2)
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return [
                {key: choice[key] for key in ("text", "token_ids", "logprobs")} for choice in answer.json()["choices"]
            ]

        async def one(i: int) -> dict[str, Told]:
            found = {f"{i}": await ask(bodies[i])}
            if i % 2:
                said = bodies[i]["prompt"] + found[f"{i}"][0]["text"] + TURN
                found[f"{i}, next turn"] = await ask(
                    {
                        "prompt": said,
                        "max_tokens": 8,
                        "temperature": 1,
                        "seed": i,
                        "logprobs": 3,
                        "return_token_ids": True,
                    }
                )
            return found

        answers = await asyncio.gather(*map(one, order.sample(range(REQUESTS), REQUESTS)))
        return {name: told for found in answers for name, told in found.items()}


def differing(seen: list[dict[str, Told]], keys: tuple[str, ...]) -> list[str]:
    """The requests of which not every run tells the same of these."""
    told = [{name: json.dumps([[c[key] for key in keys] for c in each]) for name, each in run.items()} for run in seen]
    return [name for name in told[0] if any(run[name] != told[0][name] for run in told[1:])]


@pytest.mark.parametrize("deterministic", ["false", "true"])
def test_64_mixed_requests_five_times_in_another_order(smollm2_path, deterministic):
    bodies = requests()
    # memory for a tenth of them: they wait, and take blocks from each other, the urgent ones from those who run
    little = ("--set", "kv_cache.max_blocks=64", "--max-concurrent", "80", "--request-timeout", "0")
    mode = ("--set", f"runtime.deterministic={deterministic}")
    with server("--model", str(smollm2_path), *little, *mode) as running:
        seen: list[dict[str, Told]] = []
        for number in range(RUNS):
            began = time.monotonic()
            seen.append(asyncio.run(run(running.url, bodies, random.Random(number))))
            print(f"run {number}: {time.monotonic() - began:.1f} s")
        metrics = running.metrics()
    for name in ("kv_preemptions", "prefix_cache_hits", "spec_accepted", "mixed_decode_steps"):
        print(f"{name}: {metrics[f'imp_{name}_total']:.0f}")
    tokens = differing(seen, ("text", "token_ids"))
    numbers = differing(seen, ("text", "token_ids", "logprobs"))
    turns = [name for name in numbers if "turn" in name]
    print(f"{len(seen[0])} requests, {RUNS} runs: {len(tokens)} differ in tokens, {len(numbers)} in log-probabilities")
    print(f"{len(turns)} of these are next turns")
    assert metrics["imp_kv_preemptions_total"] > 0
    if deterministic == "true":
        assert not numbers
    assert not [name for name in tokens if "turn" not in name]
