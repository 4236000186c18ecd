"""Tool calls over the whole server, from the request to the answer, with the official SDKs (scenarios of group 2).

The model is a script's: it says what is written here as far as constraints let it. `jsonschema` judges arguments.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from imp.chat.arguments import problem
from imp.chat.speech import TEXT_ONLY, Voice
from tests.http.spoken import HERMES, THINKING, Spoken, speaking

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


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_g02_01_joined_fragments_are_the_arguments(size):
    text = hermes("search", '{"q":"a}b","deep":{"k":[1,{"z":2}]}}')
    pieces = [text[i : i + size] for i in range(0, len(text), size)]

    async def main():
        async with speaking(pieces) as server:
            found = await both(server, tools=[tool("search", ANY)])
            assert found == (None, None, [("search", '{"q":"a}b","deep":{"k":[1,{"z":2}]}}')], "tool_calls")

    run(main)


def test_g02_02_parallel_calls_have_indices_and_ids_of_their_own():
    reply = hermes("add", '{"a": 2, "b": 2}') + "\n" + hermes("weather", '{"city": "Oslo"}')
    calls = [("add", '{"a": 2, "b": 2}'), ("weather", '{"city": "Oslo"}')]

    async def main():
        async with speaking(reply) as server:
            tools = [tool("add", ANY), tool("weather", ANY)]
            assert (await both(server, tools=tools))[2:] == (calls, "tool_calls")
            assert (await both(server, tools=tools, parallel_tool_calls=False))[2:] == (calls[:1], "tool_calls")
            asked = {"max_tokens": 400, "messages": HI, "model": "script"}
            given: list[Any] = [{"name": name, "input_schema": ANY} for name in ("add", "weather")]
            async with claude(server).messages.stream(**asked, tools=given) as stream:
                message = await stream.get_final_message()
            inputs = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
            assert inputs == [("add", {"a": 2, "b": 2}), ("weather", {"city": "Oslo"})]
            assert message.stop_reason == "tool_use"
            choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
            message = await claude(server).messages.create(**asked, tools=given, tool_choice=choice)
            assert [block.type for block in message.content] == ["tool_use"]

    run(main)


def test_g02_03_no_arguments_are_an_empty_object():
    """The spellings a model may use where nothing is enforced: the answer of a model without enforceable calls."""
    assert HERMES.format is not None
    unenforced = Voice(replace(HERMES.format, envelopes=()))

    async def main():
        for arguments in ("{}", None, "null"):
            reply = hermes("now", arguments) + "\n" + hermes("ping", '{"n": 1}') + "\nbye"
            async with speaking(reply, voice=unenforced) as server:
                found = await both(server, tools=[tool("now"), tool("ping", ANY)])
                assert found == (None, "bye", [("now", "{}"), ("ping", '{"n": 1}')], "tool_calls")

    run(main)


HISTORY = "<|user|>hi<|assistant|>!weather city=Paris<|tool|>mild<|user|>and?<|assistant|>"


@pytest.mark.parametrize("arguments", ['{"city":"Paris"}', "", "null", "[1]", "not json"])
def test_g02_07_arguments_of_the_history_are_an_object_for_the_template(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "mild"},
        {"role": "user", "content": "and?"},
    ]

    async def main():
        async with speaking("ok") as server:
            answer = await server.post("/v1/chat/completions", messages=messages, tools=[tool("weather", ANY)])
            if arguments in ('{"city":"Paris"}', "", "null"):
                assert answer.status_code == 200, answer.text
                wanted = HISTORY if "Paris" in arguments else HISTORY.replace(" city=Paris", "")
                assert server.prompts() == ["[weather]" + wanted]
            else:
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"

    run(main)


def test_g02_08_a_call_that_is_required_comes_and_its_end_is_told_truly():
    prose = "I would rather talk about the weather."

    async def main():
        async with speaking(prose) as server:
            tools = [tool("f", STRICT), tool("g", STRICT | {"properties": {"x": {"const": 7}}, "required": ["x"]})]
            _, content, calls, reason = await both(server, tools=tools, tool_choice="required")
            assert content is None and calls and reason == "tool_calls"
            for name, arguments in calls:
                jsonschema.validate(json.loads(arguments), next(_schema(t) for t in tools if _name(t) == name))
            named: Any = {"type": "function", "function": {"name": "g"}}
            assert await both(server, tools=tools, tool_choice=named) == (None, None, [("g", '{"x":7}')], "stop")
            allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("g")]}}
            found = await both(server, tools=tools, tool_choice=allowed, parallel_tool_calls=False)
            assert found == (None, None, [("g", '{"x":7}')], "tool_calls")
            assert (await both(server, tools=tools, tool_choice="none")) == (None, prose, [], "stop")
            assert server.prompts()[-1] == "<|user|>hi<|assistant|>" and "[f][g]" in server.prompts()[0]

            given: list[Any] = [{"name": _name(t), "input_schema": _schema(t)} for t in tools]
            asked = {"max_tokens": 400, "messages": HI, "model": "script"}
            one: Any = {"type": "tool", "name": "g"}
            message = await claude(server).messages.create(**asked, tools=given, tool_choice=one)
            [block] = message.content
            assert (block.type, block.name, block.input, message.stop_reason) == ("tool_use", "g", {"x": 7}, "tool_use")

            flat: list[Any] = [{"type": "function", **t["function"]} for t in tools]
            one = {"type": "function", "name": "g"}
            async with gpt(server).responses.stream(
                model="script", input="hi", tools=flat, tool_choice=one, max_output_tokens=400
            ) as events:
                response = await events.get_final_response()
            assert [(item.type, item.name, item.arguments) for item in response.output] == [
                ("function_call", "g", '{"x":7}')
            ]
            assert response.tools[1].name == "g" and response.tool_choice.name == "g"

    run(main)


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


def test_g02_11_text_before_a_call_and_a_marker_in_pieces():
    pieces = [
        "Let me look.",
        "\n",
        "<tool",
        "_call>",
        '{"name":"sh","arguments":{"cmd":"mkdir -p t/{a,b"}}',
        "</tool_call>",
    ]
    spaced = [*pieces[:4], "\n", '{"name": "sh", "arguments": ', '{"cmd":"mkdir -p t/{a,b"}', "}\n", pieces[-1]]

    async def main():
        async with speaking(spaced) as server:
            found = await both(server, tools=[tool("sh", ANY)])
            assert found == (None, "Let me look.", [("sh", '{"cmd":"mkdir -p t/{a,b"}')], "tool_calls")

    run(main)


BAD = {"type": "object", "properties": {"s": {"type": "string", "pattern": "(?=a)b"}}}


def test_g02_12_a_schema_that_cannot_be_enforced_does_not_take_the_request_down(caplog):
    tools = [tool(f"t{i}", STRICT) for i in range(30)]
    tools += [
        tool("empty", {"type": "object", "properties": {}}),
        tool("long", {"type": "object", "properties": {"s": {"type": "string", "maxLength": 100_000}}}),
        tool("many", {"type": "object", "properties": {"a": {"type": "array", "maxItems": 2000}}}),
        tool("none"),
        tool("bad", BAD),
    ]

    async def main():
        for name, arguments in (
            ("empty", "{}"),
            ("long", '{"s": "x"}'),
            ("many", '{"a": [1]}'),
            ("none", "{}"),
            ("bad", '{"s": 1}'),
        ):
            async with speaking(hermes(name, arguments)) as server:
                found = await both(server, tools=tools)
                assert found == (None, None, [(name, arguments)], "tool_calls")
        async with speaking("x") as server:
            for more in ({"tool_choice": "required"}, {"tools": [tool("bad", BAD, strict=True)]}):
                answer = await server.post("/v1/chat/completions", **{"messages": HI, "tools": tools} | more)
                at = 34 if "tool_choice" in more else 0
                error = answer.json()["error"]
                assert answer.status_code == 400 and error["param"] == f"tools[{at}].function.parameters"
                assert f"tools[{at}].function.parameters.properties.s" in error["message"], error
                assert "pattern" in error["message"]

    with caplog.at_level(logging.WARNING, "imp.constrain.calling"):
        run(main)
    assert "tools[34].function.parameters.properties.s" in caplog.text


def test_g02_13_strict_arguments_are_enforced_also_where_the_model_may_choose():
    mistaken = hermes("f", '{"state": "maybe", "count": "3", "steps": "a,b", "extra": 1}')

    async def main():
        async with speaking(mistaken) as server:
            _, content, calls, reason = await both(server, tools=[tool("f", STRICT, strict=True)])
            assert reason == "tool_calls" and len(calls) == 1, content
            jsonschema.validate(json.loads(calls[0][1]), STRICT)
        async with speaking("No call is needed.") as server:
            assert await both(server, tools=[tool("f", STRICT, strict=True)]) == (
                *(None, "No call is needed.", [], "stop"),
            )

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


def test_g02_08_what_cannot_be_enforced_is_refused():
    async def main():
        async with speaking("ok", voice=TEXT_ONLY) as server:
            body = {"messages": HI, "tools": [tool("f", ANY)]}
            assert (await server.post("/v1/chat/completions", **body)).status_code == 200
            for more, param in (
                ({"tool_choice": "required"}, "tool_choice"),
                ({"tools": [tool("f", ANY, strict=True)]}, "tools[0].function.strict"),
            ):
                answer = await server.post("/v1/chat/completions", **(body | more))
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

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


def test_arguments_that_break_the_schema_are_told():
    """Where nothing is enforced: the format of this model has no way of writing calls that could be."""
    assert HERMES.format is not None
    unenforced = Voice(replace(HERMES.format, envelopes=()))
    wrong = hermes("f", '{"state": "maybe", "count": 1, "steps": []}') + hermes("f", VALID) + hermes("g")

    async def main():
        async with speaking(wrong, voice=unenforced) as server:
            asked = {"messages": HI, "tools": [tool("f", STRICT)], "max_tokens": 400}
            message = (await server.post("/v1/chat/completions", **asked)).json()["choices"][0]["message"]
            first, second, third = message["tool_calls"]
            assert "state" in first["invalid_arguments"] and "maybe" in first["invalid_arguments"]
            assert "invalid_arguments" not in second and "g" in third["invalid_arguments"]
            assert message["tool_call_validation_error"] == "f: " + first["invalid_arguments"]
            _, _, calls, _ = await both(server, tools=[tool("f", STRICT)])
            assert len(calls) == 3

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
