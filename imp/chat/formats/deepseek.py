"""DeepSeek V3 and R1, and what was distilled from it: a section of calls, with fenced JSON.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

A template of these has the call's marker and the fence "```json". V3.1's way is read as well (`deepseek_v31`).
"""

from __future__ import annotations

from ...constrain.tools import Envelope, alone
from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import Format, NotACall
from .json_calls import named_call
from .section import Section

TEMPLATE_MARKS: tuple[str, ...] = ("<｜tool▁call▁begin｜>", "```json")

SECTION = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>")
SEPARATOR, CLOSE = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"


def _call(reader: Reader, answer: Answer) -> Steps:
    yield from reader.space()
    first = yield from reader.word("<")
    yield from reader.space()
    if not (yield from reader.match(SEPARATOR)):
        raise NotACall
    yield from reader.space()
    name = yield from reader.word('<`{"')
    if first and name == "null" and (yield from reader.comes(CLOSE)):
        answer.whole_call(first, {})
    elif not name:
        yield from named_call(reader, answer, first, ends=(CLOSE,))
    else:
        fenced = yield from _fence(reader)
        yield from named_call(reader, answer, name, ends=(FENCE, CLOSE))
        if fenced and not answer.in_call:
            yield from reader.space()
            yield from reader.match(FENCE)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(CLOSE)


def _fence(reader: Reader) -> Reading[bool]:
    yield from reader.space()
    fenced = yield from reader.match(FENCE)
    if fenced:
        yield from reader.match("json")
    return fenced


ENVELOPE = Envelope(
    opener=SECTION.open,
    before_name=SECTION.call + "function" + SEPARATOR,
    after_name="\n```json\n",
    after="\n```" + CLOSE,
    separator="\n",
    closer=SECTION.close,
)
CLOSERS = (SECTION.close, SEPARATOR, CLOSE)
parse = SECTION.parser(_call)
FORMAT = Format("deepseek", SECTION.openers, parse, CLOSERS, (ENVELOPE, alone(ENVELOPE, SECTION.call)))
