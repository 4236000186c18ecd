"""LFM2 and LFM2.5: calls as a list in Python, between markers; objects there are read too.

    <|tool_call_start|>[weather(city="Oslo", days=3)]<|tool_call_end|>

A template of these lists the tools behind `List of tools: `.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .python_calls import python_list
from .pythonic import PARAMETERS

TEMPLATE_MARKS: tuple[str, ...] = ("List of tools: ",)

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from python_list(reader, answer, tools)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


ENVELOPE = Envelope(
    opener=OPEN + "[",
    before_name="",
    after_name="(",
    after=")",
    separator=", ",
    closer="]" + CLOSE,
    trigger=OPEN,
    parameters=PARAMETERS,
)
FORMAT = Format("lfm2", (OPEN,), parse, (CLOSE,), (ENVELOPE,))
