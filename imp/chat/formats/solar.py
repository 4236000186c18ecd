"""Solar Open: id, name and arguments between markers.

    <|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>{"city": "Oslo"}<|tool_call:end|><|calls|>

A template of these has the call's marker. An output is several messages, `<|begin|>assistant<|content|>` and the like
between them, and each ends with `<|end|>` or `<|calls|>`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, Pattern, alone
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall, Tools
from .json_calls import named_call
from .section import Section

TEMPLATE_MARKS: tuple[str, ...] = ("<|tool_call:begin|>", "<|tool_call:args|>")

SECTION = Section("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>")
NAME, ARGUMENTS, CLOSE = "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"


def _call(reader: Reader, answer: Answer) -> Steps:
    id = yield from reader.word("<")
    if not (yield from reader.match(NAME)):
        raise NotACall
    name = yield from reader.word("<")
    if not (yield from reader.match(ARGUMENTS)):
        raise NotACall
    yield from named_call(reader, answer, name, id, ends=(CLOSE,))
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


_calls = SECTION.parser(_call)
CONTENT, THINK, END = "<|content|>", "<|think|>", "<|end|>"
AROUND_TEXT = ("<|begin|>assistant", "<|begin|>", CONTENT, END)


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == CONTENT:
        answer.message()
    elif opener == THINK:
        yield from reader.until((END,), answer.reasoning)
        answer.thought()
    elif opener not in AROUND_TEXT:
        if tools:
            yield from _calls(opener, reader, answer, tools)
        else:
            answer.text(opener)


ENVELOPE = Envelope(
    opener=SECTION.open,
    before_name=(SECTION.call, Pattern("[a-z0-9]{10}"), NAME),
    after_name=ARGUMENTS,
    after=CLOSE,
    closer=SECTION.close,
)
FORMAT = Format(
    "solar",
    (*SECTION.openers, *AROUND_TEXT, THINK),
    parse,
    (SECTION.close, NAME, ARGUMENTS, CLOSE),
    (ENVELOPE, alone(ENVELOPE)),
    always=True,
)
