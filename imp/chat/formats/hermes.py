"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, SmolLM3, Granite 4, MiMo, Reka, Bielik: an object between tags.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

A template of these names the tag and the key `"arguments"`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .json_calls import call_object

TEMPLATE_MARKS = ("<tool_call>", '"arguments')

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from call_object(reader, answer)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


ENVELOPE = Envelope(
    before_name=OPEN + '\n{"name": "',
    after_name='", "arguments": ',
    after="}\n" + CLOSE,
    separator="\n",
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("hermes", (OPEN,), parse, (CLOSE,), (ENVELOPE,))
