"""Group 1 of the scenarios (event streams), in every dialect; what one dialect promises alone is in its own tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.http.scripted import Harness, serving

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/responses": {"input": "Hi"},
}
CHATS = [route for route in ROUTES if route != "/v1/completions"]
# one token a byte: a fox; a family joined by ZWJ; a Devanagari conjunct
HARD = "\U0001f98a \U0001f469\u200d\U0001f469\u200d\U0001f467 \u0915\u094d\u0937 ok"
BYTES = [bytes([byte]) for byte in HARD.encode()]


def run(test: Any) -> None:
    asyncio.run(test)


def delta_of(event: dict[str, Any]) -> str:
    """The text an event of any dialect adds."""
    if "choices" in event:
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in event["choices"])
    if event.get("type") == "content_block_delta":
        return event["delta"]["text"]
    return event["delta"] if event.get("type") == "response.output_text.delta" else ""


def text_of(route: str, body: dict[str, Any]) -> tuple[str, int]:
    """The whole text of an answer that was not streamed, and how many tokens it is said to have."""
    usage = body["usage"]
    if route == "/v1/responses":
        return body["output"][0]["content"][0]["text"], usage["output_tokens"]
    if route == "/v1/messages":
        return body["content"][0]["text"], usage["output_tokens"]
    choice = body["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"], usage["completion_tokens"]


async def events(server: Harness, route: str, **body: Any) -> AsyncIterator[dict[str, Any]]:
    """The JSON of every data line, each of which must be complete by itself."""
    async with server.client.stream("POST", route, json=ROUTES[route] | body | {"stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("route", ROUTES)
def test_g01_03_characters_split_over_tokens_arrive_whole(route):
    async def main():
        async with serving(BYTES) as server:
            deltas = [delta_of(event) async for event in events(server, route, **({"max_tokens": 100} if "completions" in route else {}))]
            assert "".join(deltas) == HARD and not any("\ufffd" in delta for delta in deltas)

    run(main())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6])
def test_g01_03_an_end_inside_a_character_looks_the_same_streamed_or_not(route, tokens):
    expected = HARD.encode()[:tokens].decode(errors="replace")
    limit = {"max_output_tokens" if route == "/v1/responses" else "max_tokens": tokens}

    async def main():
        async with serving(BYTES) as server:
            assert "".join([delta_of(event) async for event in events(server, route, **limit)]) == expected
            whole = (await server.post(route, **(ROUTES[route] | limit))).json()
            assert text_of(route, whole) == (expected, tokens)

    run(main())


@pytest.mark.parametrize("limit, reason", [({"max_tokens": 5}, "length"), ({}, "stop")])
def test_g01_02_the_last_chunk_has_no_text_even_where_a_slow_reader_lets_chunks_pile_up(limit, reason):
    async def main():
        async with serving([f"word {i} " for i in range(40)]) as server:
            ask = ROUTES["/v1/chat/completions"] | limit | {"stream": True}
            async with server.client.stream("POST", "/v1/chat/completions", json=ask) as answer:
                await server.until(lambda: server.engine.stats.running == 0 and server.runner.steps > 4)
                lines = [line async for line in answer.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert not any("role" in choice["delta"] for choice in choices[1:])
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [reason]
            assert choices[-1]["delta"] == {}

    run(main())


def test_g01_07_the_sdks_never_see_the_pings_of_a_slow_answer():
    async def main():
        async with serving(["a", "b", "c"], step_s=0.08, ping_s=0.02) as server:
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
                stream = await client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
                assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "abc"
                kinds = [event.type async for event in await client.responses.create(model="toy", input="Hi", stream=True)]
                assert kinds.count("response.output_text.delta") == 3 and kinds[-1] == "response.completed"
            claude = anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0)
            async with claude, claude.messages.stream(model="toy", max_tokens=9, messages=MESSAGES) as messages:
                assert "".join([text async for text in messages.text_stream]) == "abc"
            whole = await server.post("/v1/chat/completions", **ROUTES["/v1/chat/completions"])
            assert whole.content.startswith(b"{") and whole.json()["choices"][0]["message"]["content"] == "abc"

    run(main())


@pytest.mark.parametrize("route", ROUTES)
def test_g01_09_a_failure_in_mid_stream_ends_the_stream_in_the_words_of_its_dialect(route):
    async def main():
        async with serving(["a", "b", "c", "d"], fail_at=3) as server:
            seen = [event async for event in events(server, route)]
            assert "".join(map(delta_of, seen)) == "abc"
            last = seen[-1]
            if route == "/v1/messages":
                assert last["type"] == "error" and last["error"]["type"] == "api_error"
                assert not {"message_delta", "message_stop"} & {event["type"] for event in seen}
            elif route == "/v1/responses":
                assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
                assert "response.completed" not in {event["type"] for event in seen}
            else:
                assert last["error"]["code"] == "engine_step_failed" and last["error"]["param"] is None
            assert "/etc" not in json.dumps(seen) and "Traceback" not in json.dumps(seen)
            await server.until(lambda: server.engine.stats.running == 0)
            assert "imp_requests_failed_total 1" in server.services.metrics.expose().decode()

    run(main())


@pytest.mark.parametrize("after", [0, 1, 500, 1999])
def test_g01_12_a_stream_that_is_resumed_gives_whole_events(after):
    emoji = "\U0001f642" * 500

    async def main():
        async with serving([bytes([byte]) for byte in emoji.encode()], context=4096, blocks=512) as server:
            body = {"max_output_tokens": 3000, "store": True}
            first = [event async for event in events(server, "/v1/responses", **body)]
            assert "".join(map(delta_of, first)) == emoji
            name = first[0]["response"]["id"]
            query = {"stream": "true", "starting_after": str(after)}
            async with server.client.stream("GET", f"/v1/responses/{name}", params=query) as answer:
                assert answer.status_code == 200
                lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
            again = [json.loads(line) for line in lines if line != "[DONE]"]
            assert again == [event for event in first if event["sequence_number"] > after]

    run(main())
