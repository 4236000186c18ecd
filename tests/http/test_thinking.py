"""Thinking over the whole server, with the official SDKs (scenarios of group 3). The model is a script's."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from imp.http.answers import COMPONENTS
from imp.http.seal import Seal
from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from tests.http.spoken import OPENS, THINKING, Spoken, speaking
from tests.http.test_thinking_matrix import told

HI: list[Any] = [{"role": "user", "content": "hi"}]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TEMPLATES = Path(__file__).resolve().parents[3] / "shared/data/templates"
OURS = ("think_budget", "thinking_token_budget", "include_reasoning")  # the SDK does not know them
EXHAUSTED, UNCLOSED = "reasoning_budget_exhausted", "reasoning_not_closed"
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


def run(main: Any) -> None:
    asyncio.run(main())


async def both(server: Spoken, **body: Any) -> tuple[str | None, str | None, str, Any]:
    """(reasoning, content, finish_reason, detail) of a chat, the same streamed and whole."""
    ours = {name: body.pop(name) for name in OURS if name in body}
    asked: dict[str, Any] = {"model": "script", "messages": HI, "max_tokens": 200, "extra_body": ours} | body
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        choice: Any = (await client.chat.completions.create(**asked)).choices[0]
        reasoning, content, reason, detail = "", "", None, None
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            part: Any = chunk.choices[0]
            reasoning += getattr(part.delta, "reasoning_content", None) or ""
            content += part.delta.content or ""
            reason, detail = part.finish_reason, getattr(part, "imp_finish_detail", None)
    message = choice.message
    found = getattr(message, "reasoning_content", None), message.content
    assert (found[0] or "", found[1] or "") == (reasoning, content)
    assert (choice.finish_reason, getattr(choice, "imp_finish_detail", None)) == (reason, detail)
    return *found, choice.finish_reason, detail


def test_g03_01_the_prompt_opened_the_block():
    async def main():
        async with speaking("two plus two is four\n</think>\n\n4", voice=THINKING, template=OPENS) as server:
            assert await both(server) == ("two plus two is four", "4", "stop", None)

    run(main)


@pytest.mark.parametrize(
    ("opens", "reply", "reasoning", "content"),
    [
        (False, "Hi there", None, "Hi there"),
        (False, "<think>x</think>y", "x", "y"),
        (True, "<think>x</think>y", "x", "y"),
        (True, "</think>answer", None, "answer"),
        (True, "</think>plan</think>answer", "plan", "answer"),
    ],
)
def test_g03_03_it_skips_thinking_or_opens_it_again(opens, reply, reasoning, content):
    async def main():
        async with speaking(reply, voice=THINKING, **({"template": OPENS} if opens else {})) as server:
            assert (await both(server))[:2] == (reasoning, content)

    run(main)


def test_g03_03_it_skips_thinking_and_calls():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

    async def main():
        async with speaking(call, voice=THINKING) as server:
            for stream in (False, True):
                got = told(await server.post(CHAT, messages=HI, tools=TOOLS, max_tokens=200, stream=stream), stream)
                assert (got.reasoning, got.content, got.calls) == ("", "", [("f", '{"a": 1}')])
                assert got.finish == "tool_calls"

    run(main)


def test_g03_04_a_marker_in_pieces_and_one_that_is_meant_literally():
    before, marker, behind = "a </thin air> b", "</think>", "Say `<think>` and `</thought>`."
    ways = []
    for cuts in range(1 << (len(marker) - 1)):
        pieces = [marker[0]]
        for at, char in enumerate(marker[1:]):
            if cuts >> at & 1:
                pieces.append(char)
            else:
                pieces[-1] += char
        ways.append([before, *pieces, behind])

    async def main():
        async with speaking(*(way for way in ways for _ in range(2)), voice=THINKING, template=OPENS) as server:
            for way in ways:
                assert (await both(server))[:2] == (before, behind), way

    run(main)


def test_g03_04_a_marker_that_is_a_control_token_is_that_token_alone():
    said = ["a ", *"</think>", " b", "</think>", "Say ", *"</think>", "."]

    async def main():
        marks = {"voice": THINKING, "template": OPENS, "control_tokens": ["<think>", "</think>"]}
        async with speaking(said, **marks) as server:
            assert (await both(server))[:2] == ("a </think> b", "Say </think>.")
            body = (await server.post(CHAT, messages=HI)).json()
            assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1 + 8 + 1 + 1

    run(main)


def test_an_output_may_end_inside_reasoning_unless_something_must_follow():
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}

    async def main():
        async with speaking("hm", voice=THINKING, template=OPENS) as server:
            for free in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
                reasoning, content, reason, detail = await both(server, **free)
                assert (reasoning, content or "", reason, detail) == ("hm", "", "stop", UNCLOSED), free
            for asked in ({"response_format": form}, {"tools": TOOLS, "tool_choice": "required"}):
                body = (await server.post(CHAT, messages=HI, max_tokens=200, thinking_token_budget=40, **asked)).json()
                [choice] = body["choices"]
                assert choice["message"]["content"] or choice["message"]["tool_calls"], body
                assert choice["finish_reason"] in ("stop", "tool_calls"), body

    run(main)


def test_g03_07_a_budget_that_thinking_used_up_is_told(caplog):
    async def main():
        async with speaking("x" * 500, voice=THINKING, template=OPENS) as server:
            body = (await server.post(CHAT, messages=HI, max_tokens=64, think_budget=1)).json()
            choice, usage = body["choices"][0], body["usage"]
            assert choice["finish_reason"] == "length" and not choice["message"]["content"]
            assert choice["message"]["reasoning_content"] == "x" * 64
            assert choice["imp_finish_detail"] == EXHAUSTED
            assert usage["completion_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 64

    with caplog.at_level(logging.INFO, "imp.http.dialects.shared"):
        run(main)
    assert "the answer never began" in caplog.text


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("budget", [16, 12, 40])
def test_g03_08_at_the_budget_the_answer_begins(opens, budget):
    reply = ["" if opens else "<think>", *("é" if i % 3 else "x" for i in range(300)), "<think>"]
    reply = [piece for piece in reply if piece]

    async def main():
        async with speaking(reply, voice=THINKING, **({"template": OPENS} if opens else {})) as server:
            for field in ({"thinking_token_budget": budget}, {"think_budget": budget / 100, "max_tokens": 100}):
                body = (await server.post(CHAT, **({"messages": HI, "max_tokens": 400} | field))).json()
                choice, used = body["choices"][0], body["usage"]["completion_tokens_details"]["reasoning_tokens"]
                wanted = budget if "thinking_token_budget" in field else max(budget, 100 - 256)
                assert wanted <= used <= wanted + 1, body
                assert choice["imp_finish_detail"] == EXHAUSTED and "</think>" not in str(choice["message"])
                assert choice["message"]["content"] and choice["message"]["reasoning_content"]
            assert (await both(server, thinking_token_budget=budget))[3] == EXHAUSTED

    run(main)


def test_g03_08_each_choice_has_the_budget():
    async def main():
        async with speaking("x" * 300, voice=THINKING, template=OPENS) as server:
            body = (await server.post(CHAT, messages=HI, n=3, max_tokens=60, thinking_token_budget=20)).json()
            assert [choice["imp_finish_detail"] for choice in body["choices"]] == [EXHAUSTED] * 3
            assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 60

    run(main)


def test_g03_08_every_dialect_tells_that_the_budget_ended_it():
    async def main():
        async with speaking("x" * 300, voice=THINKING, template=OPENS) as server:
            budget = {"type": "enabled", "budget_tokens": 30}
            asked = {"messages": HI, "max_tokens": 60, "thinking": budget}
            assert (await server.post(MESSAGES, **asked)).json()["imp_finish_detail"] == EXHAUSTED
            events = (await server.post(MESSAGES, **asked, stream=True)).text.split("\n\n")
            [delta] = [json.loads(each.partition("data: ")[2])["delta"] for each in events if "message_delta" in each]
            assert delta["imp_finish_detail"] == EXHAUSTED and delta["stop_reason"] == "max_tokens"
            told = {"input": "hi", "max_output_tokens": 60, "thinking_token_budget": 30}
            assert (await server.post("/v1/responses", **told)).json()["imp_finish_detail"] == EXHAUSTED
            stream = (await server.post("/v1/responses", **told, stream=True)).text
            assert f'"imp_finish_detail":"{EXHAUSTED}"' in stream
        async with speaking("hm</think>4", voice=THINKING, template=OPENS) as server:
            for path, body in ((MESSAGES, {"messages": HI, "max_tokens": 60}), ("/v1/responses", {"input": "hi"})):
                assert "imp_finish_detail" not in (await server.post(path, **body)).json()

    run(main)


def test_every_dialect_tells_that_the_model_ended_its_turn_inside_reasoning(caplog):
    async def main():
        thinks = {"thinking": {"type": "enabled", "budget_tokens": 30}, "max_tokens": 60}
        for marks in ({"template": OPENS}, {}):  # the prompt opens the block, or the model
            async with speaking("hm" if marks else "<think>hm", voice=THINKING, **marks) as server:
                assert await both(server, n=1) == ("hm", "", "stop", UNCLOSED)
                whole = (await server.post(MESSAGES, messages=HI, **thinks)).json()
                assert (whole["imp_finish_detail"], whole["stop_reason"]) == (UNCLOSED, "end_turn")
                assert [block["type"] for block in whole["content"]] == ["thinking"]
                jsonschema.validate(whole, COMPONENTS["Message"])
                events = (await server.post(MESSAGES, messages=HI, **thinks, stream=True)).text.split("\n\n")
                [delta] = [
                    json.loads(each.partition("data: ")[2])["delta"] for each in events if "message_delta" in each
                ]
                assert (delta["imp_finish_detail"], delta["stop_reason"]) == (UNCLOSED, "end_turn")
                response = (await server.post("/v1/responses", input="hi")).json()
                jsonschema.validate(response, COMPONENTS["Response"])
                assert (response["imp_finish_detail"], response["status"]) == (UNCLOSED, "completed")
                stream = (await server.post("/v1/responses", input="hi", stream=True)).text
                assert f'"imp_finish_detail":"{UNCLOSED}"' in stream.rpartition("event: response.completed")[2]
        for reply in ("hm</think>", "</think>", "hm</think>4"):
            async with speaking(reply, voice=THINKING, template=OPENS) as server:
                assert (await both(server))[3] is None, reply

    with caplog.at_level(logging.INFO, "imp.http.dialects.shared"):
        run(main)
    assert caplog.text.count("the answer never began") == 12
    choices = [COMPONENTS[name]["properties"]["choices"]["items"] for name in ("ChatCompletion", "ChatCompletionChunk")]
    for shape in (*choices, COMPONENTS["Message"], COMPONENTS["Response"]):
        assert {EXHAUSTED, UNCLOSED} == set(shape["properties"]["imp_finish_detail"]["enum"])
        assert "imp_finish_detail" not in shape["required"]


def test_the_default_leaves_room_for_an_answer():
    """SURFACE.md section 4: max(max_tokens * 0.5, max_tokens - max(256, max_tokens / 4))."""

    async def main():
        async with speaking(["x"] * 3000, voice=THINKING, template=OPENS) as server:
            for most, budget in ((100, 50), (600, 344), (1200, 900)):
                body = (await server.post(CHAT, messages=HI, max_tokens=most)).json()
                assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget
                assert body["usage"]["completion_tokens"] == most

    run(main)


def test_g03_09_a_form_of_the_answer_begins_behind_the_block():
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema | {"additionalProperties": False}}}

    async def main():
        for reply in ("some prose</think>{more prose", ["some prose", "</think>\n", '{"answer":"42"}']):
            async with speaking(reply, voice=THINKING, template=OPENS) as server:
                reasoning, content, reason, _ = await both(server, response_format=form)
                assert (reasoning, reason) == ("some prose", "stop")
                assert set(json.loads(content or "")) == {"answer"}
        async with speaking("x" * 500, voice=THINKING, template=OPENS) as server:
            found = await both(server, response_format=form, max_tokens=40, think_budget=1)
            assert found == ("x" * 40, "", "length", EXHAUSTED) or found == ("x" * 40, None, "length", EXHAUSTED)
        async with speaking("x" * 25, voice=THINKING, template=OPENS) as server:
            reasoning, content, reason, detail = await both(server, response_format=form, thinking_token_budget=20)
            assert detail == EXHAUSTED and reason == "stop" and set(json.loads(content or "")) == {"answer"}

    run(main)


@pytest.mark.parametrize("given", ['{"answer":"42"}', "no form at all"])
def test_g03_09_a_form_holds_where_marker_and_answer_come_in_one_speculative_step(given, kernel_folder):
    schema = {"type": "object", "properties": {"answer": {"const": "42"}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema | {"additionalProperties": False}}}
    said = "some prose</think>" + given
    steps: list[str] = []

    async def main():
        guesses = Speculation(SuffixLookup(kernel_folder, 3, 0), most=15)
        async with speaking(said, voice=THINKING, template=OPENS, guesses=guesses) as server:
            compute, tokenizer = server.bundle.runner.step, server.bundle.tokenizer

            def step(batch):
                results = compute(batch)
                steps.extend(tokenizer.decode(result.tokens) for result in results)
                return results

            server.bundle.runner.step = step
            asked = {"messages": HI, "max_tokens": 60, "response_format": form}
            alone = told(await server.post(CHAT, **asked, speculative=False), False)
            assert (alone.reasoning, json.loads(alone.content), alone.finish) == ("some prose", {"answer": "42"}, "stop")
            steps.clear()
            asked["prediction"] = {"type": "content", "content": said}
            assert told(await server.post(CHAT, **asked), False) == alone
            asked["stream_options"] = {"include_usage": True}
            assert told(await server.post(CHAT, **asked, stream=True), True) == alone

    run(main)
    # guesses that are right come with the marker; of wrong ones, what is drawn instead of the first
    behind = [text.partition(">")[2] for text in steps if ">" in text]
    assert len(behind) == 2 and all(text.startswith("{") for text in behind), steps


SPELLINGS = ("reasoning_content", "reasoning")
KNOWN_AS = {  # what each template reads earlier reasoning as, and what it makes of "why" before a call
    "upstage-Solar-Open-100B": "<|think|>why<|end|>",  # message.reasoning
    "unsloth-Apriel-1.5": "<thinking>why</thinking>",  # message['thought']
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>why\nA</b>",  # message.thinking, or content, but not both
    "LFM2.5-8B-A1B": "<think>why</think>",  # message.thinking
    "Qwen-Qwen3-0.6B": "<think>\nwhy\n</think>",  # message.reasoning_content
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]why[/THINK]A</b>",  # a block of the content
}


@pytest.mark.parametrize("name", KNOWN_AS)
def test_g03_10_reasoning_comes_under_the_name_that_the_template_reads(name):
    if not TEMPLATES.is_dir():
        pytest.skip("the public templates are not here (shared/data/templates)")
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "A</b>", "tool_calls": [call]}
    result = {"role": "tool", "content": "3", "tool_call_id": "abcdefghi"}
    text, used = {"type": "text", "text": "A</b>"}, {"type": "tool_use", "id": "abcdefghi", "name": "f", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": "3"}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
        {"role": "assistant", "content": "A</b>"},
        {"type": "function_call", "call_id": "abcdefghi", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "abcdefghi", "output": "3"},
    ]

    async def main():
        template = TEMPLATES.joinpath(name + ".jinja").read_text(encoding="utf-8")
        async with speaking(*["ok"] * 4, voice=None, template=template) as server:
            bodies = [{"messages": [*HI, said | {spelling: "why"}, result]} for spelling in SPELLINGS]
            asked = [(CHAT, body | {"tools": TOOLS, "chat_template_kwargs": {"add_thoughts": True}}) for body in bodies]
            if "add_thoughts" not in template:  # which only a chat can set
                function = TOOLS[0]["function"]
                thought = {
                    "type": "thinking",
                    "thinking": "why",
                    "signature": server.services.seal.sign("thinking", "why"),
                }
                turns = [
                    *HI,
                    {"role": "assistant", "content": [thought, text, used]},
                    {"role": "user", "content": [given]},
                ]
                schema = {"name": function["name"], "input_schema": function["parameters"]}
                asked.append((MESSAGES, {"messages": turns, "tools": [schema]}))
                asked.append(("/v1/responses", {"input": items, "tools": [{"type": "function"} | function]}))
            for path, body in asked:
                answer = await server.post(path, **body)
                assert answer.status_code == 200, answer.text
            assert len(server.prompts()) == len(asked)
            assert all(KNOWN_AS[name] in prompt for prompt in server.prompts()), server.prompts()
            assert all(prompt.count("why") == 1 for prompt in server.prompts()), server.prompts()

    run(main)


@pytest.mark.parametrize("name", SPELLINGS)
def test_g03_10_reasoning_of_the_history_reaches_the_template(name):
    turn = {"role": "assistant", "content": "use </think> literally", name: "r", "odd": 1}

    async def main():
        async with speaking("ok", voice=THINKING) as server:
            answer = await server.post(CHAT, messages=[*HI, turn, *HI])
            assert answer.status_code == 200
            assert "<|assistant|>use </think> literally(r)<|user|>" in server.prompts()[0]

    run(main)


def test_g03_11_stop_strings_and_logprobs():
    async def main():
        async with speaking("a\n\nb</think>one\n\ntwo", voice=THINKING, template=OPENS) as server:
            found = await both(server, stop=["\n\n"])
            assert found[:3] == ("a\n\nb", "one", "stop")
            body = (await server.post(CHAT, messages=HI, logprobs=True)).json()
            told = [entry["token"] for entry in body["choices"][0]["logprobs"]["content"]]
            assert "".join(told) == "a\n\nb</think>one\n\ntwo"  # every token, those of the reasoning first

    run(main)


def test_reasoning_can_be_left_out():
    async def main():
        async with speaking("hm</think>\n\n4", voice=THINKING, template=OPENS) as server:
            assert (await both(server, include_reasoning=False))[:2] == (None, "4")

    run(main)


def test_a_request_can_be_told_to_end_its_thinking():
    async def main():
        reply = {"pieces": ["x"], "delay_ms": 5, "endless": True}
        async with speaking(voice=THINKING, template=OPENS, replies=[reply]) as server:
            assert (await server.post("/v1/requests/none/end_thinking")).status_code == 404
            asked = asyncio.create_task(
                server.client.post(
                    CHAT, json={"messages": HI, "max_tokens": 300}, headers={"X-Request-Id": "mine"}, timeout=60
                )
            )
            while not (server.services.generating and server.bundle.runner.log):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            answer = await server.post("/v1/requests/mine/end_thinking")
            assert answer.json() == {"id": "mine", "ended": 1}
            body = (await asked).json()
            assert body["choices"][0]["message"]["content"]
            assert 0 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] < 150
        async with speaking(replies=[reply]) as server:
            asked = asyncio.create_task(
                server.client.post(CHAT, json={"messages": HI, "max_tokens": 40}, headers={"X-Request-Id": "mine"})
            )
            while not server.services.generating:
                await asyncio.sleep(0.01)
            answer = await server.post("/v1/requests/mine/end_thinking")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_thinking")
            await asked

    run(main)


# -- Anthropic ------------------------------------------------------------------------------------


async def message(server: Spoken, **body: Any) -> tuple[Any, Any]:
    """A message whole, and the same from its stream."""
    asked: dict[str, Any] = {"model": "script", "messages": HI, "max_tokens": 200} | body
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
    assert [block.model_dump() for block in whole.content] == [block.model_dump() for block in streamed.content]
    assert whole.stop_reason == streamed.stop_reason
    return whole, streamed


def test_thinking_is_a_block_for_those_who_ask_for_it():
    async def main():
        async with speaking("hm</think>\n\n4", voice=THINKING, template=OPENS) as server:
            for thinking in ({"type": "enabled", "budget_tokens": 100}, {"type": "adaptive"}):
                whole, _ = await message(server, thinking=thinking)
                thought, text = whole.content
                assert (thought.type, thought.thinking, text.text) == ("thinking", "hm", "4") and thought.signature
            for more in ({}, {"thinking": {"type": "disabled"}}):
                whole, _ = await message(server, **more)
                assert [block.type for block in whole.content] == ["text"] and whole.content[0].text == "4"

    run(main)


def test_g03_08_anthropics_budget():
    async def main():
        async with speaking("x" * 300, voice=THINKING, template=OPENS) as server:
            whole, _ = await message(server, thinking={"type": "enabled", "budget_tokens": 28})
            thought, text = whole.content
            assert len(thought.thinking) == 28 - len("</think>") and text.text
            for more, status in (
                ({"budget_tokens": 200}, 400),
                ({"budget_tokens": 199}, 200),
                ({"budget_tokens": 300}, 400),
            ):
                body = {"messages": HI, "max_tokens": 200, "thinking": {"type": "enabled", **more}}
                assert (await server.post(MESSAGES, **body)).status_code == status
            beta = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
            answer = await server.client.post(MESSAGES, json=body, headers=beta)
            assert answer.status_code == 200

    run(main)


def test_thinking_comes_back_as_it_was_signed():
    async def main():
        async with speaking("hm</think>\n\n4", voice=THINKING, template=OPENS) as server:
            for display in ({}, {"display": "omitted"}):
                whole, _ = await message(server, thinking={"type": "adaptive", **display})
                block = whole.content[0].model_dump()
                assert block["thinking"] == ("" if display else "hm")

                async def replay(block: dict[str, Any]) -> int:
                    turn = {"role": "assistant", "content": [block, {"type": "text", "text": "4"}]}
                    return (await server.post(MESSAGES, messages=[*HI, turn, *HI], max_tokens=20)).status_code

                assert await replay(block) == 200 and "<|assistant|>4(hm)" in server.prompts()[-1]
                assert await replay(block | {"thinking": "hm!"}) == 400
                assert await replay(block | {"signature": "bogus"}) == 400
                assert await replay(block | {"signature": block["signature"][:-4] + "AAA="}) == 400
                other = Seal().sign("thinking", "hm")  # as before a restart
                assert await replay(block | {"thinking": "hm", "signature": other}) == 200
                assert "(hm)" not in server.prompts()[-1]
                assert await replay({"type": "redacted_thinking", "data": "x"}) == 200

    run(main)


def test_g08_10_thinking_and_a_call_come_back_with_the_result():
    said = 'look</think>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools: Any = [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]

    async def main():
        async with speaking(said, voice=THINKING, template=OPENS) as server:
            enabled = {"type": "enabled", "budget_tokens": 150}
            whole = await server.post(MESSAGES, messages=HI, max_tokens=200, tools=tools, thinking=enabled)
            blocks = whole.json()["content"]
            thought, call = blocks
            assert (thought["type"], thought["thinking"]) == ("thinking", "look") and thought["signature"]
            assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": 1})
            assert whole.json()["stop_reason"] == "tool_use"
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "42"}]}
            for content in (blocks, blocks[1:], [{"type": "redacted_thinking", "data": "x"}, *blocks[1:]]):
                turns = [*HI, {"role": "assistant", "content": content}, result]
                for thinking in (enabled, {"type": "adaptive"}, {"type": "disabled"}, None):
                    answer = await server.post(MESSAGES, messages=turns, max_tokens=200, tools=tools, thinking=thinking)
                    assert answer.status_code == 200, answer.text
                    kinds = [block["type"] for block in answer.json()["content"]]
                    assert (kinds[0] == "thinking") == (thinking is not None and thinking["type"] != "disabled")
                shown = server.prompts()[-1]
                assert "!f a=1" in shown and "<|tool|>42" in shown
                assert ("(look)" in shown) == (content == blocks)

    run(main)


def test_responses_tell_reasoning_as_an_item():
    async def main():
        async with speaking("hm</think>\n\n4", voice=THINKING, template=OPENS) as server:
            body = (await server.post("/v1/responses", input="hi", reasoning={"effort": "low"})).json()
            assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
            assert body["output"][0]["content"][0]["text"] == "hm" and body["reasoning"]["effort"] == "low"
            assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == len("hm</think>")

    run(main)
