"""GigaChat 3: an object in a turn of its own, with the role of a function call.

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "weather", "arguments": {"city": "Oslo"}}<|message_sep|>

A template of these separates roles with `<|role_sep|>` and knows the role "function call".
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|role_sep|>", "<|message_sep|>", "'role': 'function call'")

END = "<|message_sep|>"
OPEN = "function call<|role_sep|>"
BEHIND_TEXT = END + "\n\n" + OPEN
ENVELOPES = tuple(
    Envelope(
        before_name=opener + '\n{"name": "',
        after_name='", "arguments": ',
        after="}" + END,
        trigger=opener,
        quoted_name=True,
        parallel=False,
    )
    for opener in (OPEN, BEHIND_TEXT)
)
FORMAT = Format("gigachat", (OPEN, BEHIND_TEXT), list_parser(END), (END, "<|role_sep|>"), ENVELOPES)
