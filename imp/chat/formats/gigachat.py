"""GigaChat 3: an object in a turn of its own, with the role of a function call.

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "weather", "arguments": {"city": "Oslo"}}<|message_sep|>

A template of these separates roles with `<|role_sep|>` and knows the role "function call". The marker that ends a turn
is dropped where the model goes on behind it.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, ParseCalls, Tools
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|role_sep|>", "<|message_sep|>", "'role': 'function call'")

END = "<|message_sep|>"
OPEN = "function call<|role_sep|>"
BEHIND_TEXT = END + "\n\n" + OPEN


def without_ends(calls: ParseCalls) -> ParseCalls:
    """Calls, and ends of turns, which are no text."""

    def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
        if opener == END:
            space = yield from reader.space()
            if not (yield from reader.at_end()):
                answer.text(space)
        elif tools:
            yield from calls(opener, reader, answer, tools)
        else:
            answer.text(opener)

    return parse


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
FORMAT = Format(
    "gigachat",
    (OPEN, BEHIND_TEXT, END),
    without_ends(list_parser(END)),
    ("<|role_sep|>",),
    ENVELOPES,
    always=True,
)
