"""Command R7B, Command A and later ones of Cohere: an array between markers, with keys of its own and ids.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}
    ]<|END_ACTION|>

A template of these names the marker. Markers around answers in words are dropped, with tools or without.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, Pattern
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .json_calls import list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|START_ACTION|>", '"tool_call_id"')

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
AROUND_TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

_calls = list_parser(CLOSE)


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == OPEN and tools:
        yield from _calls(opener, reader, answer, tools)
    elif opener == OPEN:
        answer.text(opener)


ENVELOPE = Envelope(
    opener=OPEN + "[\n    ",
    before_name=('{"tool_call_id": "', Pattern("0|[1-9][0-9]{0,3}"), '", "tool_name": "'),
    after_name='", "parameters": ',
    after="}",
    separator=",\n    ",
    closer="\n]" + CLOSE,
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("command", (OPEN, *AROUND_TEXT), parse, (CLOSE,), (ENVELOPE,), always=True)
