"""Group 2 of the scenarios over the whole server: what is put in stands in SCENARIOS.md, and what is right, too.

The model is a script's: it says what is written here as far as constraints let it. `jsonschema` judges arguments.
"""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import jsonschema
import pytest

from imp.chat.formats import hermes as hermes_format
from imp.chat.formats import qwen_xml
from imp.chat.formats.registry import FORMATS
from imp.chat.speech import TEXT_ONLY, Voice
from tests.chat.formats.corpus import of_format
from tests.http.spoken import Spoken, speaking
from tests.http.test_tools import ANY, HI, STRICT, _name, _schema, both, claude, gpt, hermes, run, tool

XML = Voice(qwen_xml.FORMAT)
SEARCH = '<tool_call>\n{"name":"search","arguments":{"q":"a}b","deep":{"k":[1,{"z":2}]}}}\n</tool_call>'


async def deltas(server: Spoken, **body: Any) -> list[dict[str, Any]]:
    """The deltas of a streamed chat as they stand on the wire."""
    answer = await server.post("/v1/chat/completions", **{"messages": HI, "max_tokens": 400, "stream": True} | body)
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    return [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_g02_01_joined_fragments_are_the_arguments(size):
    pieces = [SEARCH[i : i + size] for i in range(0, len(SEARCH), size)]

    async def main():
        async with speaking(pieces) as server:
            found = await both(server, tools=[tool("search", ANY)])
            assert found == (None, None, [("search", '{"q":"a}b","deep":{"k":[1,{"z":2}]}}')], "tool_calls")
            calls = [call for delta in await deltas(server, tools=[tool("search", ANY)]) for call in delta.get("tool_calls", ())]
            first, *later = calls
            assert set(first) == {"index", "id", "type", "function"} and first["type"] == "function"
            assert (first["index"], first["function"]["name"]) == (0, "search")
            assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in later)
            joined = "".join(call["function"].get("arguments", "") for call in calls)
            assert joined == '{"q":"a}b","deep":{"k":[1,{"z":2}]}}'

    run(main)


def test_g02_01_every_split_in_two_gives_the_same():
    async def main():
        async with speaking(*[[SEARCH[:at], SEARCH[at:]] for at in range(1, len(SEARCH))]) as server:
            for at in range(1, len(SEARCH)):
                body = {"messages": HI, "max_tokens": 400, "tools": [tool("search", ANY)]}
                [choice] = (await server.post("/v1/chat/completions", **body)).json()["choices"]
                [call] = choice["message"]["tool_calls"]
                assert call["function"] == {"name": "search", "arguments": '{"q":"a}b","deep":{"k":[1,{"z":2}]}}'}, at

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


NOW = [
    '{"name":"now","arguments":{}}',
    '{"name":"now"}',
    '{"name":"now","arguments":null}',
    '{"name": "now", "arguments": {}}',
]


@pytest.mark.parametrize("now", NOW)
def test_g02_03_no_arguments_are_an_empty_object(now):
    reply = f'<tool_call>{now}</tool_call>\n<tool_call>{{"name": "ping", "arguments": {{"n": 1}}}}</tool_call>\nbye'
    run(lambda: _zero(reply, Voice(hermes_format.FORMAT)))


def test_g02_03_no_arguments_in_markup_are_an_empty_object():
    ping = "<function=ping><parameter=n>1</parameter></function>"
    run(lambda: _zero(f"<function=now></function>{ping}\nbye", XML))
    run(lambda: _zero(f"<tool_call>\n<function=now>\n</function>\n</tool_call>\n{ping}bye", XML))


async def _zero(reply: str, voice: Voice) -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}}}
    async with speaking(reply, voice=voice) as server:
        found = await both(server, tools=[tool("now"), tool("ping", number)])
        assert found == (None, "bye", [("now", "{}"), ("ping", '{"n": 1}')], "tool_calls")


TYPES: dict[str, Any] = {
    "zip": {"type": "string"},
    "flag": {"type": "string"},
    "n": {"type": "integer"},
    "ratio": {"type": "number"},
    "ok": {"type": "boolean"},
    "tags": {"type": "array"},
    "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "free": {},
    "word": {"type": "string"},
}
SAID = ("00731", "true", "5.0", "1e2", "True", "[1,2]", "null", "7", "null")
MEANT = {"zip": "00731", "flag": "true", "n": 5, "ratio": 100.0, "ok": True, "tags": [1, 2], "opt": None, "free": 7, "word": "null"}


def xml(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def test_g02_04_values_in_markup_are_typed_by_the_schema():
    """`free`, of which the schema says nothing, is JSON where it is that."""

    async def main():
        async with speaking(xml("f", **dict(zip(TYPES, SAID, strict=True))), voice=XML) as server:
            tools = [tool("f", {"type": "object", "properties": TYPES})]
            _, content, [(name, arguments)], reason = await both(server, tools=tools)
            found = json.loads(arguments)
            assert (name, content, reason) == ("f", None, "tool_calls") and found == MEANT
            assert {key: type(value) for key, value in found.items()} == {
                key: float if key == "ratio" else type(value) for key, value in MEANT.items()
            }

    run(main)


@pytest.mark.parametrize("line", ["", "\n"])
def test_g02_05_a_value_that_does_not_fit_stays_a_string(line):
    values = {"x": "next Tuesday", "o": "not {JSON", "e": "__import__('os').getcwd()"}
    inner = "".join(f"<parameter={key}>{line}{value}{line}</parameter>{line}" for key, value in values.items())
    reply = f"<tool_call>{line}<function=f>{line}{inner}</function>{line}</tool_call>"
    kinds = {"x": {"type": "integer"}, "o": {"type": "object"}, "e": {"type": "number"}}

    async def main():
        async with speaking(reply, voice=XML) as server:
            tools = [tool("f", {"type": "object", "properties": kinds})]
            _, content, [(name, arguments)], reason = await both(server, tools=tools)
            assert (name, content, reason, json.loads(arguments)) == ("f", None, "tool_calls", values)
            answer = await server.post("/v1/chat/completions", messages=HI, tools=tools, max_tokens=400)
            [call] = answer.json()["choices"][0]["message"]["tool_calls"]
            assert "next Tuesday" in call["invalid_arguments"]

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


def odd(name: str, count: int) -> list[tuple[str, int]]:
    """Outputs of a format, cut and changed at random, and limits of tokens."""
    rng = random.Random(f"9{name}")
    sources = [case.output for case in of_format(FORMATS[name]) if 0 < len(case.output) < 300]
    marks = [*FORMATS[name].openers, *FORMATS[name].closers, '"', "'", "{", "}", "[", "]", ":", ",", "\\", "\n", "x", ""]
    found = []
    for _ in range(count):
        letters = list(rng.choice(sources))
        letters = letters[: rng.randrange(1, len(letters) + 1)]
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(marks)
        found.append(("".join(letters) or "x", rng.choice([400, rng.randrange(1, 100)])))
    return found


async def put_odd(name: str, count: int) -> None:
    """Answers are calls whose arguments are objects, or text; a limit ends them as one."""
    outputs = odd(name, count)
    tools = [tool(each.name, dict(each.parameters) or ANY) for each in of_format(FORMATS[name])[0].tools]
    async with speaking(*(output for output, _ in outputs for _ in range(2)), voice=Voice(FORMATS[name])) as server:
        for output, limit in outputs:
            body = {"messages": HI, "tools": tools, "max_tokens": limit}
            answer = await server.post("/v1/chat/completions", **body)
            assert answer.status_code == 200, (output, answer.text)
            [choice] = answer.json()["choices"]
            calls = choice["message"].get("tool_calls") or []
            assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls), output
            assert calls or choice["message"]["content"] is not None, output
            ends = {"length"} if limit < len(output) else {"tool_calls"} if calls else {"stop", "length"}
            assert choice["finish_reason"] in ends, (output, limit, choice)
            streamed = await server.post("/v1/chat/completions", **body, stream=True)
            assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
            assert '"error"' not in streamed.text, output


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_g02_09_odd_output_is_calls_or_text_and_never_an_error(name):
    """Thousands of each format: `make acceptance-formats`."""
    run(lambda: put_odd(name, 12))


def test_g02_11_text_before_a_call_and_a_marker_in_pieces():
    call = '{"name":"sh","arguments":{"cmd":"mkdir -p t/{a,b"}}'
    pieces = ["Let me look.", "\n", "<tool", "_call>", call, "</tool_call>"]

    async def main():
        async with speaking(pieces) as server:
            found = await both(server, tools=[tool("sh", ANY)])
            assert found == (None, "Let me look.", [("sh", '{"cmd":"mkdir -p t/{a,b"}')], "tool_calls")
            content = [delta.get("content") for delta in await deltas(server, tools=[tool("sh", ANY)])]
            assert [text for text in content if text] == ["Let me look."]  # at once, and nothing of the marker

    run(main)


BAD = {"type": "object", "properties": {"s": {"type": "string", "pattern": "(?=a)b"}}}
MANY: list[dict[str, Any]] = [
    *(tool(f"t{i}", STRICT) for i in range(30)),
    tool("empty", {"type": "object", "properties": {}}),
    tool("long", {"type": "object", "properties": {"s": {"type": "string", "maxLength": 100_000}}}),
    tool("many", {"type": "object", "properties": {"a": {"type": "array", "maxItems": 2000}}}),
    tool("none"),
    tool("bad", BAD),
]


@pytest.mark.parametrize("more", [[], [tool("strict", STRICT, strict=True)]])
def test_g02_12_a_schema_that_cannot_be_enforced_does_not_take_the_request_down(more, caplog):
    called = {"empty": "{}", "long": '{"s": "x"}', "many": '{"a": [1]}', "none": "{}", "bad": '{"s": 1}'}

    async def main():
        async with speaking(*(hermes(*each) for each in called.items() for _ in range(2))) as server:
            for name, arguments in called.items():
                found = await both(server, tools=[*MANY, *more])
                assert found == (None, None, [(name, arguments)], "tool_calls")
        async with speaking("x") as server:
            for extra, at in (({"tool_choice": "required"}, 34), ({"tools": [tool("bad", BAD, strict=True)]}, 0)):
                answer = await server.post("/v1/chat/completions", **{"messages": HI, "tools": MANY} | extra)
                error = answer.json()["error"]
                assert answer.status_code == 400 and error["param"] == f"tools[{at}].function.parameters"
                assert f"tools[{at}].function.parameters.properties.s" in error["message"], error
                assert "pattern" in error["message"]

    with caplog.at_level(logging.WARNING, "imp.constrain.calling"):
        run(main)
    # where a tool is strict, the others are enforced with it, as far as can be
    assert ("tools[34].function.parameters.properties.s" in caplog.text) == bool(more)


def test_g02_12_each_of_many_tools_can_be_forced():
    """Also those with counts of thousands; `jsonschema` judges."""

    async def main():
        async with speaking("x") as server:
            for name in ("t17", "empty", "long", "many", "none"):
                named: Any = {"type": "function", "function": {"name": name}}
                _, _, [(called, arguments)], reason = await both(server, tools=MANY[:-1], tool_choice=named)
                schema = next(_schema(each) for each in MANY if _name(each) == name) if name != "none" else {"maxProperties": 0}
                jsonschema.validate(json.loads(arguments), schema)
                assert (called, reason) == (name, "stop")

    run(main)


MISTAKEN = {"state": "maybe", "count": "3", "steps": "a,b", "extra": 1}
MODELS = {
    "hermes": (Voice(hermes_format.FORMAT), hermes("f", json.dumps(MISTAKEN))),
    "hermes, compact": (Voice(hermes_format.FORMAT), hermes("f", json.dumps(MISTAKEN, separators=(",", ":")))),
    "markup": (XML, xml("f", **{key: str(value) for key, value in MISTAKEN.items()})),
    "markup, alone": (XML, xml("f", **{key: str(value) for key, value in MISTAKEN.items()})[12:-13]),
}


@pytest.mark.parametrize("model", MODELS)
def test_g02_13_strict_arguments_are_enforced_also_where_the_model_may_choose(model):
    voice, mistaken = MODELS[model]

    async def main():
        async with speaking(mistaken, voice=voice) as server:
            _, _, calls, reason = await both(server, tools=[tool("f", STRICT, strict=True)])
            assert reason == "tool_calls" and [name for name, _ in calls] == ["f"]
            jsonschema.validate(json.loads(calls[0][1]), STRICT)
            assert server.bundle.runner.log[0]["parameters"]["constrained"]
            _, _, calls, _ = await both(server, tools=[tool("f", STRICT)])  # strict absent: not enforced, and JSON
            assert json.loads(calls[0][1]) == MISTAKEN or voice is XML
            assert not server.bundle.runner.log[-1]["parameters"]["constrained"]
        async with speaking("No call is needed.", voice=voice) as server:
            said = await both(server, tools=[tool("f", STRICT, strict=True)])
            assert said == (None, "No call is needed.", [], "stop")

    run(main)


def test_g02_13_all_calls_are_enforced_where_the_server_is_set_so():
    async def main():
        told = ("--set", "constrained.auto_calls=all")
        async with speaking(hermes("f", json.dumps(MISTAKEN)), options=told) as server:
            _, _, calls, _ = await both(server, tools=[tool("f", STRICT)])
            jsonschema.validate(json.loads(calls[0][1]), STRICT)

    run(main)
