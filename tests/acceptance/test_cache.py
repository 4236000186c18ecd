"""A conversation of thirty turns is computed once: each turn prefills what is new in it, and is answered as soon.

Its system prompt begins with the line that Claude Code sends, which is another one in every request.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from typing import Any

import httpx

from tests.acceptance import agent_talk
from tests.real.process import server

REPEATS = 4  # conversations
PREFILLED, SLOWER = 1.1, 1.5  # at most: prefilled per new token, the last turn's TTFT by the second one's


def asked(client: httpx.Client, turn: int, nonce: int, conversation: str) -> tuple[dict[str, Any], float]:
    """(usage, seconds to the first text)."""
    body = {
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "system": agent_talk.system(nonce, conversation),
        "tools": agent_talk.tools(),
        "messages": agent_talk.messages(turn),
    }
    usage: dict[str, Any] = {}
    first = 0.0
    began = time.perf_counter()
    with client.stream("POST", "/v1/messages", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["type"] == "content_block_start" and not first:
                first = time.perf_counter() - began
            if event["type"] == "message_start":
                usage = event["message"]["usage"]
    return usage, first


def test_each_turn_computes_what_is_new_in_it_and_the_last_is_as_quick_as_the_second(smollm2_path):
    turns = range(1, agent_talk.TURNS + 1)
    ttft: list[dict[int, float]] = []
    cpu: list[dict[int, float]] = []
    with server("--model", str(smollm2_path)) as running, httpx.Client(base_url=running.url, timeout=300) as client:
        asked(client, 2, 1, "warm-up")
        for repeat in range(REPEATS):
            before, prefilled, new = 0, 0, 0
            ttft.append({})
            cpu.append({})
            for turn in turns:
                cpu[-1][turn] = -running.cpu_s()
                usage, ttft[-1][turn] = asked(client, turn, 1000 * repeat + 37 * turn, f"house {repeat}")
                cpu[-1][turn] += running.cpu_s()
                read, created = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
                prompt = read + created + usage["input_tokens"]
                if turn > 1:
                    assert prompt - read <= PREFILLED * (prompt - before), f"turn {turn}: {usage}, {before} before"
                    prefilled, new = prefilled + prompt - read, new + prompt - before
                before = prompt
            print(f"\n{before} tokens at last; prefilled/new from turn 2: {prefilled / new:.3f}")
            assert prefilled <= PREFILLED * new
    print("TTFT in ms: " + " ".join(f"{statistics.median(t[turn] for t in ttft) * 1e3:.0f}" for turn in turns))
    print(f"last turns by the second ones: {slower(ttft):.2f}, in the server's processor time {slower(cpu):.2f}")
    assert slower(ttft) <= SLOWER


def slower(times: list[dict[int, float]]) -> float:
    """How many times the last turns took as long as the second ones: of one conversation and of the next, which are
    neighbours in time also on a machine that others use."""
    ratios = [
        statistics.median(list(old.values())[-3:]) / statistics.median(list(young.values())[1:4])
        for old, young in pairwise(times)
    ]
    return statistics.median(ratios)
