"""GigaChat 3.1: an object behind a marker.

    Let me look.<|function_call|>{"name": "weather", "arguments": {"city": "Oslo"}}<|message_sep|>

A template of these names the marker.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .gigachat import END, without_ends
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|role_sep|>", "<|message_sep|>", "<|function_call|>")

OPEN = "<|function_call|>"
ENVELOPE = Envelope(
    before_name=OPEN + '{"name": "',
    after_name='", "arguments": ',
    after="}",
    trigger=OPEN,
    quoted_name=True,
    parallel=False,
)
FORMAT = Format("gigachat-3.1", (OPEN, END), without_ends(list_parser(END)), (), (ENVELOPE,), always=True)
