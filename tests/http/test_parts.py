"""Reasoning and calls in an answer, in each dialect's words, streamed and whole. The words are WIRE.md's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imp.chat.formats import hermes
from imp.chat.formats.base import Thinking, Tool
from imp.chat.speech import Speech
from imp.http.dialects import anthropic_writer, openai_chat, responses
from imp.http.dialects.responses_writer import Writer as ResponsesWriter
from imp.http.dialects.shared import Conversation
from imp.types import Delta, Event, Finished, Reason, Sampling, Started, TokenLogprob, Usage
from tests.http.scripted import PieceTokenizer

SPEECH = Speech(hermes.FORMAT, Thinking("<think>", "</think>"), started=True, tools={"f": Tool("f"), "g": Tool("g")})
OUTPUT = (
    'hm, two\n</think>\n\nLook:\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g"}\n</tool_call>'
)
HEADER = openai_chat.Header("id-1", 1700000000, "toy", "fp")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def events(output: str, size: int, reason: Reason = Reason.STOP) -> list[Event]:
    pieces = [output[i : i + size] for i in range(0, len(output), size)]
    logprob = TokenLogprob(65, -0.5)
    deltas = [Delta("r", 0, piece, (65,), (logprob,)) for piece in pieces]
    usage = Usage(prompt=5, generated=len(pieces), reasoning=3)
    return [Started("r", 0, 5, 0), *deltas, Finished("r", 0, reason, None, usage)]


def written(writer: Any, said: list[Event]) -> list[dict[str, Any]]:
    """The data of all frames."""
    raw = b"".join(writer.frame(event) for event in said) + writer.end()
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def whole(writer: Any, said: list[Event]) -> dict[str, Any]:
    for event in said:
        writer.conversation.take(event)
    return writer.reply()


def chat(speech: Speech = SPEECH, **more: Any) -> openai_chat.Writer:
    conversation = Conversation([("r", 1)], speech=speech)
    return openai_chat.Writer(openai_chat.read(CHAT | more), HEADER, conversation, PieceTokenizer([]))


def messages(speech: Speech = SPEECH) -> anthropic_writer.Writer:
    conversation = Conversation([("r", 1)], speech=speech, call_prefix="toolu_")
    return anthropic_writer.Writer(HEADER, conversation, "req_1", lambda text: f"signed {len(text)}")


def response(speech: Speech = SPEECH) -> ResponsesWriter:
    ask = responses.read({"input": "hi"})
    return ResponsesWriter(ask, HEADER, Conversation([("r", 1)], speech=speech), PieceTokenizer([]), Sampling())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_chat_stream_says_what_the_chat_completion_says(size):
    message = whole(chat(), events(OUTPUT, size))["choices"][0]["message"]
    first, second = message["tool_calls"]
    assert message["content"] == "Look:" and message["reasoning_content"] == "hm, two"
    assert first["function"] == {"name": "f", "arguments": '{"a": [1, "é"]}'} and first["type"] == "function"
    assert second["function"] == {"name": "g", "arguments": "{}"}
    assert first["id"] != second["id"] and first["id"].startswith("call_")

    chunks = [chunk["choices"][0] for chunk in written(chat(), events(OUTPUT, size))]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""} and chunks[-1]["delta"] == {}
    assert chunks[-1]["finish_reason"] == "tool_calls" and all(c["finish_reason"] is None for c in chunks[:-1])
    joined: dict[str, str] = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for chunk in chunks[1:-1]:
        [(key, value)] = chunk["delta"].items()
        if key != "tool_calls":
            assert value and not (calls and key == "reasoning_content")
            joined[key] += value
            continue
        [call] = value
        if "id" in call:
            assert call["index"] == len(calls) and call["type"] == "function"
            calls.append({"name": call["function"]["name"], "arguments": call["function"]["arguments"]})
        else:
            assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
            assert call["index"] == len(calls) - 1
            calls[-1]["arguments"] += call["function"]["arguments"]
    assert joined == {"content": "Look:", "reasoning_content": "hm, two"}
    assert calls == [first["function"], second["function"]]


def test_usage_counts_the_reasoning():
    body = whole(chat(), events(OUTPUT, 5))
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    assert whole(response(), events(OUTPUT, 5))["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_all_logprobs_are_streamed_once():
    said = events(OUTPUT, 5)
    chunks = [chunk["choices"][0] for chunk in written(chat(logprobs=True), said)]
    streamed = sum(len(chunk["logprobs"]["content"]) for chunk in chunks if chunk["logprobs"])
    assert streamed == len(said) - 2 == len(whole(chat(logprobs=True), said)["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_anthropic_stream_says_what_the_message_says(size):
    body = whole(messages(), events(OUTPUT, size))
    thinking, text, first, second = body["content"]
    assert thinking == {"type": "thinking", "thinking": "hm, two", "signature": "signed 7"}
    assert text == {"type": "text", "text": "Look:"}
    assert first["id"].startswith("toolu_") and first["input"] == {"a": [1, "é"]} and first["name"] == "f"
    assert second["input"] == {} and body["stop_reason"] == "tool_use"

    stream = written(messages(), events(OUTPUT, size))
    assert [e["type"] for e in stream if "block" not in e["type"]] == ["message_start", "message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    open_block = False
    for event in stream:
        if event["type"] == "content_block_start":
            assert not open_block and event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            json_text, open_block = "", True
        elif event["type"] == "content_block_delta":
            assert open_block and event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                json_text += delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                blocks[-1][key] += delta[key]
        elif event["type"] == "content_block_stop":
            open_block = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(json_text)
    assert [{**block, "id": 0} for block in blocks] == [{**block, "id": 0} for block in body["content"]]
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_response_stream_says_what_the_response_says(size):
    body = whole(response(), events(OUTPUT, size))
    reasoning, message, first, second = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm, two"}] and reasoning["id"][:3] == "rs_"
    assert message["content"][0]["text"] == "Look:" and first["arguments"] == '{"a": [1, "é"]}'
    assert (first["name"], first["id"][:3], first["call_id"][:5]) == ("f", "fc_", "call_") and second["arguments"] == "{}"
    assert {item["status"] for item in body["output"]} == {"completed"}

    stream = written(response(), events(OUTPUT, size))
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    added = [event["item"] for event in stream if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [item["type"] for item in added] == kinds == [item["type"] for item in done]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert done == stream[-1]["response"]["output"] and stream[-1]["type"] == "response.completed"
    for index, (channel, wanted) in enumerate(
        [("reasoning_text", "hm, two"), ("output_text", "Look:"), ("function_call_arguments", '{"a": [1, "é"]}')]
    ):
        deltas = [e for e in stream if e["type"] == f"response.{channel}.delta" and e["output_index"] == index]
        assert "".join(event["delta"] for event in deltas) == wanted
        assert {event["item_id"] for event in deltas} == {done[index]["id"]}
        [end] = [e for e in stream if e["type"] == f"response.{channel}.done" and e["output_index"] == index]
        assert end.get("text", end.get("arguments")) == wanted


def test_g02_09_a_call_that_the_limit_cuts_off_is_not_presented_as_one():
    cut = 'Look:\n<tool_call>\n{"name": "f", "arguments": {"a": [1,'
    speech = Speech(hermes.FORMAT, tools={"f": Tool("f")})
    choice = whole(chat(speech), events(cut, 4, Reason.LENGTH))["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == 'Look:<tool_call>\n{"name": "f", "arguments": {"a": [1,'
    body = whole(messages(speech), events(cut, 4, Reason.LENGTH))
    assert body["stop_reason"] == "max_tokens" and {block["type"] for block in body["content"]} == {"text"}
    output = whole(response(speech), events(cut, 4, Reason.LENGTH))
    assert output["status"] == "incomplete" and output["output"][-1]["status"] == "incomplete"
