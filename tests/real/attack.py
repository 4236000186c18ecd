"""Clients in bad faith, in a process of their own: `python -m tests.real.attack URL SEED SECONDS` prints what they were told.

Constraints of all kinds, one after the other by each of CLIENTS; every fifth leaves before it has its answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator

import httpx

from imp.types import ConstraintSpec
from tests.constrain.hostile import hostile

CLIENTS, TOKENS = 4, 6
PATIENCE_S, SHORT_S = 300.0, 0.3
FIELDS = {"json_schema": "json_schema", "regex": "guided_regex", "grammar": "guided_grammar"}


def body(spec: ConstraintSpec) -> bytes:
    value = json.loads(spec.text) if spec.kind.value == "json_schema" else spec.text
    return json.dumps({"prompt": "x", "max_tokens": TOKENS, FIELDS[spec.kind.value]: value}).encode()


async def client(url: str, specs: Iterator[ConstraintSpec], draw: random.Random, told: Counter[str]) -> None:
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        while True:
            patience = SHORT_S if draw.random() < 0.2 else PATIENCE_S
            try:
                answer = await http.post("/v1/completions", content=body(next(specs)), timeout=patience)
                error = answer.json()["error"]["message"] if answer.status_code >= 500 else ""
                told[f"{answer.status_code} {error}".strip()] += 1
            except httpx.ReadTimeout:
                told["left"] += 1


async def attack(url: str, seed: int, seconds: float) -> Counter[str]:
    draw, told = random.Random(seed), Counter[str]()
    specs = hostile(random.Random(seed))
    clients = [asyncio.create_task(client(url, specs, draw, told)) for _ in range(CLIENTS)]
    await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in clients:
        if task.done():
            task.result()  # what it raised
        task.cancel()
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
