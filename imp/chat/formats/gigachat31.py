"""GigaChat 3.1: an object behind a marker.

    Let me look.<|function_call|>{"name": "weather", "arguments": {"city": "Oslo"}}<|message_sep|>

A template of these names the marker.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|role_sep|>", "<|message_sep|>", "<|function_call|>")

OPEN, END = "<|function_call|>", "<|message_sep|>"
ENVELOPE = Envelope(
    before_name=OPEN + '{"name": "',
    after_name='", "arguments": ',
    after="}",
    trigger=OPEN,
    quoted_name=True,
    parallel=False,
)
FORMAT = Format("gigachat-3.1", (OPEN,), list_parser(END), (END,), (ENVELOPE,))
