"""Every public template's own calls, read back: what it makes of a conversation's calls is what a model is taught to write."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from imp.chat.formats.base import Tool
from imp.chat.formats.detect import detect
from imp.chat.formats.registry import FORMATS
from imp.chat.inspect import Subject
from imp.chat.message import ChatRequest, Message
from imp.chat.rendering import render
from imp.chat.template import ChatTemplate, TemplateError
from tests.chat.formats.harness import calls, read

TEMPLATES = Path(__file__).resolve().parents[3] / "../shared/data/templates"
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>", "unk_token": "<|unk|>"}

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A name"},
        "days": {"type": "integer", "description": "How many"},
        "ratio": {"type": "number", "description": "A share"},
        "now": {"type": "boolean", "description": "At once"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Words"},
        "more": {"type": "object", "properties": {"deep": {"type": "object"}, "zip": {"type": "string"}}, "description": "Rest"},
    },
    "required": ["city"],
}
FUNCTIONS = [
    {"name": "get_weather", "description": "The weather of a city", "parameters": PARAMETERS},
    {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}, "required": []}},
]
TOOLS = tuple(Tool(function["name"], function["parameters"]) for function in FUNCTIONS)

VALUES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "string": (("get_weather", {"city": "Zürich 東京"}),),
    "numbers": (("get_weather", {"city": "00731", "days": -2, "ratio": 0.5}),),
    "boolean": (("get_weather", {"city": "true", "now": True}),),
    "lists": (("get_weather", {"city": "x", "tags": ["a, b", "c]"]}),),
    "nested": (("get_weather", {"city": "x", "more": {"deep": {"a": {"b": [1, 2.5, {"c": "d"}]}}, "zip": "007"}}),),
    "marks": (("get_weather", {"city": '{"a": "b"}\n  <c> & \\ \'d\''}),),
    "nothing": (("get_time", {}),),
    "two": (("get_weather", {"city": "Oslo", "days": 3}), ("get_time", {})),
    "same twice": (("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})),
}  # fmt: skip

ONE_CALL = "the template writes one call to a message, or refuses more"


@dataclass(frozen=True)
class Template:
    """format: what its calls are to be read with.  one_call: why it cannot show two.
    text: it wants arguments as JSON text.  variables: what it needs beside tools.  parameters: of the first tool."""

    format: str
    one_call: str = ""
    text: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=lambda: PARAMETERS)


MAPPED = PARAMETERS | {"properties": PARAMETERS["properties"] | {"more": {"type": "object", "description": "Rest", "additionalProperties": {"type": "string"}}}}
WITH_TOOLS = {
    "Apertus-8B-Instruct": Template("apertus"),
    "Apriel-1.6-15b-Thinker-fixed": Template("apriel"),
    "Bielik-11B-v3.0-Instruct": Template("hermes"),
    "ByteDance-Seed-OSS": Template("seed"),
    "Cohere2MoE": Template("command"),
    "CohereForAI-c4ai-command-r-plus-tool_use": Template("command-plus", parameters=MAPPED),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Template("command"),
    "GLM-4.6": Template("glm"),
    "GLM-4.7-Flash": Template("glm-compact"),
    "GigaChat3-10B-A1.8B": Template("gigachat", ONE_CALL),
    "GigaChat3.1-10B-A1.8B": Template("gigachat-3.1", ONE_CALL),
    "Kimi-K2-Instruct": Template("kimi"),
    "Kimi-K2-Thinking": Template("kimi"),
    "Kimi-K3": Template("kimi-k3"),
    "LFM2.5-8B-A1B": Template("lfm2"),
    "MiMo-VL": Template("hermes"),
    "MiniMax-M1": Template("minimax-m1"),
    "MiniMax-M2": Template("minimax"),
    "MiniMax-M3": Template("minimax-m3"),
    "Mistral-Small-3.2-24B-Instruct-2506": Template("mistral-call-id"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Template("qwen-xml"),
    "NVIDIA-Nemotron-Nano-v2": Template("nemotron"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": Template("hermes"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": Template("hermes"),
    "Qwen-QwQ-32B": Template("hermes"),
    "Qwen-Qwen2.5-7B-Instruct": Template("hermes"),
    "Qwen-Qwen3-0.6B": Template("hermes"),
    "Qwen3-Coder": Template("qwen-xml"),
    "Qwen3.5-4B": Template("qwen-xml"),
    "Reka-Edge": Template("hermes"),
    "Spark2.5": Template("glm-compact"),
    "StepFun3.5-Flash": Template("qwen-xml"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": Template("deepseek"),
    "deepseek-ai-DeepSeek-V3.1": Template("deepseek-v3.1"),
    "deepseek-ai-DeepSeek-V3.2": Template("dsml"),
    "deepseek-ai-DeepSeek-V4": Template("dsml-v4"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": Template("dsml-v4"),
    "fireworks-ai-llama-3-firefunction-v2": Template("firefunction", variables={"functions": "[]", "datetime": "now"}),
    "google-gemma-4-31B-it": Template("gemma4"),
    "google-gemma-4-31B-it-interleaved": Template("gemma4"),
    "ibm-granite-granite-4.0": Template("hermes"),
    "ibm-granite-granite-4.1": Template("hermes"),
    "inclusionai-ling-3.0-flash": Template("glm"),
    "meetkai-functionary-medium-v3.1": Template("functionary-v3.1"),
    "meetkai-functionary-medium-v3.2": Template("functionary", text=True),
    "meta-llama-Llama-3.1-8B-Instruct": Template("llama", ONE_CALL),
    "meta-llama-Llama-3.2-3B-Instruct": Template("llama", ONE_CALL),
    "meta-llama-Llama-3.3-70B-Instruct": Template("llama", ONE_CALL),
    "mistralai-Ministral-3-14B-Reasoning-2512": Template("mistral-args"),
    "mistralai-Mistral-Nemo-Instruct-2407": Template("mistral"),
    "moonshotai-Kimi-K2": Template("kimi"),
    "muse-glimmer": Template("muse"),
    "openai-gpt-oss-120b": Template("harmony", ONE_CALL),
    "openbmb-MiniCPM5-1B": Template("minicpm"),
    "poolside-Laguna-S-2.1": Template("glm-compact"),
    "poolside-Laguna-XS-2.1": Template("glm"),
    "poolside-Laguna-XS.2": Template("glm"),
    "tencent-Hy3": Template("hy3"),
    "unsloth-Apriel-1.5": Template("apriel"),
    "unsloth-mistral-Devstral-Small-2507": Template("mistral-args"),
    "upstage-Solar-Open-100B": Template("solar"),
}
SHOWS_NONE = "it tells of tools, and drops the calls of a conversation"
WITHOUT = {
    "HuggingFaceTB-SmolLM3-3B": "it knows no tools",
    "LFM2-8B-A1B": SHOWS_NONE,
    "LFM2.5-Instruct": SHOWS_NONE,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "it knows no tools",
    "google-gemma-2-2b-it": "it knows no tools",
    "ibm-granite-granite-3.3-2B-Instruct": SHOWS_NONE,
    "microsoft-Phi-3.5-mini-instruct": "it knows no tools",
}


def conversation(wanted: tuple[tuple[str, dict[str, Any]], ...], text: bool = False) -> list[dict[str, Any]]:
    """A question, the calls, and their results. text: arguments are JSON text."""
    made = [
        {
            "id": f"call{n:05}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False) if text else arguments},
        }
        for n, (name, arguments) in enumerate(wanted)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": name, "content": "fine"}
        for call, (name, _) in zip(made, wanted, strict=True)
    ]
    return [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *results,
    ]


@functools.cache
def compiled(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES.joinpath(name + ".jinja").read_text(encoding="utf-8"), special_tokens=TOKENS)


def turn(name: str, case: Template, wanted: tuple[tuple[str, dict[str, Any]], ...]) -> str:
    """What the template writes for the calls: what the conversation with them has more than the prompt before."""
    template = compiled(name)
    functions = [FUNCTIONS[0] | {"parameters": case.parameters}, FUNCTIONS[1]]
    variables = {"tools": [{"type": "function", "function": function} for function in functions]} | case.variables
    messages = conversation(wanted, case.text)
    whole = template.render(messages[:3], add_generation_prompt=False, **variables)
    template.render(messages, add_generation_prompt=True, **variables)  # the results too
    for prompt in (True, False):
        before = template.render(messages[:2], add_generation_prompt=prompt, **variables)
        if whole.startswith(before):
            return whole[len(before) :]
    return whole[next((at for at, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before)) :]


needs_templates = pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the public templates are not here (shared/data)")


@needs_templates
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_templates_calls_are_read_back(name):
    case, voice = WITH_TOOLS[name], detect(compiled(name))
    for wanted in VALUES.values():
        if len(wanted) > 1 and case.one_call:
            continue
        output = turn(name, case, wanted)
        for pieces in ([output], list(output)):
            assert calls(read(pieces, voice.format, TOOLS, voice.thinking)) == list(wanted), output


def asked(wanted: tuple[tuple[str, dict[str, Any]], ...], system: bool = True) -> tuple[Message, ...]:
    """As `conversation`, with results that can be told apart, as the dialects hand it on."""
    made = [
        {"id": f"call{n:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(wanted)
    ]
    return (
        *([Message("system", "You are brief.")] if system else []),
        Message("user", "How is it?"),
        Message("assistant", None, tool_calls=tuple(made)),
        *(Message("tool", f"RESULT-{n}", name=call["function"]["name"], tool_call_id=call["id"]) for n, call in enumerate(made)),
    )


def prompt(name: str, messages: tuple[Message, ...]) -> str:
    """What the model is given, by whatever way the template can tell it."""
    template = compiled(name)
    tools = tuple({"type": "function", "function": function} for function in FUNCTIONS)
    return render(ChatRequest(messages, tools=tools), Subject(template, detect(template)))


NO_SYSTEM = {"google-gemma-2-2b-it"}  # refuses system messages


@needs_templates
@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT])
def test_every_template_tells_the_model_of_tools_calls_and_results(name):
    """Also those that know no tools, drop calls, or hold one call: all of the conversation is there, in its order."""
    for wanted in VALUES.values():
        text = prompt(name, asked(wanted, name not in NO_SYSTEM))
        assert all(function["name"] in text[: text.index("How is it?")] for function in FUNCTIONS)
        behind = text[text.rindex("How is it?") :]
        marks = [name for name, _ in wanted] + [f"RESULT-{n}" for n in range(len(wanted))]
        assert all(mark in behind for mark in marks), text
        assert [behind.index(f"RESULT-{n}") for n in range(len(wanted))] == sorted(behind.index(f"RESULT-{n}") for n in range(len(wanted)))


@needs_templates
@pytest.mark.parametrize("name", WITHOUT)
def test_calls_in_our_words_are_read_back(name):
    """Of templates that write none: they are text of the assistant, as the model is told to write them."""
    voice = detect(compiled(name))
    for wanted in VALUES.values():
        messages = asked(wanted, name not in NO_SYSTEM)
        before, whole = prompt(name, messages[: -1 - len(wanted)]), prompt(name, messages)
        written = whole[whole.index("How is it?") + len("How is it?") : whole.index("RESULT-0")]
        assert before[: before.index("How is it?")] == whole[: whole.index("How is it?")]
        assert calls(read([written], voice.format, TOOLS)) == list(wanted), whole


@needs_templates
@pytest.mark.parametrize("name", [name for name, case in WITH_TOOLS.items() if case.one_call])
def test_templates_that_hold_one_call_get_several_one_by_one(name):
    """Parallel calls of a conversation are what they would be one after the other, each with its result."""
    for wanted in (VALUES["two"], VALUES["same twice"]):
        *before, answer, first, second = asked(wanted)
        one, other = ((Message("assistant", None, tool_calls=(call,))) for call in answer.tool_calls)
        assert prompt(name, (*before, answer, first, second)) == prompt(name, (*before, one, first, other, second))
        assert prompt(name, (*before, answer, second, first)) == prompt(name, (*before, one, first, other, second))


@needs_templates
@pytest.mark.parametrize("name", [name for name, case in WITH_TOOLS.items() if case.one_call])
def test_templates_that_hold_one_call_do_not_show_two(name):
    try:
        output = turn(name, WITH_TOOLS[name], VALUES["two"])
    except TemplateError as error:
        assert error.refused
    else:
        assert "get_time" not in output


@needs_templates
@pytest.mark.parametrize("name", WITHOUT)
def test_templates_without_calls_show_none(name):
    try:
        output = turn(name, Template(""), VALUES["string"])
    except TemplateError as error:
        assert error.message
    else:
        assert "get_weather" not in output


@needs_templates
def test_every_public_template_is_listed():
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == WITH_TOOLS.keys() | WITHOUT.keys()


@needs_templates
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_the_format_is_found_from_the_template(name):
    assert detect(compiled(name)).format is FORMATS[WITH_TOOLS[name].format]
