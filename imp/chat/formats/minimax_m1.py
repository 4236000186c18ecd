"""MiniMax M1: objects between tags, one a line.

    <tool_calls>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_calls>

A template of these names the tag, and its turns begin with `<beginning_of_sentence>`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<beginning_of_sentence>", "<tool_calls>")

OPEN, CLOSE = "<tool_calls>", "</tool_calls>"
ENVELOPE = Envelope(
    opener=OPEN + "\n",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after="}\n",
    closer=CLOSE,
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("minimax-m1", (OPEN,), list_parser(CLOSE), (CLOSE,), (ENVELOPE,))
