"""The scenarios of scheduling, memory and the prefix cache over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import httpx
import pytest

from imp import readings
from imp.memory import MemoryPlan
from imp.types import Event, Finished, Request
from tests.http.sampled import endless, letters, sampled
from tests.http.scripted import Harness, serving
from tests.http.wire import run

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


async def said(server: Harness, **body: Any) -> dict[str, Any]:
    answer = await server.post(COMPLETIONS, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(server: Harness, **body: Any) -> str:
    events = await server.sse(COMPLETIONS, **body)
    assert events[-1] == "[DONE]"
    return "".join(event["choices"][0]["text"] for event in events[:-1] if event["choices"])


def metrics(server: Harness) -> dict[str, float]:
    plan = MemoryPlan(0, 1, server.scheduler.pool.count, 8, 512)
    readings.connect(server.services.metrics, server.engine, plan, "toy")
    lines = server.services.metrics.expose().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}


async def at_rest(server: Harness) -> None:
    await server.until(lambda: server.engine.stats.waiting == server.engine.stats.running == 0)
    await server.engine.call(server.scheduler.check)


def clocked(server: Harness) -> dict[int, list[int]]:
    """Of each request, by the length of its prompt: steps there had been when it came, and when it ended."""
    sched, seen, lengths = server.scheduler, dict[int, list[int]](), dict[str, int]()
    submit, apply = sched.submit, sched.apply

    def submitting(request: Request, now: float) -> list[Event]:
        lengths[request.id] = len(request.prompt)
        seen[len(request.prompt)] = [sched.snapshot().steps]
        return submit(request, now)

    def applying(*given: Any) -> list[Event]:
        events = apply(*given)
        for event in events:
            if isinstance(event, Finished):
                seen[lengths[event.request]].append(sched.snapshot().steps)
        return events

    sched.submit, sched.apply = submitting, applying  # type: ignore[method-assign]
    return seen


def test_g07_02_a_short_request_is_answered_beside_a_long_prompt() -> None:
    async def main() -> None:
        async with sampled(rows=8, blocks=600, context=4096) as server:
            server.scheduler.pace.learn = lambda load, seconds: None  # type: ignore[method-assign]  # chunks of 127
            steps = clocked(server)
            talker = asyncio.create_task(said(server, prompt="t", max_tokens=1500))
            await server.until(lambda: server.engine.stats.decode_steps > 3)
            long = asyncio.create_task(said(server, prompt="l" * 3000, max_tokens=1))
            await server.until(lambda: server.engine.stats.mixed_steps > 1)
            await said(server, prompt="s" * 100, max_tokens=1)
            assert not talker.done()
            await long
            came, ended = steps[100]
            assert ended - came <= 2
            came, ended = steps[3000]
            assert ended - came <= 1.1 * 3000 / 127 + 1
            await talker

    run(main)


def test_g07_04_preemption_is_invisible_over_http() -> None:
    async def main() -> None:
        bodies: list[dict[str, Any]] = []
        for i in range(12):
            bodies.append({"prompt": f"prompt {i} " * 3, "max_tokens": 100, "temperature": 0 if i % 2 else 0.9, "seed": i})
        bodies[3] |= {"logprobs": 2}
        bodies[5] |= {"allowed_token_ids": list(b"abc")}
        async with sampled(rows=12, blocks=600) as server:
            alone = [await said(server, **body) for body in bodies]
        async with sampled(rows=12, blocks=3 * 140 // 16) as server:
            for _ in range(60):
                server.scheduler.places.lengths.add(1)  # it expects short outputs
            found = await asyncio.gather(*[said(server, **body) for body in bodies])
            assert [answer["choices"] for answer in found] == [answer["choices"] for answer in alone]
            texts = await asyncio.gather(*[streamed(server, **body) for body in bodies])
            assert texts == [answer["choices"][0]["text"] for answer in alone]
            assert metrics(server)["imp_kv_preemptions_total"] == server.engine.stats.preemptions > 0
            assert server.engine.stats.steps < 12 * 2 * 130  # every step brings somebody on
            await at_rest(server)

    run(main)


@pytest.mark.parametrize("shares", [True, False])
def test_g07_05_blocks_come_back_however_a_request_ends(shares: bool) -> None:
    async def main() -> None:
        async with sampled(letters, rows=6, blocks=60, shares_prompts=shares) as server:
            rng = random.Random(7)

            async def one(i: int) -> None:
                body: dict[str, Any] = {"prompt": rng.choice("abc") * rng.randrange(1, 150), "temperature": 1}
                body |= {"max_tokens": rng.randrange(1, 60), "n": 1 + i % 2, "stream": i % 3 == 0}
                body |= [{}, {"stop": ["a", "bc"]}, {"logprobs": 3}, {"regex": "("}, {"stop_token_ids": [98]}][i % 5]
                patience = 0.03 if i % 4 == 0 else 30.0
                with suppress(httpx.ReadTimeout):
                    answer = await server.client.post(COMPLETIONS, json=body, timeout=httpx.Timeout(30, read=patience))
                    assert answer.status_code in (200, 400), answer.text

            for start in range(0, 200, 25):
                await asyncio.gather(*map(one, range(start, start + 25)))
            await at_rest(server)
            stats, shown = server.engine.stats, metrics(server)
            assert stats.aborted > 5 and stats.blocks_used == stats.blocks_live == 0
            assert stats.blocks_free + stats.blocks_reclaimable == stats.blocks_total == 60
            for name in ("used", "live", "reclaimable", "cached", "total", "reserved"):
                assert shown[f"imp_kv_blocks_{name}"] == getattr(stats, f"blocks_{name}"), name
            assert (await server.client.post("/reset_prefix_cache")).json() == {"success": True}
            assert server.scheduler.snapshot().blocks_free == 60

    run(main)


BLOCK = 16


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, "/v1/responses"])
def test_g07_08_a_hit_is_reported_and_changes_nothing(path: str) -> None:
    def body(prompt: str) -> dict[str, Any]:
        if path == COMPLETIONS:
            return {"prompt": prompt, "max_tokens": 9, "temperature": 0}
        if path == "/v1/responses":
            return {"input": prompt, "max_output_tokens": 9, "temperature": 0}
        return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 9, "temperature": 0}

    def cached(answer: dict[str, Any]) -> int:
        usage = answer["usage"]
        if path == MESSAGES:
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == total
            assert usage["cache_creation_input_tokens"] == 0  # nothing is marked
            return int(usage["cache_read_input_tokens"])
        key = "input_tokens_details" if path == "/v1/responses" else "prompt_tokens_details"
        return int(usage[key]["cached_tokens"])

    def text(answer: dict[str, Any]) -> str:
        return json.dumps(answer.get("choices") or answer.get("content") or answer["output"][0]["content"])

    async def ask(prompt: str) -> tuple[int, str]:
        answer = await server.post(path, **body(prompt))
        assert answer.status_code == 200, answer.text
        return cached(answer.json()), text(answer.json())

    async def main() -> None:
        nonlocal server, total
        async with sampled(blocks=400) as server:
            whole = "".join(random.Random(8).choices("abcdefgh", k=6 * BLOCK))
            for length in (5 * BLOCK + 3, 5 * BLOCK, BLOCK, BLOCK - 1):
                total = length
                await server.client.post("/reset_prefix_cache")
                miss, hit = await ask(whole[:length]), await ask(whole[:length])
                full = (length - 1) // BLOCK * BLOCK
                assert miss[0] == 0 and hit[1] == miss[1]
                # whole blocks, and of the next one what the prompt has of it; never the last token
                assert full <= hit[0] <= length - 1 and hit[0] == (length - 1 if full else 0)
            total = 6 * BLOCK
            await server.client.post("/reset_prefix_cache")
            await ask(whole)
            for shared in range(1, 6):
                other = whole[: shared * BLOCK] + "".join("z" if c != "z" else "y" for c in whole[shared * BLOCK :])
                found = await ask(other)
                assert found[0] == shared * BLOCK
                await server.client.post("/reset_prefix_cache")
                assert await ask(other) == (0, found[1])
                await server.client.post("/reset_prefix_cache")
                await ask(whole)

    server, total = None, 0  # type: ignore[assignment]
    run(main)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
        (COMPLETIONS, lambda text: {"prompt": text}),
        (COMPLETIONS, lambda text: {"prompt": [97] * len(text)}),
        (MESSAGES, lambda text: {"messages": [{"role": "user", "content": text}]}),
        ("/v1/responses", lambda text: {"input": text}),
    ],
)
def test_g07_11_a_prompt_that_does_not_fit_is_refused_and_never_cut(path: str, body: Any) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"

    async def main() -> None:
        async with sampled(endless, context=512, blocks=200) as server:
            for length in (600, 512):
                answer = await server.post(path, **body("a" * length))
                assert answer.status_code == 400
                error = answer.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert str(length) in error["message"] and "51" in error["message"]
                if path == MESSAGES:
                    assert error["message"].startswith(f"prompt is too long: {length} tokens > 511 maximum")
                else:
                    assert error["code"] == "context_length_exceeded"
            limits: list[dict[str, int]] = [{limit: 100}, {limit: 1_000_000_000}]
            if path != COMPLETIONS:  # where it is 16 unless said
                limits.append({})
            for more in limits:
                answer = await server.post(path, **body("a" * 500), **more)
                assert answer.status_code == 200
                usage = answer.json()["usage"]
                assert usage.get("completion_tokens", usage.get("output_tokens")) == 12
                told = answer.json()
                end = told.get("stop_reason") or told.get("status") or told["choices"][0]["finish_reason"]
                assert end in ("length", "max_tokens", "incomplete")
            models = (await server.client.get("/v1/models")).json()
            assert models["data"][0]["max_model_len"] == 512

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_g07_12_limits_are_taken_literally_or_refused(stream: bool) -> None:
    async def main() -> None:
        async with serving(["a"] * 600, context=128) as server:
            ask = {"messages": [{"role": "user", "content": "x"}], "stream": stream}
            for field in ("max_tokens", "max_completion_tokens"):
                for value in (0, -1, "5", 2.5, True, [1]):
                    answer = await server.post(CHAT, **ask, **{field: value})
                    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, value
            zero = await server.post(COMPLETIONS, prompt="abc", echo=True, max_tokens=0)
            assert zero.json()["choices"][0]["text"] == "abc"
            assert (await server.post(COMPLETIONS, prompt="abc", max_tokens=0)).status_code == 400
            ask = {"messages": [{"role": "user", "content": "x"}]}
            limits: list[tuple[dict[str, Any], int | None]] = [
                ({"max_tokens": 1}, 1),
                ({"max_tokens": None}, None),
                ({"max_tokens": 1_000_000_000}, None),
                ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
                ({"max_tokens": 3, "max_completion_tokens": None}, 3),
            ]
            for limit, wanted in limits:
                answer = (await server.post(CHAT, **ask, **limit)).json()
                usage = answer["usage"]
                assert usage["completion_tokens"] == (wanted or 128 - usage["prompt_tokens"])
                assert answer["choices"][0]["finish_reason"] == "length"
        async with serving(["a"]) as server:  # it may end before
            answer = (await server.post(CHAT, **ask, max_tokens=5)).json()
            assert answer["choices"][0]["finish_reason"] == "stop"

    run(main)
