"""Tool calls over the whole server, from the request to the answer, with the official SDKs (scenarios of group 2).

The model is a script's: it says what is written here as far as constraints let it. `jsonschema` judges arguments.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from imp.chat.arguments import problem
from tests.http.spoken import OPENS, TEMPLATE, THINKING, Spoken, speaking

HI: list[Any] = [{"role": "user", "content": "hi"}]
ANY: dict[str, Any] = {"type": "object"}
STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "state": {"enum": ["open", "closed"]},
        "count": {"type": "integer"},
        "steps": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["state", "count", "steps"],
    "additionalProperties": False,
}


VALID = '{"state": "open", "count": 1, "steps": ["x"]}'


def run(main: Any) -> None:
    asyncio.run(main())


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    schema = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **schema, **more}}


def hermes(name: str, arguments: str | None = "{}") -> str:
    inner = "" if arguments is None else f', "arguments": {arguments}'
    return f'<tool_call>\n{{"name": "{name}"{inner}}}\n</tool_call>'


def gpt(server: Spoken) -> openai.AsyncOpenAI:
    server.sdks.append(openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0))
    return server.sdks[-1]


def claude(server: Spoken) -> anthropic.AsyncAnthropic:
    server.sdks.append(anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0))
    return server.sdks[-1]


Told = tuple[str | None, str | None, list[tuple[str, str]], str | None]  # reasoning, content, calls, finish_reason


async def both(server: Spoken, **body: Any) -> Told:
    """What a chat says, the same streamed and whole."""
    client = gpt(server)
    asked: dict[str, Any] = {"model": "script", "messages": HI, "max_tokens": 400} | body
    whole = (await client.chat.completions.create(**asked)).choices[0]
    async with client.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert told(streamed) == told(whole)
    ids = [call.id for choice in (whole, streamed) for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == len(ids) and all(id.startswith("call_") for id in ids)
    return told(whole)


def told(choice: Any) -> Told:
    message = choice.message
    assert (choice.finish_reason != "tool_calls") or message.tool_calls
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return getattr(message, "reasoning_content", None), message.content or None, calls, choice.finish_reason


def _name(tool: dict[str, Any]) -> str:
    return tool["function"]["name"]


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    return tool["function"]["parameters"]


def test_legacy_functions_are_answered_in_their_own_words():
    async def main():
        async with speaking(hermes("f", '{"a": 1}')) as server:
            asked: dict[str, Any] = {"model": "script", "messages": HI, "functions": [{"name": "f", "parameters": ANY}]}
            choice = (await gpt(server).chat.completions.create(**asked)).choices[0]
            call = choice.message.function_call
            assert call and (call.name, call.arguments, choice.finish_reason) == ("f", '{"a": 1}', "function_call")
            assert choice.message.tool_calls is None
            name, arguments, reason = "", "", None
            async for chunk in await gpt(server).chat.completions.create(**asked, stream=True):
                delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
                if delta.function_call:
                    name += delta.function_call.name or ""
                    arguments += delta.function_call.arguments or ""
            assert (name, arguments, reason) == ("f", '{"a": 1}', "function_call")

    run(main)


def test_with_a_response_format_the_answer_is_that_or_a_call():
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}

    async def main():
        for reply, calls in (('{"a": 1}', []), (hermes("f", '{"b": 2}'), [("f", '{"b": 2}')])):
            async with speaking(reply) as server:
                found = await both(server, tools=[tool("f", ANY)], response_format=form)
                assert found[2] == calls
                if not calls:
                    assert "a" in json.loads(found[1] or "")

    run(main)


def test_unknown_kinds_are_ignored_and_named():
    async def main():
        async with speaking("ok") as server:
            for path, body in (
                ("/v1/chat/completions", {"messages": HI}),
                ("/v1/messages", {"messages": HI}),
                ("/v1/responses", {"input": "hi"}),
            ):
                answer = await server.post(path, **body, tools=[{"type": "web_search_x", "name": "w"}])
                assert answer.status_code == 200 and answer.headers["x-imp-ignored"] == "tools[0]", path

    run(main)


def test_g03_06_reasoning_and_calls_come_both():
    async def main():
        for reply, wanted in (
            ("<think>p</think>" + hermes("f", "{}"), ("p", None, [("f", "{}")], "tool_calls")),
            ("<think>ok</think>It is 3 C.", ("ok", "It is 3 C.", [], "stop")),
        ):
            async with speaking(reply, voice=THINKING) as server:
                assert await both(server, tools=[tool("f", ANY)]) == wanted
        async with speaking("<think>p</think>no", voice=THINKING) as server:
            reasoning, _, calls, reason = await both(server, tools=[tool("f")], tool_choice="required")
            assert (reasoning, reason) == ("p", "tool_calls") and calls[0] == ("f", "{}")

    run(main)


@pytest.mark.parametrize("template", [TEMPLATE, OPENS], ids=["the model opens it", "the prompt opens it"])
def test_g03_06_reasoning_comes_behind_a_tools_result_too(template):
    """Turn 1 thinks and calls, turn 2 answers what the tool gave: each streamed and whole, field by field."""
    opened = "" if template == OPENS else "<think>"
    first, second = opened + "p</think>" + hermes("f", '{"city": "Oslo"}'), opened + "ok</think>It is 3 C."
    more: Any = {"tools": [tool("f", ANY)], "max_tokens": 200}

    async def main():
        async with speaking(first, first, second, second, voice=THINKING, template=template) as server:
            assert await both(server, **more) == ("p", None, [("f", '{"city": "Oslo"}')], "tool_calls")
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
            turn = {"role": "assistant", "content": None, "reasoning_content": "p", "tool_calls": [call]}
            turns = [*HI, turn, {"role": "tool", "tool_call_id": "c", "content": "3"}]
            assert await both(server, messages=turns, **more) == ("ok", "It is 3 C.", [], "stop")
            assert "(p)!f city=Oslo<|tool|>3<|assistant|>" in server.prompts()[-1]

    run(main)


def test_arguments_that_break_the_schema_are_told():
    wrong = hermes("f", '{"state": "maybe", "count": 1, "steps": []}') + hermes("f", VALID) + hermes("g")

    async def main():
        async with speaking(wrong) as server:
            asked = {"messages": HI, "tools": [tool("f", STRICT)], "max_tokens": 400}
            message = (await server.post("/v1/chat/completions", **asked)).json()["choices"][0]["message"]
            first, second, third = message["tool_calls"]
            assert "state" in first["invalid_arguments"] and "maybe" in first["invalid_arguments"]
            assert "invalid_arguments" not in second and "g" in third["invalid_arguments"]
            assert message["tool_call_validation_error"] == "f: " + first["invalid_arguments"]
            error = {"tool_call_validation_error": message["tool_call_validation_error"]}
            stream = (await server.post("/v1/chat/completions", **asked, stream=True)).text
            assert json.loads(stream.split("data: ")[-2])["choices"][0]["delta"] == error
            _, _, calls, _ = await both(server, tools=[tool("f", STRICT)])
            assert len(calls) == 3

    run(main)


def test_arguments_that_break_the_schema_are_told_in_every_dialect():
    """Whole and streamed; and what a client sends back with these fields in it is understood."""
    bad = '{"state": "maybe", "count": 1, "steps": []}'
    said = hermes("f", bad) + hermes("f", VALID)

    def data(stream: str, kind: str) -> list[Any]:
        events = (json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {"))
        return [event for event in events if event["type"] == kind]

    async def main():
        async with speaking(said) as server:
            asked: Any = {"messages": HI, "max_tokens": 400, "tools": [{"name": "f", "input_schema": STRICT}]}
            whole = (await server.post("/v1/messages", **asked)).json()
            first, second = whole["content"]
            assert "maybe" in first["invalid_arguments"] and "invalid_arguments" not in second
            assert whole["tool_call_validation_error"] == "f: " + first["invalid_arguments"]
            stream = (await server.post("/v1/messages", **asked, stream=True)).text
            [delta] = data(stream, "message_delta")
            assert delta["delta"]["tool_call_validation_error"] == whole["tool_call_validation_error"]
            given = [{"type": "tool_result", "tool_use_id": each["id"], "content": "1"} for each in (first, second)]
            turns = [*HI, {"role": "assistant", "content": whole["content"]}, {"role": "user", "content": given}]
            assert (await server.post("/v1/messages", **asked | {"messages": turns})).status_code == 200

            asked = {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": STRICT, "strict": False}]}
            whole = (await server.post("/v1/responses", **asked)).json()
            first, second = whole["output"]
            assert "maybe" in first["invalid_arguments"] and "invalid_arguments" not in second
            assert whole["tool_call_validation_error"] == "f: " + first["invalid_arguments"]
            stream = (await server.post("/v1/responses", **asked, stream=True)).text
            items = [event["item"] for event in data(stream, "response.output_item.done")]
            assert [item.get("invalid_arguments") for item in items] == [first["invalid_arguments"], None]
            [done] = data(stream, "response.completed")
            assert done["response"]["tool_call_validation_error"] == whole["tool_call_validation_error"]
            results = [
                {"type": "function_call_output", "call_id": c["call_id"], "output": "1"} for c in (first, second)
            ]
            again = [{"role": "user", "content": "hi"}, *whole["output"], *results]
            assert (await server.post("/v1/responses", **asked | {"input": again})).status_code == 200
        async with speaking(hermes("f", VALID)) as server:
            for path, body in (("/v1/messages", {"messages": HI}), ("/v1/responses", {"input": "hi"})):
                shape = {"name": "f", "input_schema": STRICT} if "messages" in body else asked["tools"][0]
                answer = (await server.post(path, **body, tools=[shape])).text
                assert '"f"' in answer and "invalid" not in answer and "validation" not in answer

    run(main)


VALUES = [
    {},
    {"a": 1},
    {"a": 1.0},
    {"a": "x"},
    {"a": None, "b": []},
    {"a": True},
    {"b": [1, "x"]},
    {"b": ["x"], "c": {}},
]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"properties": {"a": {"type": ["string", "null"], "minLength": 1}}, "additionalProperties": False},
    {"properties": {"a": {"enum": [1, None]}, "b": {"type": "array", "items": {"type": "string"}, "minItems": 1}}},
    {"properties": {"a": {"anyOf": [{"type": "boolean"}, {"minimum": 2, "type": "number"}]}}},
    {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "number", "exclusiveMaximum": 1}}},
    {"allOf": [{"required": ["b"]}, {"maxProperties": 1}]},
    {"properties": {"c": False}, "additionalProperties": {"type": ["integer", "array"]}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_is_told_of_arguments_is_what_jsonschema_says(schema):
    for value in VALUES:
        fits = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert (problem(json.dumps(value), schema) is None) == fits, value
