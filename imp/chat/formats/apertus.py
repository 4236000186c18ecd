"""Apertus: an array of objects whose only key is the name.

    <|tools_prefix|>[{"weather": {"city": "Oslo"}}, {"now": {}}]<|tools_suffix|>

A template of these names the marker. Objects with `"name"` and `"arguments"` are no calls here: a function may be
called "name".
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall, Tools
from .json_calls import arguments_value, string

TEMPLATE_MARKS: tuple[str, ...] = ("<|tools_prefix|>", "<|tools_suffix|>")

OPEN, CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from reader.space()
    if not (yield from reader.match("[")):
        raise NotACall
    yield from reader.space()
    yield from _call(reader, answer)
    while not answer.in_call:
        reader.keep((yield from reader.space()))
        if (yield from reader.match("]")):
            break
        yield from reader.match(",")
        yield from reader.space()
        if not (yield from reader.comes("{")):
            break
        yield from _call(reader, answer)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


def _call(reader: Reader, answer: Answer) -> Steps:
    if not (yield from reader.match("{")):
        raise NotACall
    yield from reader.space()
    name = yield from string(reader)
    yield from reader.space()
    if not name or not (yield from reader.match(":")):
        raise NotACall
    yield from arguments_value(reader, answer, name)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match("}")


ENVELOPE = Envelope(
    opener=OPEN + "[",
    before_name='{"',
    after_name='": ',
    after="}",
    separator=", ",
    closer="]" + CLOSE,
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("apertus", (OPEN,), parse, (CLOSE,), (ENVELOPE,))
