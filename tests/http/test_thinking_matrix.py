"""Every public template whose model thinks, thinking switched every way, beside tools and forms, streamed or not.

What a model writes was taken from the templates by hand (SPELLINGS), and so was whether a prompt opens the reasoning
(test_detect's table); the rest is the server's: no marker in the content, no answer in the reasoning.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from imp.chat.formats.detect import detect
from imp.chat.template import ChatTemplate
from imp.chat.tool_prompt import written
from imp.constrain.tools import Envelope, ParameterTexts, Pattern
from imp.script.vocabulary import control_tokens
from tests.chat.formats.test_detect import TABLE

from .spoken import Spoken, speaking

TEMPLATES = Path(__file__).resolve().parents[3] / "shared/data/templates"
THOUGHT, ANSWER, FORMED = "so, two and two", "It is 4.", '{"answer":4}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}]
CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "2+2?"}]
ENDS = ["<|flush|>"]  # of Solar's vocabulary, and not in its template: it, not <|end|>, ends an output


class Spelling(NamedTuple):
    """How the models of a template write: reasoning opened and closed, the answer behind it and without it, and what
    stands in front of a call behind it and without it."""

    opens: str
    closes: str
    answer: str = "{}"
    alone: str = "{}"
    turn: str = ""
    header: str = ""


def tags(name: str, line: str = "\n") -> Spelling:
    return Spelling(f"<{name}>{line}", f"{line}</{name}>{line}{line}")


THINK = tags("think")
GEMMA = Spelling("<|channel>thought\n", "<channel|>")
APRIEL = Spelling("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n", "{}\n[END FINAL RESPONSE]\n<|end|>")
SPELLINGS = {
    "Apertus-8B-Instruct": Spelling("<|inner_prefix|>", "<|inner_suffix|>"),
    "Apriel-1.6-15b-Thinker-fixed": APRIEL._replace(answer="{}\n<|end|>"),
    "Bielik-11B-v3.0-Instruct": THINK,
    "ByteDance-Seed-OSS": tags("seed:think"),
    "Cohere2MoE": Spelling(
        "<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>{}<|END_TEXT|>", "<|START_TEXT|>{}<|END_TEXT|>"
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Spelling(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_RESPONSE|>{}<|END_RESPONSE|>",
        "<|START_RESPONSE|>{}<|END_RESPONSE|>",
    ),
    "GLM-4.6": Spelling("\n<think>", "</think>\n"),
    "GLM-4.7-Flash": tags("think", ""),
    "HuggingFaceTB-SmolLM3-3B": THINK,
    "Kimi-K2-Thinking": tags("think", ""),
    "Kimi-K3": Spelling(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>{}<|close|>response<|sep|><|close|>message<|sep|>",
        "{}<|close|>response<|sep|><|close|>message<|sep|>",
        "<|open|>response<|sep|><|close|>response<|sep|>",
        "<|close|>response<|sep|>",
    ),
    "LFM2.5-8B-A1B": tags("think", ""),
    "LFM2.5-Instruct": THINK,
    "MiniMax-M2": THINK,
    "MiniMax-M3": tags("mm:think", ""),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Spelling("<think>\n", "\n</think>\n"),
    "NVIDIA-Nemotron-Nano-v2": THINK,
    "Qwen-QwQ-32B": THINK,
    "Qwen-Qwen3-0.6B": THINK,
    "Qwen3.5-4B": THINK,
    "Reka-Edge": THINK,
    "Spark2.5": tags("think", ""),
    "StepFun3.5-Flash": Spelling("<think>\n", "\n</think>\n"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": THINK,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": THINK,
    "deepseek-ai-DeepSeek-V3.1": tags("think", ""),
    "deepseek-ai-DeepSeek-V3.2": tags("think", ""),
    "deepseek-ai-DeepSeek-V4": tags("think", ""),
    "deepseek-ai-DeepSeek-V4-Flash-0731": tags("think", ""),
    "google-gemma-4-31B-it": GEMMA,
    "google-gemma-4-31B-it-interleaved": GEMMA,
    "ibm-granite-granite-3.3-2B-Instruct": Spelling("<think>", "</think>\n", "<response>{}</response>"),
    "inclusionai-ling-3.0-flash": tags("think", ""),
    "mistralai-Ministral-3-14B-Reasoning-2512": Spelling("[THINK]", "[/THINK]"),
    "muse-glimmer": Spelling(
        " to=self<|message|>",
        "<|eom|>",
        "<|start|>assistant to=user<|message|>{}",
        " to=user<|message|>{}",
        "<|start|>assistant to=add<|message|>",
        " to=add<|message|>",
    ),
    "openai-gpt-oss-120b": Spelling(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{}",
        "<|channel|>final<|message|>{}",
        "<|start|>assistant",
    ),
    "openbmb-MiniCPM5-1B": THINK,
    "poolside-Laguna-S-2.1": tags("think", ""),
    "poolside-Laguna-XS-2.1": Spelling("<think>\n", "\n</think>\n"),
    "poolside-Laguna-XS.2": Spelling("<think>\n", "\n</think>\n"),
    "tencent-Hy3": tags("think:opensource", ""),
    "unsloth-Apriel-1.5": APRIEL,
    "upstage-Solar-Open-100B": Spelling(
        "<|think|>",
        "<|end|>",
        "<|begin|>assistant<|content|>{}<|end|>",
        "<|content|>{}<|end|>",
        "<|begin|>assistant",
    ),
}
STATES = {row.template: row.states for row in TABLE}
IDS = {"[a-z0-9]{10}": "a1b2c3d4e5", "[1-9][0-9]{0,2}": "1", "0|[1-9][0-9]{0,3}": "0", "[a-zA-Z0-9]{9}": "abcdefgh1"}
IDS["number|boolean|null|object|array"] = "number"


class Case(NamedTuple):
    """What a model writes to one request, and what the answer must be: reasoning, content, the call's arguments."""

    body: dict[str, Any]
    reply: str
    reasoning: str
    content: str
    arguments: Any = None


class Model(NamedTuple):
    name: str
    source: str
    call: str  # as it writes one
    own: tuple[str, Any, Any] | None  # the template's variable, and its values for on and off
    control: re.Pattern[str]

    def pieces(self, text: str) -> list[str]:
        """Control tokens, and characters."""
        return self.control.findall(text)

    def opened(self, wanted: bool) -> str:
        """What the prompt's end says of reasoning: T, F or N."""
        default, on, off = STATES[self.name]
        return default if on == "-" else on if wanted else off

    def said(self, wanted: bool, answer: str, call: bool = False) -> tuple[str, str]:
        """What the model writes, and what it thinks of that."""
        spelling, state = SPELLINGS[self.name], self.opened(wanted)
        if state == "F" or (state == "N" and not wanted):
            return (spelling.header + answer if call else spelling.alone.replace("{}", answer)), ""
        opened = "" if state == "T" else spelling.opens
        behind = spelling.turn + answer if call else spelling.answer.replace("{}", answer)
        return f"{opened}{THOUGHT}{spelling.closes}{behind}", THOUGHT


def filled(value: Any) -> Any:
    """An envelope, or a part of one, with a text for each pattern."""
    if isinstance(value, Pattern):
        return IDS[value.regex]
    if isinstance(value, tuple):
        return tuple(map(filled, value))
    if isinstance(value, Envelope | ParameterTexts):
        return replace(value, **{each.name: filled(getattr(value, each.name)) for each in fields(value)})
    return value


def model(name: str) -> Model:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("the public templates are not here (shared/data/templates)")
    source = path.read_text(encoding="utf-8")
    voice = detect(ChatTemplate(source))
    assert voice.format is not None
    own = (voice.switch.name, voice.switch.on, voice.switch.off) if voice.switch and voice.switch.name else None
    envelope = filled(voice.format.envelopes[0])
    control = "|".join(map(re.escape, sorted(control_tokens(source), key=len, reverse=True))) or "(?!)"
    call = written([("add", {"answer": 4})], envelope)
    return Model(name, source, call, own, re.compile(f"{control}|.", re.DOTALL))


def switched(own: tuple[str, Any, Any] | None) -> Iterator[tuple[dict[str, Any], bool | None]]:
    """Every way to say it, and what is said; None: nothing."""
    yield {}, None
    for wanted in (True, False):
        yield {"enable_thinking": wanted}, wanted
        yield {"reasoning_effort": "high" if wanted else "none"}, wanted
        for variable in ("enable_thinking", "thinking", "reasoning"):
            yield {"chat_template_kwargs": {variable: wanted}}, wanted
        if own is not None:
            yield {"chat_template_kwargs": {own[0]: own[1 if wanted else 2]}}, wanted


def conversations(spoken: Model) -> Iterator[Case]:
    for switch, said in switched(spoken.own):
        plain, beside = said is not False, said is True  # as it is where nobody says: SURFACE.md section 4
        reply, thought = spoken.said(plain, ANSWER)
        yield Case(switch, reply, thought, ANSWER)
        reply, thought = spoken.said(beside, FORMED)
        yield Case({**switch, "response_format": FORM}, reply, thought, FORMED)
        called, thought = spoken.said(beside, spoken.call, call=True)
        yield Case({**switch, "tools": TOOLS}, called, thought, "", {"answer": 4})
        if set(switch) <= {"enable_thinking"}:
            yield Case({**switch, "tools": TOOLS, "tool_choice": "required"}, called, thought, "", ...)
            yield Case({**switch, "tools": TOOLS, "response_format": FORM}, reply, thought, FORMED)
            reply, thought = spoken.said(beside, ANSWER)
            yield Case({**switch, "tools": TOOLS}, reply, thought, ANSWER)


class Told(NamedTuple):
    """An answer, streamed or whole."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]]
    finish: str
    detail: str | None
    thought: int | None  # tokens


def told(answer: httpx.Response, stream: bool) -> Told:
    assert answer.status_code == 200, answer.text
    if not stream:
        [choice] = answer.json()["choices"]
        message = choice["message"]
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls = [(function["name"], function["arguments"]) for function in functions]
        used = answer.json()["usage"]["completion_tokens_details"]["reasoning_tokens"]
        said = message.get("reasoning_content") or "", message["content"] or "", calls
        return Told(*said, choice["finish_reason"], choice.get("imp_finish_detail"), used)
    return parts(answer.text)


def parts(stream: str) -> Told:
    """The answer in a stream's events."""
    reasoning, content, calls, finish, detail, used = "", "", [], "", None, None
    for line in stream.split("\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            used = event["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for choice in event["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if "id" in call:
                    calls.append((call["function"]["name"], ""))
                name, arguments = calls[-1]
                calls[-1] = name, arguments + call["function"]["arguments"]
            finish, detail = choice["finish_reason"] or finish, choice.get("imp_finish_detail") or detail
    return Told(reasoning, content, calls, finish, detail, used)


async def ask(server: Spoken, stream: bool, **body: Any) -> Told:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return told(await server.post(CHAT, messages=ASKED, **body, **streaming), stream)


def test_every_template_with_reasoning_is_here():
    if not TEMPLATES.is_dir():
        pytest.skip("the public templates are not here (shared/data/templates)")
    assert set(SPELLINGS) == {row.template for row in TABLE if row.opens}


@pytest.mark.parametrize("name", SPELLINGS)
def test_reasoning_answer_and_calls_are_told_apart(name: str):
    asyncio.run(_told_apart(model(name)))


async def _told_apart(spoken: Model) -> None:
    plan = [(each, stream) for each in conversations(spoken) for stream in (False, True)]
    replies = [spoken.pieces(each.reply) for each, _ in plan]
    async with speaking(*replies, voice=None, template=spoken.source, control_tokens=ENDS) as server:
        for each, stream in plan:
            got = await ask(server, stream, **each.body)
            context = spoken.name, stream, each, got
            assert (got.reasoning, got.detail) == (each.reasoning, None), context
            assert bool(got.thought) == bool(each.reasoning), context
            if each.arguments is None:
                content = got.content.removesuffix("\n") if spoken.name.startswith("Apriel-1.6") else got.content
                assert (content, got.calls, got.finish) == (each.content, [], "stop"), context
            else:
                assert (got.content, got.finish, {name for name, _ in got.calls}) == ("", "tool_calls", {"add"}), context
                for _, arguments in got.calls:
                    jsonschema.validate(json.loads(arguments), SCHEMA)
                if each.arguments is not ...:
                    assert [json.loads(arguments) for _, arguments in got.calls] == [each.arguments], context
