"""Every kind of reasoning, switched every way: no marker in the content, no answer in the reasoning, streamed or not."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from imp.chat.formats.detect import detect
from imp.chat.inspect import Subject
from imp.chat.message import ChatRequest, Message
from imp.chat.prepare import render
from imp.chat.template import ChatTemplate

from .spoken import speaking

TEMPLATES = Path(__file__).resolve().parents[3] / "shared/data/templates"
THOUGHT, ANSWER, FORMED = "so, two and two", "It is 4.", '{"answer":4}'
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {**SCHEMA, "additionalProperties": False}}}
ASKED = [{"role": "user", "content": "2+2?"}]


class Spelling(NamedTuple):
    """How the models of a template write: the reasoning opened, closed, and the answer behind it or without it."""

    opens: str
    closes: str
    answer: str = "{}"
    alone: str = "{}"


TAGS = Spelling("<think>\n", "\n</think>\n\n")
SPELLINGS = {
    "Qwen-Qwen3-0.6B": TAGS,
    "Qwen-QwQ-32B": TAGS,
    "Qwen3.5-4B": TAGS,
    "deepseek-ai-DeepSeek-V3.1": TAGS,
    "deepseek-ai-DeepSeek-V4": TAGS,
    "GLM-4.6": TAGS,
    "GLM-4.7-Flash": TAGS,
    "HuggingFaceTB-SmolLM3-3B": TAGS,
    "Kimi-K2-Thinking": TAGS,
    "NVIDIA-Nemotron-Nano-v2": TAGS,
    "poolside-Laguna-XS.2": TAGS,
    "inclusionai-ling-3.0-flash": TAGS,
    "Reka-Edge": TAGS,
    "MiniMax-M3": Spelling("<mm:think>", "</mm:think>"),
    "ByteDance-Seed-OSS": Spelling("<seed:think>", "</seed:think>"),
    "tencent-Hy3": Spelling("<think:opensource>", "</think:opensource>"),
    "google-gemma-4-31B-it": Spelling("<|channel>thought\n", "<channel|>"),
    "mistralai-Ministral-3-14B-Reasoning-2512": Spelling("[THINK]", "[/THINK]"),
    "Apertus-8B-Instruct": Spelling("<|inner_prefix|>", "<|inner_suffix|>"),
    "ibm-granite-granite-3.3-2B-Instruct": Spelling("<think>", "</think>\n", "<response>{}</response>"),
    "Apriel-1.6-15b-Thinker-fixed": Spelling(
        "Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n", "{}\n<|end|>"
    ),
    "Cohere2MoE": Spelling(
        "<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>{}<|END_TEXT|>", "<|START_TEXT|>{}<|END_TEXT|>"
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Spelling(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_RESPONSE|>{}<|END_RESPONSE|>",
        "<|START_RESPONSE|>{}<|END_RESPONSE|>",
    ),
    "upstage-Solar-Open-100B": Spelling("<|think|>", "<|end|><|begin|>assistant", "<|content|>{}<|end|>"),
    "Kimi-K3": Spelling(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>{}<|close|>response<|sep|><|close|>message<|sep|>",
        "{}<|close|>response<|sep|><|close|>message<|sep|>",
    ),
    "muse-glimmer": Spelling(
        " to=self<|message|>", "<|eom|>", "<|start|>assistant to=user<|message|>{}", " to=user<|message|>{}"
    ),
    "openai-gpt-oss-120b": Spelling(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{}",
        "<|channel|>final<|message|>{}",
    ),
}
PIECES = re.compile(r"<\|[^<>|]+\|>|.", re.DOTALL)  # control tokens, and characters
KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
)


def source(name: str) -> str:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("the public templates are not here (shared/data/templates)")
    return path.read_text(encoding="utf-8")


def written(name: str, template: ChatTemplate, kwargs: dict[str, Any], answer: str) -> tuple[str, str]:
    """What a model of this template writes to this prompt, and its reasoning."""
    spelling, voice = SPELLINGS[name], detect(template)
    formed = answer == FORMED
    chat = ChatRequest((Message("user", "2+2?"),), template_kwargs=kwargs, structured=formed)
    state = voice.thinks(render(chat, Subject(template, voice)))
    wanted = next(iter(kwargs.values()), not formed)
    if (state is None and not wanted) or state is False:
        return spelling.alone.replace("{}", answer), ""
    opened = "" if state else spelling.opens
    return f"{opened}{THOUGHT}{spelling.closes}" + spelling.answer.replace("{}", answer), THOUGHT


def parts(answer: httpx.Response, stream: bool) -> tuple[str, str, str]:
    """Content, reasoning and finish reason."""
    if stream:
        return joined(answer.text)
    [choice] = answer.json()["choices"]
    return choice["message"]["content"], choice["message"].get("reasoning_content") or "", choice["finish_reason"]


def joined(stream: str) -> tuple[str, str, str]:
    """Content, reasoning and finish reason of a stream."""
    content, reasoning, finish = "", "", ""
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            content += choice["delta"].get("content") or ""
            reasoning += choice["delta"].get("reasoning_content") or ""
            finish = choice["finish_reason"] or finish
    return content, reasoning, finish


@pytest.mark.parametrize("name", SPELLINGS)
def test_reasoning_and_answer_are_told_apart(name: str):
    asyncio.run(_told_apart(name))


async def _told_apart(name: str) -> None:
    text = source(name)
    template = ChatTemplate(text)
    voice = detect(template)
    own = {voice.switch.name: (voice.switch.on, voice.switch.off)} if voice.switch and voice.switch.name else {}
    cases = [*KWARGS, *({variable: value} for variable, values in own.items() for value in values)]
    plan = [(kwargs, *written(name, template, kwargs, ANSWER), stream) for kwargs in cases for stream in (False, True)]
    async with speaking(*(reply for _, reply, _, _ in plan), voice=None, template=text) as server:
        for kwargs, reply, thought, stream in plan:
            body: dict[str, Any] = {"messages": ASKED, "chat_template_kwargs": kwargs, "stream": stream}
            answer = await server.post("/v1/chat/completions", **body)
            assert answer.status_code == 200, answer.text
            content, reasoning, finish = parts(answer, stream)
            assert (content.strip(), reasoning, finish) == (ANSWER, thought, "stop"), (kwargs, stream, reply)


FORMED_KINDS = [name for name, spelling in SPELLINGS.items() if spelling.answer == "{}"]


@pytest.mark.parametrize("name", FORMED_KINDS[::3])
def test_a_form_is_asked_of_the_answer_alone(name: str):
    asyncio.run(_formed(name))


async def _formed(name: str) -> None:
    text = source(name)
    template = ChatTemplate(text)
    cases = [
        (kwargs, *written(name, template, kwargs, FORMED), stream) for kwargs in KWARGS for stream in (False, True)
    ]
    replies = [PIECES.findall(reply) for _, reply, _, _ in cases]
    async with speaking(*replies, voice=None, template=text) as server:
        for kwargs, reply, thought, stream in cases:
            body: dict[str, Any] = {"messages": ASKED, "chat_template_kwargs": kwargs, "stream": stream}
            answer = await server.post("/v1/chat/completions", **body, response_format=FORM)
            assert answer.status_code == 200, answer.text
            content, reasoning, finish = parts(answer, stream)
            assert (json.loads(content), reasoning, finish) == ({"answer": 4}, thought, "stop"), (kwargs, stream, reply)
