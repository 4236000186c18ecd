"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, SmolLM3, Granite 4, MiMo, Reka, Bielik: an object between tags.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

A template of these names the tag and the key `"arguments"`. Several objects between two tags are read too.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<tool_call>", '"arguments')

OPEN, CLOSE = "<tool_call>", "</tool_call>"

ENVELOPE = Envelope(
    before_name=OPEN + '\n{"name": "',
    after_name='", "arguments": ',
    after="}\n" + CLOSE,
    separator="\n",
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("hermes", (OPEN,), list_parser(CLOSE), (CLOSE,), (ENVELOPE,))
