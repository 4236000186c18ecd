"""What protects a generating server: waiting prompts, waiting times, tokens per minute; over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from imp.http.gate import GateSettings
from tests.http.scripted import Harness, serving

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 50} | more


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


async def occupied(server: Harness) -> asyncio.Task[Any]:
    """A request that has the only place and holds it until `server.runner.held` is set."""
    before = server.engine.stats.decode_rows
    running = asyncio.create_task(server.post(CHAT, **ask("a")))
    await server.until(lambda: server.engine.stats.decode_rows > before)
    server.runner.held.clear()
    return running


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_wait_are_bounded_by_their_tokens(stream: bool) -> None:
    async def main() -> None:
        async with serving(["x"] * 40, rows=1, step_s=0.002, max_queued_tokens=150) as server:
            running = await occupied(server)
            first = asyncio.create_task(server.post(CHAT, **ask("b" * 50)))
            await server.until(lambda: server.engine.queued_tokens > 50)
            waiting = server.engine.queued_tokens
            chat = await server.post(CHAT, **ask("c" * 100, stream=stream))
            messages = await server.post(MESSAGES, **ask("c" * 100, stream=stream))
            assert (chat.status_code, messages.status_code) == (429, 429)
            assert chat.json()["error"]["code"] == "queue_full" and chat.json()["error"]["type"] == "rate_limit_error"
            assert messages.json()["error"]["type"] == "overloaded_error"
            assert int(chat.headers["retry-after"]) >= 1
            assert server.engine.queued_tokens == waiting  # the refused ones left nothing behind
            server.runner.held.set()
            assert (await running).status_code == (await first).status_code == 200
            assert server.engine.queued_tokens == 0
            # however long, with nobody waiting it is let in
            assert (await server.post(CHAT, **ask("d" * 300))).status_code == 200

    run(main())


def test_a_client_that_leaves_the_queue_takes_its_tokens_along() -> None:
    async def main() -> None:
        async with serving(["x"] * 40, rows=1, step_s=0.002, max_queued_tokens=1000) as server:
            running = await occupied(server)
            waiting = [asyncio.create_task(server.post(CHAT, **ask("b" * 50, n=2))) for _ in range(3)]
            await server.until(lambda: server.engine.queued_tokens > 3 * 50)
            for each in waiting:
                each.cancel()
            await server.until(lambda: server.engine.queued_tokens == 0)
            server.runner.held.set()
            assert (await running).status_code == 200

    run(main())


def test_a_request_that_waits_too_long_is_a_503_with_retry_after() -> None:
    async def main() -> None:
        async with serving(["x"] * 60, rows=1, step_s=0.02, queue_timeout_s=0.3) as server:
            running = asyncio.create_task(server.post(CHAT, **ask("a")))
            await server.until(lambda: server.engine.stats.decode_rows > 0)
            prefilled = server.runner.prompt_positions
            chat, messages = await asyncio.gather(server.post(CHAT, **ask("b")), server.post(MESSAGES, **ask("b")))
            for answer in (chat, messages):
                assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
            assert chat.json()["error"]["code"] == "queue_timeout"
            assert messages.json()["error"]["type"] == "overloaded_error"
            assert (await running).status_code == 200  # however long it took: it was being answered
            assert server.runner.prompt_positions == prefilled  # those that gave up were never computed
            assert server.engine.queued_tokens == 0 and server.scheduler.snapshot().waiting == 0
            assert (await server.post(CHAT, **ask("b", max_tokens=1))).status_code == 200

    run(main())


def test_a_stream_that_waits_too_long_says_so_inside() -> None:
    async def main() -> None:
        async with serving(["x"] * 60, rows=1, step_s=0.02, queue_timeout_s=0.3) as server:
            running = asyncio.create_task(server.post(CHAT, **ask("a")))
            await server.until(lambda: server.engine.stats.decode_rows > 0)
            events = await server.sse(CHAT, **ask("b"))
            assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "queue_timeout"
            assert (await running).status_code == 200

    run(main())


def test_tokens_of_every_way_of_answering_are_charged() -> None:
    # G10-15
    async def main() -> None:
        settings = GateSettings(token_limit_per_min=1000)
        async with serving(["x"] * 5, gate=settings) as server:
            first = await server.post(CHAT, **ask("b"))
            used = first.json()["usage"]["total_tokens"]
            second = await server.post(MESSAGES, **ask("b"))
            assert second.headers["x-ratelimit-limit-tokens"] == "1000"
            assert 1000 - used <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 1000 - used + 10
            await server.sse(CHAT, **ask("b"))
            third = await server.post(CHAT, **ask("b"))
            assert 1000 - 3 * used <= int(third.headers["x-ratelimit-remaining-tokens"]) <= 1000 - 3 * used + 30
            for _ in range(100):
                answer = await server.post(CHAT, **ask("b" * 300))
                if answer.status_code == 429:
                    break
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert answer.headers["x-ratelimit-remaining-tokens"] == "0" and int(answer.headers["retry-after"]) >= 1
            refused = await server.post(CHAT, **ask("b", temperature=9))
            assert refused.status_code == 429  # before the body is looked at

    run(main())


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/completions", "/v1/responses", "/v1/embeddings"])
def test_answers_tell_how_many_were_in_front(path: str) -> None:
    async def main() -> None:
        async with serving(["x"] * 40, rows=1, step_s=0.002) as server:
            body = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}, "/v1/embeddings": {"input": "a"}}
            asked = body.get(path) or ask("a")
            idle = await server.post(path, **asked)
            assert idle.headers["x-imp-queue-position"] == "0"
            running = await occupied(server)
            waiting = []
            for i, priority in enumerate((0, 0, 3, -1)):
                waiting.append(asyncio.create_task(server.post(CHAT, **ask("b", priority=priority))))
                await server.until(lambda n=i: len(server.engine._waiting) == n + 1)  # type: ignore[misc]
            last = asyncio.create_task(server.post(path, **asked))
            await server.until(lambda: len(server.engine._waiting) == 5)
            server.runner.held.set()
            places = [(await answer).headers["x-imp-queue-position"] for answer in (*waiting, last)]
            assert places == ["0", "1", "2", "0", "3"] and (await running).status_code == 200

    run(main())


def test_a_stream_tells_its_place_before_it_begins() -> None:
    async def main() -> None:
        async with serving(["x"] * 40, rows=1, step_s=0.002) as server:
            running = await occupied(server)
            waiting = asyncio.create_task(server.post(CHAT, **ask("b")))
            await server.until(lambda: len(server.engine._waiting) == 1)
            async with server.client.stream("POST", CHAT, json=ask("c", stream=True)) as answer:
                assert answer.headers["x-imp-queue-position"] == "1"  # the engine is held: nothing has begun
                assert "X-Imp-Queue-Position" in answer.headers["access-control-expose-headers"]
                server.runner.held.set()
                assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
            await asyncio.gather(running, waiting)

    run(main())
