"""The Anthropic dialect over a real socket, the real engine and a scripted model. Ids in comments are scenarios."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic as sdk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.http.dialects import anthropic, anthropic_messages
from imp.http.errors import ApiError
from imp.http.gate import GateSettings
from imp.http.seal import Seal
from tests.http.scripted import Harness, serving

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"messages": HI, "temperature": 0, "max_tokens": 100}
CALLS = (  # shows everything a history may hold
    "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.reasoning_content %}?{{ m.reasoning_content }}{% endif %}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}:{{ c.function.arguments.x }}{% endfor %}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant|{% endif %}"
)


def run(test: Any) -> None:
    asyncio.run(test)


def parsed_events(text: str) -> list[dict[str, Any]]:
    """Every event of a stream; each must name its type twice."""
    assert text.endswith("\n\n")
    events = []
    for part in text[:-2].split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def stream(server: Harness, **body: Any) -> list[dict[str, Any]]:
    answer = await server.post(MESSAGES, **(body | {"stream": True}))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [event for event in parsed_events(answer.text) if event["type"] != "ping"]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


async def both(server: Harness, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same request whole and streamed; they must agree in all but the id and what was cached."""
    answer = await server.post(MESSAGES, **(ASK | body))
    assert answer.status_code == 200, answer.text
    whole, events = answer.json(), await stream(server, **(ASK | body))
    start, opened, *deltas, closed, last, stop = events
    assert start["type"] == "message_start" and opened["type"] == "content_block_start"
    assert {event["type"] for event in deltas} <= {"content_block_delta"}
    assert [closed["type"], last["type"], stop] == ["content_block_stop", "message_delta", {"type": "message_stop"}]
    assert all(event["index"] == 0 for event in (opened, *deltas, closed))
    assert all(event["delta"]["type"] == "text_delta" and event["delta"]["text"] for event in deltas)
    assert opened["content_block"] == {"type": "text", "text": ""}
    empty = {"content": [], "stop_reason": None, "stop_sequence": None}
    shown = start["message"]
    assert {key: shown[key] for key in empty} == empty and shown["usage"]["output_tokens"] == 0
    assert set(shown) == set(whole) and shown["id"].startswith("msg_")
    assert whole["content"] == [{"type": "text", "text": text_of(events)}]
    assert last["delta"] == {key: whole[key] for key in ("stop_reason", "stop_sequence")}
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert prompt_tokens(last["usage"]) == prompt_tokens(shown["usage"]) == prompt_tokens(whole["usage"])
    return whole, events


def prompt_tokens(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def test_a_plain_answer_has_every_key_clients_read_and_none_of_openais():
    async def main():
        async with serving(["Hello", " there"]) as server:
            whole, _ = await both(server)
            usage = whole.pop("usage")
            assert whole.pop("id").startswith("msg_")
            assert whole == {
                "type": "message",
                "role": "assistant",
                "model": "toy",
                "content": [{"type": "text", "text": "Hello there"}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
            }
            assert usage["output_tokens"] == 3  # the end token counts
            assert usage["input_tokens"] == len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
            assert (await server.client.post(MESSAGES + "?beta=true", json=ASK)).status_code == 200

    run(main())


def test_streams_in_parallel_keep_their_events_apart_and_in_order():  # G08-05
    async def main():
        async with serving(["a", "", "b", "\U0001f98a".encode()[:2], "\U0001f98a".encode()[2:], "c"]) as server:
            streams = await asyncio.gather(*(stream(server, **ASK) for _ in range(8)))
            for events in streams:
                names = [event["type"] for event in events]
                deltas = names.count("content_block_delta")
                assert names == [
                    "message_start",
                    "content_block_start",
                    *["content_block_delta"] * deltas,
                    "content_block_stop",
                    "message_delta",
                    "message_stop",
                ]
                assert text_of(events) == "ab\U0001f98ac"
            assert len({events[0]["message"]["id"] for events in streams}) == 8
            await both(server)

    run(main())


@pytest.mark.parametrize(
    "body, reason, sequence, text",
    [
        ({}, "end_turn", None, "one two END three"),
        ({"stop_sequences": ["nowhere", "END"]}, "stop_sequence", "END", "one two "),
        ({"max_tokens": 2}, "max_tokens", None, "one two"),
        ({"max_tokens": None}, "end_turn", None, "one two END three"),
    ],
)
def test_the_reason_of_the_end(body, reason, sequence, text):  # G08-08
    async def main():
        async with serving(["one", " two", " EN", "D", " three"]) as server:
            whole, events = await both(server, **body)
            assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
            assert whole["content"][0]["text"] == text
            assert all("EN" not in text_of([event]) for event in events) or sequence is None

    run(main())


def test_nothing_said_is_an_empty_block():
    async def main():
        async with serving([]) as server:
            whole, _ = await both(server)
            assert whole["content"] == [{"type": "text", "text": ""}] and whole["usage"]["output_tokens"] == 1

    run(main())


def test_usage_tells_what_the_cache_had():  # G08-07
    marked = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

    async def main():
        async with serving(["a"]) as server:
            system = [{"type": "text", "text": "s" * 90} | marked]
            cold = (await server.post(MESSAGES, **ASK, system=system)).json()["usage"]
            warm = (await server.post(MESSAGES, **ASK, system=system)).json()["usage"]
            kept = len("<|im_start|>system\n" + "s" * 90 + "<|im_end|>\n<|im_start|>user\n")  # a token a byte
            assert (cold["cache_read_input_tokens"], cold["cache_creation_input_tokens"]) == (0, kept)
            assert (warm["cache_read_input_tokens"], warm["cache_creation_input_tokens"]) == (prompt_tokens(cold) - 1, 0)
            assert prompt_tokens(cold) == prompt_tokens(warm) == cold["input_tokens"] + kept
            events = await stream(server, **ASK, system=system)
            for usage in (events[0]["message"]["usage"], events[-2]["usage"]):
                assert usage | {"output_tokens": 0} == warm | {"output_tokens": 0}
            plain = (await server.post(COUNT, messages=HI, system="s" * 90)).json()
            assert plain == {"input_tokens": prompt_tokens(cold)}  # marks change no text
            block = {"type": "text", "text": "x"} | marked
            for count, status in ((3, 200), (4, 400)):
                body = ASK | {"messages": [{"role": "user", "content": [block] * count}], "system": system}
                answer = await server.post(MESSAGES, **body)
                assert answer.status_code == status, answer.text
            assert "cache_control" in answer.json()["error"]["message"]

    run(main())


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*HI, {"role": "assistant", "content": list(blocks)}]}


def result(*blocks: Any) -> dict[str, Any]:
    return user({"type": "tool_result", "tool_use_id": "t", "content": list(blocks)})


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


@pytest.mark.parametrize(
    "change, path",
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (user("text"), "messages[0].content[0]"),
        (user({"text": "x"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "document_x"}), "messages[0].content[0].type"),  # G08-08
        (user({"type": ["text"]}), "messages[0].content[0].type"),
        (user({"type": "text", "text": "x"}, {"type": "tool_use"}), "messages[0].content[1].type"),
        (user(IMAGE), "messages[0].content[0]"),
        (user({"type": "document", "source": {}}), "messages[0].content[0]"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
        (
            user({"type": "tool_result", "tool_use_id": "t", "is_error": "no"}),
            "messages[0].content[0].is_error",
        ),
        (user({"type": "tool_result", "tool_use_id": "t", "content": {}}), "messages[0].content[0].content"),
        (result(IMAGE), "messages[0].content[0].content[0]"),
        (result({"type": "wat"}), "messages[0].content[0].content[0].type"),
        (result({"type": "text", "text": 1}), "messages[0].content[0].content[0].text"),
        (assistant({"type": "tool_result"}), "messages[1].content[0].type"),
        (assistant({"type": "server_tool_use"}), "messages[1].content[0].type"),
        (assistant({"type": "tool_use", "id": "t", "name": "f"}), "messages[1].content[0].input"),
        (assistant({"type": "tool_use", "id": "t", "input": {}}), "messages[1].content[0].name"),
        (assistant({"type": "tool_use", "name": "f", "input": {}}), "messages[1].content[0].id"),
        (assistant({"type": "thinking"}), "messages[1].content[0].thinking"),
        (assistant({"type": "thinking", "thinking": "x"}), "messages[1].content[0].signature"),
        (assistant({"type": "thinking", "thinking": "x", "signature": "s"}), "messages[1].content[0].signature"),
        (assistant({"type": "redacted_thinking"}), "messages[1].content[0].data"),
        ({"messages": [{"role": "system", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"system": 5}, "system"),
        ({"system": ["text"]}, "system[0]"),
        ({"system": [{"type": "wat"}]}, "system[0].type"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it_in_anthropics_envelope(change, path):  # G08-08
    async def main():
        async with serving() as server:
            for where, more in ((MESSAGES, {}), (MESSAGES, {"stream": True}), (COUNT, {})):
                answer = await server.post(where, **(ASK | more | change))
                assert answer.status_code == 400, answer.text
                body = answer.json()
                assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
                assert set(body["error"]) == {"type", "message"}
                assert body["error"]["type"] == "invalid_request_error"
                assert f'"{path}"' in body["error"]["message"]
                assert answer.headers["request-id"] == body["request_id"]

    run(main())


def test_images_are_refused_and_say_why():
    for body in (user(IMAGE), result(IMAGE)):
        with pytest.raises(ApiError, match=r"image input is not supported"):
            anthropic.read(body)


def test_other_errors_have_anthropics_types():  # G08-08
    async def main():
        async with serving(gate=GateSettings(api_keys=("right",))) as server:
            for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
                answer = await server.client.post(MESSAGES, json=ASK, headers=headers)
                assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
            for headers in ({"x-api-key": "right"}, {"authorization": "Bearer right"}):
                answer = await server.client.post(MESSAGES, json=ASK, headers=headers)
                assert answer.status_code == 200
                answer = await server.client.post(MESSAGES, json=ASK | {"model": "other"}, headers=headers)
                assert answer.status_code == 404 and answer.json()["error"]["type"] == "not_found_error"

    run(main())


def test_a_prompt_that_is_too_long_is_refused_in_the_words_clients_look_for():  # G08-12
    async def main():
        async with serving(["a"] * 600, context=128, template="{{ messages[0].content }}") as server:
            for more in ({}, {"stream": True}):
                body = ASK | more | {"messages": [{"role": "user", "content": "x" * 500}]}
                answer = await server.post(MESSAGES, **body)
                assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
                assert answer.json()["error"] == {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 500 tokens > 127 maximum",  # one is left for the answer
                }
            for where in (MESSAGES, COUNT):
                answer = await server.post(where, messages=[{"role": "user", "content": "x" * 40000}])
                assert answer.status_code == 400
                message = answer.json()["error"]["message"]
                assert message.startswith("prompt is too long: ") and "40000" in message and "127" in message
            whole = await server.post(MESSAGES, messages=[{"role": "user", "content": "x" * 100}], max_tokens=500)
            assert whole.json()["stop_reason"] == "max_tokens" and whole.json()["usage"]["output_tokens"] == 28

    run(main())


SEAL = Seal()
TOOLS = [
    {"role": "user", "content": "go"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": SEAL.sign(anthropic_messages.THINKING, "hm")},
            {"type": "redacted_thinking", "data": "AAAA"},
            {"type": "text", "text": "sure"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}},
            {"type": "tool_use", "id": "t2", "name": "find", "input": {"x": 2}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "and"},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
            {"type": "text", "text": "next"},
        ],
    },
]


@pytest.mark.parametrize(
    "body, prompt",
    [
        ({"messages": HI}, "<user|hi><assistant|"),
        ({"messages": HI, "system": "be"}, "<system|be><user|hi><assistant|"),
        ({"messages": HI, "system": ""}, "<user|hi><assistant|"),
        (
            {"messages": HI, "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            "<system|a\nb><user|hi><assistant|",
        ),
        (
            {
                "messages": HI,
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"},
                    {"type": "text", "text": "b"},
                ],
            },
            "<system|b><user|hi><assistant|",
        ),
        (
            {"messages": [*HI, {"role": "system", "content": "now"}, {"role": "user", "content": "x"}]},
            "<user|hi><system|now><user|x><assistant|",
        ),
        (user({"type": "text", "text": "a"}, {"type": "text", "text": "b"}), "<user|a\nb><assistant|"),
        ({"messages": [*HI, *HI]}, "<user|hi\nhi><assistant|"),
        (
            {"messages": TOOLS},
            "<user|go><assistant?hm|sure!look:1!find:2><tool look|seen><tool find|Error: gone><user|and\nnext>"
            "<assistant|",
        ),
        (
            {"messages": [*TOOLS[:2], user({"type": "tool_result", "tool_use_id": "t1"})["messages"][0]]},
            "<user|go><assistant?hm|sure!look:1!find:2><tool look|><assistant|",
        ),
        ({"messages": [*HI, {"role": "assistant", "content": "{"}]}, "<user|hi><assistant|{"),
    ],
)
def test_the_prompt_and_its_count(body, prompt):  # G08-09
    async def main():
        async with serving(["a"], template=CALLS, seal=SEAL) as server:
            count = await server.post(COUNT, **body)
            assert count.json() == {"input_tokens": len(prompt)}, count.text
            rendered = []
            server.services.loaded.facts.tokenizer.encode, encode = (
                lambda text, **options: rendered.append(text) or encode(text, **options),
                server.services.loaded.facts.tokenizer.encode,
            )
            usage = (await server.post(MESSAGES, **body)).json()["usage"]
            assert "".join(rendered) == prompt
            assert prompt_tokens(usage) == len(prompt)

    run(main())


def test_what_coding_clients_send_is_accepted_and_they_may_leave():  # G08-09
    marked = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "toy",
        "max_tokens": 400,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "You are"} | marked,
            {"type": "text", "text": "a tool"} | marked,
        ],
        "messages": [*TOOLS, {"role": "assistant", "content": "{"}],
        "tools": [],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": []},
        "service_tier": "auto",
        "container": None,
        "betas": ["x"],
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219, other-2025"}

    async def main():
        async with serving(["x"] * 400, step_s=0.005, context=1024, seal=SEAL) as server:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await server.client.post(MESSAGES, json=body, headers=headers)
            await server.until(lambda: server.engine.stats.running == 0 and server.engine.stats.aborted == 3, 3)
            assert server.engine.stats.blocks_live == 0
            answer = await server.client.post(MESSAGES, json=body | {"max_tokens": 2}, headers=headers)
            assert answer.status_code == 200, answer.text
            assert text_of(parsed_events(answer.text)) == "xx"
            assert answer.headers["x-imp-ignored"] == "betas"
            assert answer.headers["anthropic-version"] == "2023-06-01"
            assert answer.headers["anthropic-beta"] == "claude-code-20250219,other-2025"

    run(main())


@pytest.mark.parametrize(
    "thinking", [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 50}, {"type": "adaptive"}]
)
def test_thinking_is_accepted_and_changes_nothing(thinking):
    async def main():
        async with serving() as server:
            whole, _ = await both(server, thinking=thinking)
            assert [block["type"] for block in whole["content"]] == ["text"]

    run(main())


def test_a_stream_pings_while_nothing_comes():
    async def main():
        async with serving(["x"], ping_s=0.05) as server:
            server.runner.held.clear()
            async with server.client.stream("POST", MESSAGES, json=ASK | {"stream": True}) as answer:
                seen, text = 0, ""
                async for line in answer.aiter_lines():
                    text += line + "\n"
                    seen += line == "event: ping"
                    if seen == 3:
                        server.runner.held.set()
            events = parsed_events(text)
            assert seen >= 3 and {"type": "ping"} in events
            assert events[-1] == {"type": "message_stop"}

    run(main())


def test_a_failure_in_mid_stream_is_an_error_event_and_the_end():
    async def main():
        async with serving(["a", "b", "c", "d"], fail_at=3, step_s=0.01) as server:
            *events, error = await stream(server, **ASK)
            assert text_of(events) == "abc"
            assert error["error"]["type"] == "api_error" and "/etc" not in error["error"]["message"]
            assert not {event["type"] for event in events} & {"message_delta", "message_stop", "error"}
            answer = await server.post(MESSAGES, **ASK)
            assert answer.status_code == 500 and answer.json()["error"]["type"] == "api_error"
            assert "secret" not in answer.text
            await server.until(lambda: server.engine.stats.running == 0)

    run(main())


def test_models_in_anthropics_shape():
    async def main():
        async with serving(other_models=lambda: ["other", "toy"]) as server:
            headers = {"anthropic-version": "2023-06-01"}
            listing = (await server.client.get("/v1/models", headers=headers)).json()
            first = listing["data"][0]
            assert first == {
                "type": "model",
                "id": "toy",
                "display_name": "toy",
                "created_at": "1970-01-01T00:00:01Z",
                "lifecycle": "active",
            }
            assert [model["id"] for model in listing["data"]] == ["toy", "other"]
            assert (listing["has_more"], listing["first_id"], listing["last_id"]) == (False, "toy", "other")
            assert (await server.client.get("/v1/models/toy", headers=headers)).json() == first
            assert (await server.client.get("/v1/models/toy")).json()["object"] == "model"

    run(main())


def test_the_official_sdk_reads_every_form():
    async def main():
        async with serving(["Hel", "lo", " w\u00f6rld", " END", "!"]) as server:
            client = sdk.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
            ask: Any = {"model": "toy", "max_tokens": 50, "messages": HI}
            whole = await client.messages.create(**ask)
            assert whole.content[0].text == "Hello w\u00f6rld END!" and whole.stop_reason == "end_turn"
            assert whole._request_id
            async with client.messages.stream(**ask, stop_sequences=["END"]) as streaming:
                texts = [text async for text in streaming.text_stream]
                final = await streaming.get_final_message()
            assert "".join(texts) == final.content[0].text == "Hello w\u00f6rld "
            assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "END")
            assert final.usage.output_tokens == 4
            read = final.usage.cache_read_input_tokens
            count = await client.messages.count_tokens(model="toy", messages=HI)
            assert count.input_tokens == whole.usage.input_tokens == final.usage.input_tokens + read
            raw = await client.messages.create(**ask, stream=True)
            kinds = [event.type async for event in raw]
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
            assert [model.id async for model in client.models.list()] == ["toy"]
            assert (await client.models.retrieve("toy")).display_name == "toy"
            with pytest.raises(sdk.BadRequestError, match="messages"):
                await client.messages.create(**(ask | {"messages": []}))
            with pytest.raises(sdk.NotFoundError):
                await client.messages.create(**(ask | {"model": "other"}))
            with pytest.raises(sdk.BadRequestError, match="prompt is too long: "):
                await client.messages.create(**(ask | {"messages": [{"role": "user", "content": "x" * 600}]}))
            await client.close()
        async with serving(["a", "b"], fail_at=1) as server:
            client = sdk.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
            with pytest.raises(sdk.APIStatusError):
                async with client.messages.stream(**ask) as streaming:
                    await streaming.get_final_message()
            await client.close()

    run(main())


WORDS = st.sampled_from(
    [
        "type",
        "text",
        "role",
        "user",
        "assistant",
        "system",
        "content",
        "tool_use",
        "tool_result",
        "tool_use_id",
        "id",
        "name",
        "input",
        "thinking",
        "data",
        "redacted_thinking",
        "is_error",
        "image",
        "cache_control",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"])},
    optional=dict.fromkeys(("text", "id", "name", "input", "content", "tool_use_id", "thinking", "data"), JSON),
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": st.lists(BLOCK | JSON) | JSON}
)


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({"messages": st.lists(TURN | JSON, max_size=4)}, optional={"system": JSON}))
def test_any_json_is_read_or_refused(body):
    try:
        ask = anthropic.read(body)
    except ApiError as error:
        assert error.status == 400 and error.message
        return
    for message in ask.chat.messages:
        assert message.role in ("system", "user", "assistant", "tool")
        assert message.content is None or isinstance(message.content, str)
        assert message.content is not None or message.tool_calls
