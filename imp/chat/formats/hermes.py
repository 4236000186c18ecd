"""Hermes, Qwen 2.5 and 3, and many after them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .json_calls import call_object

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from call_object(reader, answer)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


FORMAT = Format("hermes", (OPEN,), parse, (CLOSE,))
