"""Functionary 3.2: every part of an answer says to whom it goes, and `all` is the reader.

    all
    Let me look.>>>weather
    {"city": "Oslo"}>>>now
    {}

The prompt ends with the first `>>>`. A template of these explains it as `>>>${recipient}`. What goes to `python` is
code, unless it is an object.
"""

from __future__ import annotations

from ...constrain.framing import Frame
from ...constrain.tools import Envelope
from ...types import Headers
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall, Tools
from .json_calls import named_call
from .llama import CODE_TOOLS, code

TEMPLATE_MARKS: tuple[str, ...] = (">>>${recipient}",)

OPEN = ">>>"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if not opener:
        yield from reader.space()
    name = yield from reader.word("<>{")
    if not (yield from reader.match("\n")):
        raise NotACall
    if name == "all":
        return
    if name not in tools:  # three angle brackets are no certain sign of a call
        raise NotACall
    yield from reader.space()
    if name in CODE_TOOLS and name in tools and not (yield from reader.comes("{")):
        yield from code(reader, answer, tools, name, (OPEN,))
    else:
        yield from named_call(reader, answer, name, ends=(OPEN,))


FIRST = Envelope(before_name="", after_name="\n", after="", separator=OPEN, at_start=True, by_name=True)
LATER = Envelope(before_name=OPEN, after_name="\n", after="", by_name=True)
FORMAT = Format(
    "functionary",
    (OPEN,),
    parse,
    (),
    (FIRST, LATER),
    start=parse,
    always=True,
    frame=Frame("all\n"),
    headers=Headers((OPEN,), ("\n",), begun=True),
)
