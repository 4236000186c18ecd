"""The Responses dialect over a real socket, the real engine and a scripted model. Ids in comments are scenarios."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.http.dialects import responses, responses_items
from imp.http.errors import ApiError
from imp.http.seal import Seal
from imp.types import ConstraintKind, ConstraintSpec
from tests.http.responses_judge import PATH, both, check_stream, create, parsed_events, stream, text_of
from tests.http.scripted import Harness, serving
from tests.http.test_timings import check as check_timings

ASK: dict[str, Any] = {"input": "hi", "temperature": 0}
SHOWN = (  # shows everything a history may hold
    "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.reasoning_content %}?{{ m.reasoning_content }}{% endif %}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}:{{ c.function.arguments.x }}{% endfor %}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant|{% endif %}"
)


def run(test: Any) -> None:
    asyncio.run(test)


def sdk(server: Harness) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


async def prompt_of(server: Harness, **body: Any) -> str:
    """The prompt the engine got for a request, as text."""
    seen: list[Any] = []
    submit = server.scheduler.submit

    def watching(request: Any, now: float) -> Any:
        seen.append(request)
        return submit(request, now)

    server.scheduler.submit = watching  # type: ignore[method-assign]
    try:
        await create(server, **body)
    finally:
        server.scheduler.submit = submit  # type: ignore[method-assign]
    return bytes(seen[0].prompt).decode()


def test_a_plain_answer_has_every_key_and_says_the_request_back():
    async def main():
        async with serving(["Hello", " there"]) as server:
            whole = await both(server, **ASK)
            for key in ("id", "created_at", "completed_at"):
                assert whole.pop(key)
            [item] = whole.pop("output")
            item.pop("id")
            assert item == {
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}],
            }
            prompt = len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
            assert whole == {
                "object": "response",
                "status": "completed",
                "incomplete_details": None,
                "error": None,
                "model": "toy",
                "previous_response_id": None,
                "instructions": None,
                "tools": [],
                "tool_choice": "auto",
                "truncation": "disabled",
                "parallel_tool_calls": True,
                "text": {"format": {"type": "text"}},
                "top_p": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "top_logprobs": 0,
                "temperature": 0,
                "reasoning": {"effort": None, "summary": None},
                "usage": {
                    "input_tokens": prompt,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": 3,  # the end token counts
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": prompt + 3,
                },
                "max_output_tokens": None,
                "max_tool_calls": None,
                "store": True,
                "background": False,
                "service_tier": "default",
                "metadata": {},
                "safety_identifier": None,
                "prompt_cache_key": None,
                "user": None,
            }

    run(main())


def test_what_was_asked_is_said_back():
    async def main():
        async with serving() as server:
            said: dict[str, Any] = {
                "instructions": "Be brief.",
                "max_output_tokens": 9,
                "max_tool_calls": 2,
                "metadata": {"a": "b"},
                "parallel_tool_calls": False,
                "store": False,
                "temperature": 0.5,
                "top_p": 0.25,
                "presence_penalty": 1,
                "frequency_penalty": -1,
                "truncation": "auto",
                "user": "u",
                "safety_identifier": "s",
                "prompt_cache_key": "k",
                "reasoning": {"effort": "low", "summary": "auto"},
                "text": {"format": {"type": "text"}, "verbosity": "low"},
                "tool_choice": "none",
                "top_logprobs": 1,
            }
            whole = await create(server, input="hi", **said)
            assert {name: whole[name] for name in said} == said
            assert (await create(server, input="hi", tools=[], tool_choice=None, text=None))["tool_choice"] == "auto"

    run(main())


def test_the_stream_has_the_order_its_clients_rely_on():  # G08-01
    async def main():
        async with serving(["a", "", "b", "\U0001f98a".encode()[:2], "\U0001f98a".encode()[2:], "c"]) as server:
            many = await asyncio.gather(*(stream(server, **ASK) for _ in range(8)))
            for events in many:
                assert text_of(check_stream(events)) == "ab\U0001f98ac"
            assert [event["type"] for event in many[0]] == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                *["response.output_text.delta"] * 4,
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ]
            assert len({events[0]["response"]["id"] for events in many}) == 8

    run(main())


@pytest.mark.parametrize(
    "body, status, text",
    [
        ({}, "completed", "one two END three"),
        ({"max_output_tokens": 2}, "incomplete", "one two"),
        ({"stop": ["END"]}, "completed", "one two "),
        ({"stop": "one"}, "completed", ""),
    ],
)
def test_how_a_response_ends(body, status, text):
    async def main():
        async with serving(["one", " two", " EN", "D", " three"]) as server:
            whole = await both(server, **ASK, **body)
            assert (whole["status"], text_of(whole)) == (status, text)
            assert whole["output"][-1]["status"] == status
            if status == "incomplete":
                assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
                assert whole["usage"]["output_tokens"] == 2

    run(main())


def test_nothing_said_is_an_empty_message():
    async def main():
        async with serving([]) as server:
            whole = await both(server, **ASK)
            assert text_of(whole) == "" and whole["usage"]["output_tokens"] == 1

    run(main())


def test_logprobs_come_where_they_are_asked_for():
    async def main():
        async with serving(["Hi", b"\xc3", b"\xa9"]) as server:
            for asked in ({"include": [responses.LOGPROBS]}, {"include": [responses.LOGPROBS], "top_logprobs": 3}):
                whole = await both(server, **ASK, **asked)
                [part] = whole["output"][0]["content"]
                entries = part["logprobs"]
                assert b"".join(bytes(e["bytes"]) for e in entries).decode().removesuffix("<eos>") == "Hi\u00e9"
                for entry in entries:
                    assert set(entry) == {"token", "bytes", "logprob", "top_logprobs"}
                    assert len(entry["top_logprobs"]) == asked.get("top_logprobs", 0)
                    assert all(set(top) == {"token", "bytes", "logprob"} for top in entry["top_logprobs"])
                deltas = [e for e in await stream(server, **ASK, **asked) if e["type"] == "response.output_text.delta"]
                sent = [entry["token"] for event in deltas for entry in event["logprobs"]]
                assert sent == [entry["token"] for entry in entries][: len(sent)] and len(sent) >= 3
            assert (await create(server, **ASK, top_logprobs=2))["output"][0]["content"][0]["logprobs"]

    run(main())


def test_a_failure_inside_a_stream_has_both_forms_and_then_the_failed_response():
    async def main():
        async with serving(["one", " two", " three"], fail_at=2) as server:
            events = await stream(server, **ASK)
            last = check_stream(events)
            error = events[-2]
            assert error["type"] == "error" and error["code"] == "engine_step_failed" and error["param"] is None
            assert error["error"] == {
                "type": "internal_error",
                "code": "engine_step_failed",
                "message": error["message"],
                "param": None,
            }
            assert "passwd" not in str(events)
            assert last["status"] == "failed" and last["error"]["code"] == "server_error"
            assert text_of(last) == "one two" and last["output"][0]["status"] == "incomplete"
            with pytest.raises(openai.APIError):
                async for _ in await sdk(server).responses.create(model="toy", input="hi", stream=True):
                    pass
            assert (await server.post(PATH, **ASK)).status_code == 500

    run(main())


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 7}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}


TURNS: list[tuple[Any, str]] = [
    ("hi", "<user|hi>"),
    ([{"role": "user", "content": "hi"}], "<user|hi>"),
    ([{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}], "<user|a\nb>"),
    ([{"role": r, "content": r[0]} for r in ("system", "user")], "<system|s><user|u>"),
    (
        [{"type": "message", "role": "assistant", "id": "x", "status": "incomplete", "content": "a"}],
        "<assistant|a>",
    ),
    ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": None}], "<assistant|no>"),
    ([CALL, OUTPUT], "<assistant|!f:7><tool f|42>"),
    ([CALL, OUTPUT | {"output": [{"type": "input_text", "text": "4"}]}], "<assistant|!f:7><tool f|4>"),
    (
        [CALL, CALL | {"call_id": "c2", "name": "g"}, OUTPUT, OUTPUT | {"call_id": "c2"}],
        "<assistant|!f:7!g:7><tool f|42><tool g|42>",
    ),
    ([CALL | {"arguments": ""}, OUTPUT], "<assistant|!f:><tool f|42>"),  # as in chats: no arguments
    ([CALL | {"arguments": "null"}, OUTPUT], "<assistant|!f:><tool f|42>"),
    ([CALL | {"arguments": '{"x": ', "status": "incomplete"}], '<assistant|f{"x": >'),  # cut off: what there is of it
    ([CALL | {"status": "incomplete"}, OUTPUT], "<assistant|!f:7><tool f|42>"),
    (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "a b"},
        ],
        "<assistant|!sh:><tool sh|a b>",
    ),
    (  # G08-02
        [
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "x", "status": "odd"},
            OUTPUT,
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "ok", "annotations": []}],
            },
            {"role": "user", "content": "more"},
        ],
        "<user|hi><assistant|!f:><tool f|42><assistant|ok><user|more>",
    ),
    (
        [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
            {"role": "assistant", "content": "a"},
            CALL,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "long"}]},
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "content": "c"},
        ],
        "<assistant?short|a!f:7><assistant?long|b><assistant|c>",
    ),
]


def test_items_become_the_turns_they_stand_for():
    async def main():
        async with serving(template=SHOWN) as server:
            for items, prompt in TURNS:
                assert await prompt_of(server, input=items) == prompt + "<assistant|"
                with_system = await prompt_of(server, input=items, instructions="I")
                assert with_system == f"<system|I>{prompt}<assistant|"
                counted = await server.post(PATH + "/input_tokens", input=items, instructions="I")
                assert counted.json() == {"object": "response.input_tokens", "input_tokens": len(with_system)}

    run(main())


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"type": ["message"]}]}, "input[0].type"),
    ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "odd"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": "x", "id": 5}]}, "input[0].id"),
    ({"input": [{"role": "assistant", "content": "x", "phase": "odd"}]}, "input[0].phase"),
    ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
    ({"input": [CALL | {"arguments": "not json"}]}, "input[0].arguments"),
    ({"input": [{"role": "user", "content": "hi"}, CALL | {"arguments": "[1]"}]}, "input[1].arguments"),
    ({"input": [CALL | {"arguments": '{"x": 7'}]}, "input[0].arguments"),
    ({"input": [CALL | {"name": None}]}, "input[0].name"),
    ({"input": [CALL, OUTPUT | {"output": 5}]}, "input[1].output"),
    ({"input": [CALL, OUTPUT | {"output": [IMAGE]}]}, "input[1].output[0]"),
    ({"input": [CALL, OUTPUT | {"call_id": "c2"}]}, "input[1].call_id"),
    ({"input": [OUTPUT, CALL]}, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]}, "input[0].summary[0]"),
    ({"input": [{"type": "reasoning", "encrypted_content": 5}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
    ({"input": [{"id": "msg_x"}]}, "input[0].id"),
    ({"input": [{"type": "compaction", "encrypted_content": "AAAA"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
    ({"previous_response_id": "resp_nope"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"include": ["odd"]}, "include[0]"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "odd"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "odd"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"truncation": "odd"}, "truncation"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"x" * 65: ""}}, "metadata"),
    ({"stream_options": {}}, "stream_options"),
    ({"background": True, "store": False}, "background"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
]


def test_mistakes_are_named_before_a_stream_begins():
    async def main():
        async with serving() as server:
            for change, param in MISTAKES:
                for stream in (False,) if param == "stream_options" else (False, True):
                    answer = await server.post(PATH, **({"stream": stream} | ASK | change))
                    assert answer.status_code == 400, (change, answer.text)
                    error = answer.json()["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                    assert (error["param"], error["type"]) == (param, "invalid_request_error"), change
                if param == "previous_response_id":
                    assert error["code"] == "previous_response_not_found"

    run(main())


def test_tools_that_do_not_exist_here_are_ignored_and_named():
    async def main():
        async with serving() as server:
            tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]
            choice = {"type": "allowed_tools", "mode": "auto", "tools": []}
            answer = await server.post(PATH, **ASK, tools=tools, tool_choice=choice, odd=1, client_metadata={})
            assert answer.headers["x-imp-ignored"] == "odd, tools[0], tools[1]"
            assert (answer.json()["tools"], answer.json()["tool_choice"]) == ([], choice)

    run(main())


def test_timings_come_with_the_end_and_stay_what_they_were():
    async def main():
        async with serving(["a", "b"], step_s=0.002) as server:
            for streamed in (False, True):
                began = time.monotonic()
                answer = await server.post(PATH, **ASK, timings=True, stream=streamed)
                wall_s = time.monotonic() - began
                if streamed:
                    *before, last = parsed_events(answer.text)
                    assert not any("timings" in event.get("response", {}) for event in before)
                whole = last["response"] if streamed else answer.json()
                check_timings(whole["timings"], wall_s)
                assert (await server.client.get(f"{PATH}/{whole['id']}")).json() == whole

    run(main())


FORMS: list[tuple[dict[str, Any], ConstraintKind, str, str]] = [
    ({"type": "json_object"}, ConstraintKind.JSON_SCHEMA, '{"type": "object"}', "text.format"),
    ({"type": "json_object", "schema": True}, ConstraintKind.JSON_SCHEMA, "true", "text.format.schema"),
    (
        {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True},
        *(ConstraintKind.JSON_SCHEMA, '{"type": "integer"}', "text.format.schema"),
    ),
    ({"type": "regex", "regex": "a+"}, ConstraintKind.REGEX, "a+", "text.format.regex"),
    ({"type": "grammar", "grammar": 'root ::= "a"'}, ConstraintKind.GRAMMAR, 'root ::= "a"', "text.format.grammar"),
]


def test_every_format_of_the_text_comes_to_its_constraint():
    for form, kind, text, param in FORMS:
        ask = responses.read(ASK | {"text": {"format": form}})
        assert ask.constraint == ConstraintSpec(kind, text) and ask.constraint.param == param
        said = ask.echo["text"]["format"]
        assert form.items() <= said.items()
        if form["type"] == "json_schema":
            assert said == form | {"description": None}
    assert responses.read(ASK | {"guided_regex": "b"}).constraint == ConstraintSpec(ConstraintKind.REGEX, "b")
    for none in (None, {}, {"format": None}, {"format": {"type": "text"}}):
        assert responses.read(ASK | {"text": none}).constraint is None
    with pytest.raises(ApiError) as twice:
        responses.read(ASK | {"text": {"format": FORMS[3][0]}, "guided_regex": "b"})
    assert twice.value.param == "guided_regex"


def test_the_official_sdk_parses_and_streams():
    async def main():
        async with serving(["Hello", " there"]) as server, sdk(server) as client:
            whole = await client.responses.create(model="toy", input="hi")
            assert whole.output_text == "Hello there" and whole.usage.output_tokens == 3 and whole._request_id
            async with client.responses.stream(model="toy", input="hi") as events:
                text = "".join([e.delta async for e in events if e.type == "response.output_text.delta"])
                final = await events.get_final_response()
            assert text == final.output_text == "Hello there" and final.status == "completed"
            raw = await client.responses.with_raw_response.create(model="toy", input="hi")
            assert raw.http_response.headers["x-request-id"] and raw.parse().output_text == "Hello there"
            async with client.responses.with_streaming_response.create(model="toy", input="hi", stream=True) as answer:
                assert (await answer.text()).count("event: ") == 10
            count = await client.responses.input_tokens.count(model="toy", input="hi")
            assert count.input_tokens == whole.usage.input_tokens
            with pytest.raises(openai.NotFoundError) as missing:
                await client.responses.create(model="other", input="hi")
            assert missing.value.code == "model_not_found"

    run(main())


def test_the_oldest_turns_go_where_truncation_is_asked_for():
    async def main():
        async with serving(template=SHOWN, context=128) as server:
            turns = [{"role": "system", "content": "S"}]
            for i in range(12):
                turns += [{"role": "user", "content": f"question {i}"}, CALL | {"call_id": str(i)}]
                turns += [OUTPUT | {"call_id": str(i)}]
            turns.append({"role": "user", "content": "last"})
            body: dict[str, Any] = {"input": turns, "max_output_tokens": 20}
            refused = (await server.post(PATH, **body)).json()["error"]
            assert refused["code"] == "context_length_exceeded"
            prompt = await prompt_of(server, **body, truncation="auto")
            unit = "<user|question 11><assistant|!f:7><tool f|42>"
            start, end = "<system|S>", "<user|last><assistant|"
            units = (128 - 20 - len(start + end)) // len(unit)
            questions = "".join(unit.replace("11", str(i)) for i in range(12 - units, 12))
            assert prompt == start + questions + end and units == 1
            long = [{"role": "user", "content": "x" * 200}]
            assert (await server.post(PATH, input=long, truncation="auto")).status_code == 400

    run(main())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["message", "user", "function_call"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = [field.name for field in responses.FIELDS]


@settings(max_examples=150, deadline=None)
@given(body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), items=st.lists(JSON, max_size=4))
def test_any_body_is_read_or_refused(body, items):
    seal = Seal()
    for given_input in (items, body.get("input")):
        try:
            ask = responses.read(body | {"input": given_input})
            read = responses_items.read_items(ask.input, lambda id: None)
            responses_items.check_calls((), read, seal)
            responses_items.messages(ask.instructions, read, seal)
        except ApiError as error:
            assert error.status == 400 and error.param
