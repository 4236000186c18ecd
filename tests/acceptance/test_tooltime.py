"""G02-13: what enforcing a known set of strict tools adds to the time until the first token."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import httpx

from tests.real.process import server
from tests.real.tool_calls import TOOLS

PAIRS = 60
TOOLS_AT_ONCE = 6
LIMIT = 1.10


def test_g02_13_strict_tools_cost_less_than_a_tenth_of_the_time_to_the_first_token(smollm2_path: Path):
    """Pairs of requests that differ in `strict` alone, each with a question that no cache knows, in turns."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with server("--model", str(smollm2_path)) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        for pair in range(-2, PAIRS):  # the first two compile the tools, and fill the cache with what they say
            for strict in (False, True) if pair % 2 else (True, False):
                took = first_token(client, strict, f"Question {pair + 100}{'ab'[strict]}: what is in the third box?")
                if pair >= 0:
                    seconds[strict].append(took)
    plain, enforced = (statistics.median(seconds[strict]) for strict in (False, True))
    ratio = enforced / plain
    print(f"\n{PAIRS} pairs, medians: {plain * 1e3:.1f} ms, strict {enforced * 1e3:.1f} ms, {ratio:.3f} times")
    assert ratio < LIMIT


def first_token(client: httpx.Client, strict: bool, question: str) -> float:
    """Seconds until a streamed answer says something."""
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": TOOLS[n], "strict": strict}}
        for n in range(TOOLS_AT_ONCE)
    ]
    asked = {"messages": [{"role": "user", "content": question}], "tools": tools, "max_tokens": 8, "temperature": 0}
    began, took = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not took and line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                if delta.get("content") or delta.get("tool_calls"):
                    took = time.perf_counter() - began
    assert took, "the answer says nothing"
    return took
