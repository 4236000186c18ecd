"""Calls and reasoning that come several tokens in a step: what a client reads is the same, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from tests.http.spoken import THINKING, Spoken, speaking
from tests.http.test_tools import HI, both, hermes, tool

ARGUMENTS = '{"q": "a}b", "deep": {"k": [1, {"z": 2}]}}'
CALL = hermes("search", ARGUMENTS)
SEARCH = tool("search", {"type": "object", "properties": {"q": {"type": "string"}, "deep": {"type": "object"}}})


def guess(server: Spoken, folder: Any, most: int) -> None:
    """From now on up to `most` tokens are guessed and come in one step."""
    server.bundle.scheduler.speculation = Speculation(SuffixLookup(folder, 1, 0), most=most)
    facts = replace(server.bundle.facts, no_guesses="", no_predictions="")
    server.services.loaded = replace(server.bundle, facts=facts)


def predicted(text: str) -> dict[str, Any]:
    return {"extra_body": {"prediction": {"type": "content", "content": text}}}


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_g02_01_fragments_of_multi_token_steps_join_to_the_whole(kernel_folder, most):
    async def main() -> None:
        replies = [CALL, "Looking it up." + CALL + CALL]
        async with speaking(*(reply for reply in replies for _ in range(2))) as server:
            guess(server, kernel_folder, most)
            for text, reply in ((None, replies[0]), ("Looking it up.", replies[1])):
                asked = predicted(reply) | {"tools": [SEARCH]}
                _, content, calls, reason = await both(server, **asked)
                assert (content, reason) == (text, "tool_calls") and len(calls) == reply.count("<tool_call>")
                for name, arguments in calls:
                    assert name == "search" and json.loads(arguments) == json.loads(ARGUMENTS)
            stats = server.bundle.scheduler.snapshot()
            characters = 2 * sum(map(len, replies))
            assert stats.accepted > characters * most / (most + 1) * 0.8, "the steps gave one token each"

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("most", [1, 3, 16])
def test_g03_09_the_grammar_begins_behind_the_marker_inside_a_step(kernel_folder, most):
    """The script would write words behind its reasoning; the last token of that and the first of the answer are drawn in
    one step, and the answer has its form from its first character on."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    reply = ["<think>", *"let me see", "</think>", *'words {"n": 7}']

    async def main() -> None:
        async with speaking(reply, reply, voice=THINKING, control_tokens=["<think>", "</think>"]) as server:
            asked = {"response_format": form, "extra_body": {"enable_thinking": True}}
            plain = await both(server, **asked)
        async with speaking(reply, reply, voice=THINKING, control_tokens=["<think>", "</think>"]) as server:
            guess(server, kernel_folder, most)
            asked["extra_body"] |= predicted("<think>let me see</think>words")["extra_body"]
            assert await both(server, **asked) == plain
            assert server.bundle.scheduler.snapshot().drafted
        jsonschema.validate(json.loads(plain[1] or ""), schema)
        assert plain[0] == "let me see"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_messages_are_handed_over(kernel_folder):
    """Anthropic's stream of the same: fragments of a tool's input join to JSON."""

    async def main() -> None:
        async with speaking(CALL, CALL) as server:
            guess(server, kernel_folder, 16)
            body = {"model": "script", "messages": HI, "max_tokens": 300}
            body["tools"] = [{"name": "search", "input_schema": {"type": "object"}}]
            whole = (await server.post("/v1/messages", **body)).json()
            answer = await server.post("/v1/messages", **body, stream=True)
            events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
            pieces = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
            assert json.loads("".join(pieces)) == whole["content"][0]["input"] == json.loads(ARGUMENTS)

    asyncio.run(asyncio.wait_for(main(), 60))
