"""Group 4 of the scenarios over HTTP: what clients are told, while others stream on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from imp.constrain.compiler import Compiler
from imp.constrain.vocab import VocabTables
from tests.constrain.test_scenarios import BOMBS
from tests.http.scripted import EOS, serving, tokens_of

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
ROUTE = "/v1/chat/completions"
PIECES = ["{", '"a"', ":", "12", "}"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[a-"}, "offset 0"),
    ({"guided_regex": "(?P<"}, "offset 0"),
    ({"guided_regex": "(?<=x)y"}, "lookbehind"),
    ({"guided_regex": "(?=a)b"}, "lookahead"),
    ({"guided_regex": "\\1"}, "backreference"),
    ({"guided_regex": "a{1000}{1000}"}, "offset"),
    ({"guided_grammar": "root ::= "}, "line 1"),
    ({"guided_grammar": "root ::= self\nself ::= self"}, "matches no finite text"),
    ({"guided_grammar": 'root ::= a "x"'}, "'a' is used but not defined"),
    ({"guided_grammar": "root ::= " + "(" * 50_000 + '"x"' + ")" * 50_000}, "nesting"),
    ({"json_schema": {"type": "strnig"}}, "strnig"),
    ({"guided_json": '"a schema"'}, "guided_json"),
    ({"json_schema": False}, "no value"),
]


def compiler(code_folder: Path) -> Compiler:
    """Over the scripted model's vocabulary."""
    table = [bytes([byte]) for byte in range(256)] + [b"<eos>", *tokens_of(PIECES)[1]]
    return Compiler(lambda: VocabTables.build(table, {EOS}, {EOS}, code_folder), cache_dir=code_folder)


@pytest.fixture
def made(kernel_folder: Path) -> Compiler:
    found = compiler(kernel_folder)
    found.warm()
    return found


async def chat(harness: Any, stream: bool, **fields: Any) -> tuple[str, str]:
    """Text and finish reason."""
    if not stream:
        answer = await harness.post(ROUTE, **CHAT, **fields)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        return choice["message"]["content"] or "", choice["finish_reason"]
    events = [event for event in await harness.sse(ROUTE, **CHAT, **fields) if event != "[DONE]"]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(c["delta"].get("content") or "" for c in choices), choices[-1]["finish_reason"]


def test_g04_08_bad_constraints_are_400s_that_name_the_place_while_streams_go_on(made):
    async def test() -> None:
        async with serving(PIECES, constraints=made, step_s=0.01) as harness:
            streams = [asyncio.create_task(chat(harness, True)) for _ in range(4)]
            for i in range(52):
                fields, says = BAD[i % len(BAD)]
                answer = await harness.post(ROUTE, **CHAT, **fields)
                error = answer.json()["error"]
                assert answer.status_code == 400 and error["type"] == "invalid_request_error", answer.text
                assert says in error["message"] and error["param"] in fields
            assert await asyncio.gather(*streams) == [("".join(PIECES), "stop")] * 4

    asyncio.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_g04_13_truncation_and_stop_strings(made, stream):
    async def test() -> None:
        async with serving(PIECES, constraints=made) as harness:
            assert await chat(harness, stream, json_schema=SCHEMA) == ('{"a":12}', "stop")
            assert await chat(harness, stream, json_schema=SCHEMA, max_tokens=3) == ('{"a":', "length")
            assert await chat(harness, stream, json_schema=SCHEMA, stop=["}"]) == ('{"a":12', "stop")

    asyncio.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_g04_13_a_dead_end_is_an_error_and_never_a_stop(made, stream):
    """The scripted model heeds no mask: what it says against the schema must not pass for an answer."""

    async def test() -> None:
        async with serving(["{", EOS], constraints=made) as harness:
            if stream:
                events = await harness.sse(ROUTE, **CHAT, json_schema=SCHEMA)
                assert "required format" in json.dumps(events[-1] if events[-1] != "[DONE]" else events[-2])
            else:
                answer = await harness.post(ROUTE, **CHAT, json_schema=SCHEMA)
                assert answer.status_code == 500 and "required format" in answer.json()["error"]["message"]
            assert (await harness.client.get("/health")).status_code == 200

    asyncio.run(test())


def test_g04_09_a_grammar_of_the_empty_text(made):
    async def test() -> None:
        async with serving([EOS], constraints=made) as harness:
            answer = (await harness.post(ROUTE, **CHAT, guided_grammar='root ::= ""')).json()
            assert (answer["choices"][0]["message"]["content"] or "") == ""
            assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] <= 1

    asyncio.run(test())


@pytest.mark.slow
def test_g04_02_bombs_are_answered_while_health_is(made):
    async def test() -> None:
        async with serving(PIECES, constraints=made) as harness:
            waits: list[float] = []
            over = asyncio.Event()

            async def watch() -> None:
                while not over.is_set():
                    began = time.monotonic()
                    assert (await harness.client.get("/health")).status_code == 200
                    waits.append(time.monotonic() - began)
                    await asyncio.sleep(0.02)

            watcher = asyncio.create_task(watch())
            for schema in BOMBS:
                answer = await harness.post(ROUTE, **CHAT, json_schema=schema, max_tokens=1)
                assert answer.status_code in (200, 400, 413, 500), answer.text
                if answer.status_code != 200:
                    message = answer.json()["error"]["message"]
                    # a bomb that compiles is answered against its schema by a script, which is a dead end
                    assert answer.status_code < 500 or "required format" in message
            over.set()
            await watcher
            print(f"\n/health while bombs compile: {max(waits) * 1e3:.0f} ms at most, {len(waits)} asked")
            assert len(waits) > 3

    asyncio.run(test())
