"""`timings`: the parts are what they say they are, and nothing of the time is missing or counted twice.

Steps that sleep and requests that are held give lower bounds that hold on any machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.http.scripted import Harness, serving

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
ASKS = {CHAT: {"messages": HI}, TEXT: {"prompt": "x" * 40}, MESSAGES: {"messages": HI, "max_tokens": 50}}
PARTS = ("prepare_ms", "queue_ms", "prefill_ms", "decode_ms", "constraint_ms")


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def check(timings: dict[str, Any], wall_s: float) -> None:
    """All of the time, each part of it once, and llama.cpp's figures from the same numbers."""
    assert sum(timings[part] for part in PARTS) == pytest.approx(timings["total_ms"], abs=0.01)
    assert all(timings[part] >= 0 for part in PARTS)
    assert timings["total_ms"] <= wall_s * 1e3
    assert (timings["prompt_ms"], timings["predicted_ms"]) == (timings["prefill_ms"], timings["decode_ms"])
    assert timings["cache_n"] == timings["cached_tokens"]
    for what in ("prompt", "predicted"):
        count, ms = timings[f"{what}_n"], timings[f"{what}_ms"]
        assert timings[f"{what}_per_token_ms"] == pytest.approx(ms / count, abs=0.001)
        assert timings[f"{what}_per_second"] == pytest.approx(count / ms * 1e3, abs=0.001)


async def timed(server: Harness, path: str, streamed: bool, **body: Any) -> tuple[dict[str, Any], float]:
    """The one `timings` of an answer, and the seconds its client waited."""
    began = time.monotonic()
    answer = await server.client.post(path, json=ASKS[path] | body | {"timings": True, "stream": streamed})
    wall_s = time.monotonic() - began
    assert answer.status_code == 200, answer.text
    if not streamed:
        return answer.json()["timings"], wall_s
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    [found] = [event["timings"] for event in events if "timings" in event]
    return found, wall_s


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ASKS)
def test_the_parts_sum_to_the_whole(path, streamed):
    async def main():
        async with serving(["x"] * 20, step_s=0.01) as server:
            timings, wall_s = await timed(server, path, streamed, max_tokens=20)
            check(timings, wall_s)
            assert timings["prefill_ms"] >= 10 and timings["decode_ms"] >= 190  # a step each, and 19 of them
            prompt = 40 if path == TEXT else len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
            assert (timings["prompt_n"], timings["predicted_n"], timings["cached_tokens"]) == (prompt, 20, 0)
            again, wall_s = await timed(server, path, streamed, max_tokens=20)
            check(again, wall_s)
            assert again["cached_tokens"] > 0 and again["prompt_n"] + again["cached_tokens"] == prompt

    run(main())


def test_waiting_for_a_place_is_queue_time():
    async def main():
        async with serving(["x"] * 50, rows=1, step_s=0.01) as server:
            first = asyncio.ensure_future(server.post(TEXT, prompt="y", max_tokens=20))
            await server.until(lambda: server.runner.steps >= 1)
            steps = server.runner.steps
            asking = asyncio.ensure_future(timed(server, CHAT, False, max_tokens=2))
            await server.until(lambda: server.engine.stats.waiting == 1)
            before = server.runner.steps - steps
            timings, wall_s = await asking
            check(timings, wall_s)
            assert timings["queue_ms"] >= (20 - 1 - before - 2) * 10
            assert (await first).status_code == 200

    run(main())


def test_a_request_that_begins_before_the_loop_goes_on_did_not_wait():
    async def main():
        async with serving() as server:
            opened = server.engine.open

            def slow(requests):
                generation = opened(requests)
                while not server.runner.steps:
                    time.sleep(0.001)
                return generation

            server.engine.open = slow
            timings, wall_s = await timed(server, TEXT, False, max_tokens=2)
            check(timings, wall_s)

    run(main())


def test_several_sequences_are_timed_together():
    async def main():
        async with serving(["x"] * 20, step_s=0.005) as server:
            timings, wall_s = await timed(server, TEXT, True, n=3, max_tokens=10)
            check(timings, wall_s)
            assert (timings["prompt_n"], timings["predicted_n"]) == (40, 30)

    run(main())


def test_a_prompt_alone_has_no_decode_time():
    async def main():
        async with serving() as server:
            timings, _ = await timed(server, TEXT, False, echo=True, max_tokens=0)
            assert timings["decode_ms"] == 0 and timings["predicted_n"] == 0
            assert timings["predicted_per_token_ms"] is None and timings["predicted_per_second"] is None

    run(main())


@pytest.mark.parametrize("given", [{}, {"timings": False}, {"timings": None}])
@pytest.mark.parametrize("path", ASKS)
def test_who_does_not_ask_gets_none(path, given):
    async def main():
        async with serving() as server:
            assert "timings" not in (await server.post(path, **ASKS[path], **given)).json()
            wrong = await server.post(path, **ASKS[path], timings="yes")
            assert wrong.status_code == 400 and '"timings"' in wrong.json()["error"]["message"]

    run(main())


def test_the_usage_chunk_has_them_too():
    async def main():
        async with serving() as server:
            *_, finish, usage, done = await server.sse(
                CHAT, messages=HI, timings=True, stream_options={"include_usage": True}
            )
            assert done == "[DONE]" and usage["choices"] == [] and usage["timings"] == finish["timings"]

    run(main())
