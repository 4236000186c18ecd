"""--reasoning-format none: reasoning stays in the content, with its markers, the one that the prompt has too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from imp import settings
from imp.bundle import Bundle
from imp.chat.formats import harmony
from imp.chat.formats.base import Thinking
from imp.chat.speech import Voice
from imp.script import file, load

from .spoken import OPENS, TEMPLATE, THINKING, speaking
from .test_thinking_matrix import told

NONE = replace(THINKING, splits=False)
HARMONY = Voice(harmony.FORMAT, Thinking("<|channel|>analysis<|message|>", "<|end|>"), splits=False)
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("voice", "template", "said", "content"),
    [
        (NONE, TEMPLATE, "<think>so</think>4", "<think>so</think>4"),
        (NONE, TEMPLATE, "4", "4"),
        (NONE, OPENS, "so</think>4", "<think>so</think>4"),
        (NONE, OPENS, "so", "<think>so"),
        (NONE, OPENS, f"shall I {CALL}?</think>4", f"<think>shall I {CALL}?</think>4"),
        (
            HARMONY,
            TEMPLATE,
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>4",
            "<|channel|>analysis<|message|>so<|end|>\n\n4",  # a message of its own
        ),
    ],
)
def test_reasoning_stays_in_the_content(voice: Voice, template: str, said: str, content: str, stream: bool):
    async def ask() -> None:
        async with speaking(said, voice=voice, template=template) as server:
            asked = [{"role": "user", "content": "2+2?"}]
            tools = {"tools": TOOLS} if CALL in said else {}
            answer = await server.post("/v1/chat/completions", messages=asked, stream=stream, **tools)
            got = told(answer, stream)
            assert (got.content, got.reasoning, got.finish) == (content, "", "stop")

    asyncio.run(ask())


def built(*arguments: str, template: str = TEMPLATE) -> Bundle:
    script = replace(file.parse({"replies": [{"pieces": ["ok"]}]}, Path()), template=template)
    return load.build(script, settings.load(arguments))


def test_the_settings_reach_the_voice():
    assert built().facts.voice.splits and not built("--reasoning-format", "none").facts.voice.splits
    assert built("--tool-call-parser", "glm").facts.voice.format.name == "glm"
    named = built("--tool-call-parser", "qwen_xml", "--chat-template", "llama3").facts.voice
    assert named.format.name == "qwen-xml" and not named.shows_tools
    with pytest.raises(Exception, match=r"--tool-call-parser nobodys: not one of auto, .*hermes"):
        built("--tool-call-parser", "nobodys")
    with pytest.raises(settings.SettingsError, match="reasoning-format"):
        built("--reasoning-format", "deepsea")


def test_the_tokens_of_markers_are_seen():
    bundle = built(template=OPENS.replace("<think>", "<|channel|>analysis<|message|>"))
    texts = {bundle.tokenizer.token_text(token) for token in bundle.facts.visible_ids}
    assert {"<|channel|>", "<|message|>"} <= texts and "<|assistant|>" not in texts
