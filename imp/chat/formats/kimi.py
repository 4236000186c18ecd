"""Kimi K2: a section of calls, whose ids hold the name and the number of the call in the conversation.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo"}
    <|tool_call_end|><|tool_calls_section_end|>

without a line break. A template of these has the marker of arguments. The id is kept: the template writes it again.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, Pattern, alone
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall
from .json_calls import named_call
from .section import Section

TEMPLATE_MARKS: tuple[str, ...] = ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")

SECTION = Section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>")
ARGUMENTS, CLOSE = "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _call(reader: Reader, answer: Answer) -> Steps:
    yield from reader.space()
    id = yield from reader.word("<")
    yield from reader.space()
    if not (yield from reader.match(ARGUMENTS)):
        raise NotACall
    name, colon, number = id.rpartition(":")
    numbered = bool(colon) and number.isdecimal()
    name = (name if numbered else id).removeprefix("functions.")
    yield from named_call(reader, answer, name, id if numbered else "", ends=(CLOSE,))
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


ENVELOPE = Envelope(
    opener=SECTION.open,
    before_name=SECTION.call + "functions.",
    after_name=(":", Pattern("0|[1-9][0-9]{0,3}"), ARGUMENTS),
    after=CLOSE,
    closer=SECTION.close,
)
ENVELOPES = (ENVELOPE, alone(ENVELOPE, SECTION.call))
FORMAT = Format("kimi", SECTION.openers, SECTION.parser(_call), (SECTION.close, ARGUMENTS, CLOSE), ENVELOPES)
