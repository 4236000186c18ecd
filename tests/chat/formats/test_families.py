"""What each family has of its own: ids, code, words around text. Expected parts are worked out by hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from imp.chat.answer import Answer
from imp.chat.formats import (
    apertus,
    apriel,
    command,
    command_plus,
    deepseek,
    functionary,
    functionary_v31,
    gigachat,
    gigachat31,
    granite,
    hermes,
    kimi,
    llama,
    mistral,
    mistral_call_id,
    plain,
    solar,
)
from imp.chat.formats.base import Format, Tool, program
from imp.chat.parts import Channel, Opened
from imp.chat.reader import Feed
from tests.chat.formats.harness import Part, calls, same_at_every_cut
from tests.chat.formats.modules import FORMATS
from tests.chat.formats.parts import call, text

SHARED = Path(__file__).resolve().parents[4] / "shared"
TOOLS = (Tool("search"), Tool("now"))
PYTHON = (*TOOLS, Tool("python", {"type": "object", "properties": {"source": {"type": "string"}}}))


def ids(output: str, format: Format) -> list[str]:
    numbers = itertools.count()
    answer = Answer(lambda: f"own_{next(numbers)}")
    feed = Feed(program(format, None, False, answer, {tool.name: tool for tool in TOOLS}))
    feed.push(output)
    feed.close()
    return [event.id for event in answer.events() if isinstance(event, Opened) and event.channel is Channel.TOOL]


def kimi_calls(*written: str) -> str:
    return "".join(f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for id in written)


IDS = {
    "kimi": (kimi_calls("functions.now:0", "functions.search:1"), kimi.FORMAT, ["functions.now:0", "functions.search:1"]),
    "kimi, the same twice": (kimi_calls("functions.now:0", "functions.now:0"), kimi.FORMAT, ["functions.now:0", "own_0"]),
    "kimi, none": (kimi_calls("functions.now"), kimi.FORMAT, ["own_0"]),
    "mistral": ("[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}", mistral_call_id.FORMAT, ["abcdefghi"]),
    "mistral, in front": ('[TOOL_CALLS][{"id": "x1", "name": "now", "arguments": {}}]', mistral.FORMAT, ["x1"]),
    "mistral, too late": ('[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "x1"}]', mistral.FORMAT, ["own_0"]),
    "command": ('<|START_ACTION|>[{"tool_call_id": "4", "tool_name": "now", "parameters": {}}]', command.FORMAT, ["4"]),
    "solar": ("<|tool_call:begin|>z9<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>", solar.FORMAT, ["z9"]),
    "an id that is no text": ('<tool_call>{"id": 7, "name": "now", "arguments": {}}', hermes.FORMAT, ["own_0"]),
    "an empty id": ('<tool_call>{"id": "", "name": "now", "arguments": {}}', hermes.FORMAT, ["own_0"]),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_of_the_model_are_kept_where_they_tell_calls_apart(name):
    output, format, expected = IDS[name]
    assert ids(output, format) == expected


def test_names_of_kimi_are_what_stands_between_the_prefix_and_the_number():
    for id, name in {"functions.a.b:12": "a.b", "search:0": "search", "functions.x:y": "x:y", "search": "search"}.items():
        assert calls(same_at_every_cut(kimi_calls(id), kimi.FORMAT, TOOLS)) == [(name, {})]


A = '{"q": "x"}'
CODE = 'print("a")\nif x:\n    y = {\'é\': "\\n"}\n'
CODE_ARGUMENTS = '{"source": "print(\\"a\\")\\nif x:\\n    y = {\'é\': \\"\\\\n\\"}\\n"}'
CASES: dict[str, tuple[Format, str, tuple[Tool, ...], list[Part]]] = {
    "llama: a built-in tool": (llama.FORMAT, '<|python_tag|>brave_search.call(query="a, b")', TOOLS, [call("brave_search", '{"query": "a, b"}')]),
    "llama: a call in Python": (llama.FORMAT, "<|python_tag|>search(q='x', n=2)", TOOLS, [call("search", '{"q": "x", "n": 2}')]),
    "llama: code": (llama.FORMAT, "<|python_tag|>" + CODE, PYTHON, [call("python", CODE_ARGUMENTS)]),
    "llama: code without a tool for it": (llama.FORMAT, "<|python_tag|>x = 1", TOOLS, [text("<|python_tag|>x = 1")]),
    "llama: an array": (llama.FORMAT, '<|python_tag|>[{"name": "now", "parameters": {}}]', TOOLS, [call("now", "{}")]),
    "llama: arguments": (llama.FORMAT, '{"name": "fly", "arguments": {"a": 1}}', TOOLS, [call("fly", '{"a": 1}')]),
    "llama: text behind": (llama.FORMAT, '{"name": "now", "parameters": {}}\n\nand so on', TOOLS, [call("now", "{}"), text("and so on")]),
    "llama: no parameters, a tool": (llama.FORMAT, '{"name": "now"}', TOOLS, [call("now", "{}")]),
    "llama: no parameters, no tool": (llama.FORMAT, '{"name": "Bob"}', TOOLS, [text('{"name": "Bob"}')]),
    "llama: an answer in JSON": (llama.FORMAT, '{"name": "Bob", "age": 3, "parameters": {}}', TOOLS, [text('{"name": "Bob", "age": 3, "parameters": {}}')]),
    "llama: a comma behind": (llama.FORMAT, '{"name": "now", "parameters": {}}, and', TOOLS, [call("now", "{}"), text(", and")]),
    "llama: JSON later": (llama.FORMAT, 'So: {"name": "now", "parameters": {}}', TOOLS, [text('So: {"name": "now", "parameters": {}}')]),
    "functionary 3.1: code": (functionary_v31.FORMAT, "Well.\n<|python_tag|>" + CODE, PYTHON, [text("Well."), call("python", CODE_ARGUMENTS)]),
    "functionary 3.1: null": (functionary_v31.FORMAT, "<function=now>null</function> and", TOOLS, [call("now", "{}"), text("and")]),
    "functionary 3.1: nothing": (functionary_v31.FORMAT, "<function=now></function><function=search>" + A, TOOLS, [call("now", "{}"), call("search", A)]),
    "functionary 3.1: a tag": (functionary_v31.FORMAT, "the <function=x> tag", TOOLS, [text("the <function=x> tag")]),
    "functionary: text": (functionary.FORMAT, "all\nHi >>> there\n>>> 1", TOOLS, [text("Hi >>> there\n>>> 1")]),
    "functionary: text without tools": (functionary.FORMAT, "all\nHi there", (), [text("Hi there")]),
    "functionary: no recipient": (functionary.FORMAT, "Hi there", TOOLS, [text("Hi there")]),
    "functionary: code": (functionary.FORMAT, f"python\n{CODE}>>>now\n{{}}", PYTHON, [call("python", CODE_ARGUMENTS), call("now", "{}")]),
    "functionary: code as an object": (functionary.FORMAT, 'python\n{"source": "1"}', PYTHON, [call("python", '{"source": "1"}')]),
    "functionary: text, calls, text": (
        functionary.FORMAT,
        f"all\nLook:>>>search\n{A}\n>>>now\n{{}}>>>all\nDone",
        *(TOOLS, [text("Look:"), call("search", A), call("now", "{}"), text("Done")]),
    ),
    "functionary: nothing": (functionary.FORMAT, f"now\n>>>search\n{A}", TOOLS, [call("now", "{}"), call("search", A)]),
    "command: an answer": (command.FORMAT, "<|START_RESPONSE|>Hi <b>there</b><|END_RESPONSE|>", TOOLS, [text("Hi <b>there</b>")]),
    "command: an answer without tools": (command.FORMAT, "<|START_TEXT|>Hi<|END_TEXT|>", (), [text("Hi")]),
    "command plus: a word": (command_plus.FORMAT, "Action: go home.", TOOLS, [text("Action: go home.")]),
    "command plus: other code": (command_plus.FORMAT, "Action:\n```python\nx\n```", TOOLS, [text("Action:\n```python\nx\n```")]),
    "deepseek: without a fence": (
        deepseek.FORMAT,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n{A}<｜tool▁call▁end｜>",
        *(TOOLS, [call("search", A)]),
    ),
    "deepseek: nothing": (
        deepseek.FORMAT,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        *(TOOLS, [call("now", "{}")]),
    ),
    "deepseek: v3.1 without arguments": (
        deepseek.FORMAT,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        *(TOOLS, [call("now", "{}")]),
    ),
    "apertus: a function called name": (
        apertus.FORMAT,
        '<|tools_prefix|>[{"name": {"arguments": 1}}, {"now": null}]<|tools_suffix|>',
        *(TOOLS, [call("name", '{"arguments": 1}'), call("now", "{}")]),
    ),
    "gigachat: a role": (gigachat.FORMAT, "a function call<|role_sep|>is", TOOLS, [text("a function call<|role_sep|>is")]),
    "gigachat: the end of a turn": (gigachat.FORMAT, "Hi there<|message_sep|>\n\n", (), [text("Hi there")]),
    "gigachat: a turn in a turn": (gigachat31.FORMAT, "Hi<|message_sep|> there<|function_call|>", TOOLS, [text("Hi there<|function_call|>")]),
    "granite: one object": (granite.FORMAT, '<|tool_call|> {"name": "now", "arguments": {}}', TOOLS, [call("now", "{}")]),
    "apriel: an object that is no call behind one that is": (
        apriel.FORMAT,
        '<tool_calls>[{"name": "now"}, {"a": 1}]</tool_calls>',
        *(TOOLS, [call("now", "{}"), text('{"a": 1}]</tool_calls>')]),
    ),
    "a second call that is cut off": (
        mistral.FORMAT,
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "search", "arguments": {"q": "x',
        *(TOOLS, [call("now", "{}"), call("search", '{"q": "x','{"name": "search", "arguments": {"q": "x')]),
    ),
    "mistral: no call": (mistral.FORMAT, "[TOOL_CALLS]now[ARGS]nothing", TOOLS, [text("[TOOL_CALLS]now[ARGS]nothing")]),
    "mistral: text as arguments": (mistral.FORMAT, r'[TOOL_CALLS]search[ARGS]"{\"q\": 1}"', TOOLS, [call("search", '{"q": 1}')]),
    "a name with half a surrogate pair": (hermes.FORMAT, r'<tool_call>{"name": "a\ud800", "arguments": {}}</tool_call>', TOOLS, [call("a\ufffd", "{}")]),
    "text with half a surrogate pair": (hermes.FORMAT, r'<tool_call>{"name": "a", "arguments": "{\"q\": \"\ud800\"}"}', TOOLS, [call("a", '{"q": "\ufffd"}')]),
    "objects in objects": (hermes.FORMAT, '<tool_call>{"function": ' * 3, TOOLS, [text('<tool_call>{"function": ' * 3)]),
    "plain: an answer in JSON": (plain.FORMAT, '{"name": "Bob"}', TOOLS, [text('{"name": "Bob"}')]),
    "plain: a fence": (plain.FORMAT, "```json\n{}\n```", TOOLS, [text("```json\n{}\n```")]),
    "plain: a list": (plain.FORMAT, "[1, 2, 3]", TOOLS, [text("[1, 2, 3]")]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_output_has_these_parts_however_it_is_cut(name):
    format, output, tools, parts = CASES[name]
    assert same_at_every_cut(output, format, tools) == parts


def test_g02_09_calls_in_calls_without_end_are_bounded():
    for piece in ('{"function": ', '{"name": {', "[", '{"a": ['):
        same_at_every_cut("<tool_call>" + piece * 3000, hermes.FORMAT, TOOLS, ways=1)


TEMPLATES = {
    "apertus": ["Apertus-8B-Instruct"],
    "apriel": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "command": ["CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Cohere2MoE"],
    "command-plus": ["CohereForAI-c4ai-command-r-plus-tool_use"],
    "deepseek": ["deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"],
    "deepseek-v3.1": ["deepseek-ai-DeepSeek-V3.1"],
    "firefunction": ["fireworks-ai-llama-3-firefunction-v2"],
    "functionary": ["meetkai-functionary-medium-v3.2"],
    "functionary-v3.1": ["meetkai-functionary-medium-v3.1"],
    "gigachat": ["GigaChat3-10B-A1.8B"],
    "gigachat-3.1": ["GigaChat3.1-10B-A1.8B"],
    "granite": ["ibm-granite-granite-3.3-2B-Instruct"],
    "hermes": [
        "Bielik-11B-v3.0-Instruct", "MiMo-VL", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Qwen-Qwen3-0.6B",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-QwQ-32B", "Qwen-Qwen2.5-7B-Instruct", "Reka-Edge",
        "ibm-granite-granite-4.0", "ibm-granite-granite-4.1",
    ],
    "kimi": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"],
    "llama": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"],
    "minimax-m1": ["MiniMax-M1"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "mistral-args": ["mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"],
    "mistral-call-id": ["Mistral-Small-3.2-24B-Instruct-2506"],
    "nemotron": ["NVIDIA-Nemotron-Nano-v2"],
    "plain": ["google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct", "HuggingFaceTB-SmolLM3-3B"],
    "solar": ["upstage-Solar-Open-100B"],
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_known_by_its_marks(name):
    """The format whose marks all occur; of several the one with most marks."""
    for template in TEMPLATES[name]:
        path = SHARED / "data/templates" / f"{template}.jinja"
        if not path.exists():
            pytest.skip("shared/data/templates is not here")
        source = path.read_text()
        fits = {format.name: len(marks) for format, marks in FORMATS if all(mark in source for mark in marks)}
        assert [format for format, marks in fits.items() if marks == max(fits.values())] == [name], template
