"""Llama 4, and Llama 3.2 as its model card tells it: calls as a list in Python, as the answer or between markers.

    [weather(city="Oslo", days=3), now()]

A template of these teaches it in words, with `[func_name1(`.
"""

from __future__ import annotations

from dataclasses import replace

from ...constrain.tools import Envelope, ParameterTexts, Words
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .python_calls import python_list

TEMPLATE_MARKS: tuple[str, ...] = ("[func_name1(",)

OPEN, CLOSE = "<|python_start|>", "<|python_end|>"
KEY = r"[^\s()\[\]{},:=\"'<>]+"  # what the reader takes for a keyword
PARAMETERS = ParameterTexts("", "=", separator=", ", key=KEY, quote='"', words=Words("None", "True", "False"))


def start(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from python_list(reader, answer, tools, known=True)


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from python_list(reader, answer, tools)
    yield from reader.space()
    yield from reader.match(CLOSE)


ENVELOPE = Envelope(
    opener="[",
    before_name="",
    after_name="(",
    after=")",
    separator=", ",
    closer="]",
    parameters=PARAMETERS,
    at_start=True,
    by_name=True,
)
SPACED = tuple(replace(ENVELOPE, opener=opener) for opener in ("[ ", "[\n", "[\n  ", "[\n    "))
MARKED = replace(ENVELOPE, opener=OPEN + "[", closer="]" + CLOSE, trigger=OPEN, at_start=False, by_name=False)
FORMAT = Format("pythonic", (OPEN,), parse, (CLOSE,), (ENVELOPE, *SPACED, MARKED), start=start)
