"""MiniMax M3: every tag behind a control token; arguments are elements, and so are the values within them.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="book">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[<days>]<]minimax[>[<item>1
    ]<]minimax[>[</item>]<]minimax[>[</days>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

(no line breaks within an invoke). A value may also be JSON.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts, alone
from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import Format, NotACall, Tools
from .typed import STRING, Members, Shape, json_of, quoted

TEMPLATE_MARKS = ("]<]minimax[>[", "<tool_call>")

TOKEN = "]<]minimax[>["
OPEN, CLOSE = f"{TOKEN}<tool_call>", f"{TOKEN}</tool_call>"
CALL, CALL_END = f'{TOKEN}<invoke name="', f"{TOKEN}</invoke>"
ELEMENT, ELEMENT_END = f"{TOKEN}<", f"{TOKEN}</"
_DEPTH = 32


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == OPEN:
        yield from reader.space()
        if not (yield from reader.match(CALL)):
            raise NotACall
    yield from _call(reader, answer, tools)
    while not answer.in_call:
        reader.keep((yield from reader.space()))
        if (yield from reader.match(CLOSE)) or not (yield from reader.match(CALL)):
            return
        yield from _call(reader, answer, tools)


def _call(reader: Reader, answer: Answer, tools: Tools) -> Steps:
    name = yield from reader.word('<>"{}')
    if not name or not (yield from reader.match('">')):
        raise NotACall
    answer.call(name)
    members = Members(answer, tools[name].parameters if name in tools else {})
    while True:
        yield from reader.until((TOKEN,), _drop)
        tag = yield from _tag(reader)
        if not tag:
            return
        if tag.startswith("/"):  # of the invoke; without one, of what is around it
            members.end()
            return
        shape = members.shape(tag)
        members.open(tag, shape.kinds)
        if not (yield from _value(reader, members, shape)):
            return
        members.close()


def _value(reader: Reader, members: Members, shape: Shape) -> Reading[bool]:
    """An argument's value, its closing tag included. Strings are passed on as they come."""
    if shape.kinds != STRING:
        value = yield from _element(reader, shape, _DEPTH)
        if value is not None:
            members.known(value)
        return value is not None
    while (yield from reader.until((TOKEN,), members.piece)):
        if (yield from reader.comes("</")):
            yield from _tag(reader)
            return True
        members.piece(TOKEN)
    return False


def _element(reader: Reader, shape: Shape, depth: int) -> Reading[str | None]:
    """The JSON of an element's value, behind its tag; None: the output ends in it, or it goes too deep."""
    text: list[str] = []
    inner: list[tuple[str, str]] = []
    while depth and (yield from reader.until((TOKEN,), text.append)):
        tag = yield from _tag(reader)
        if tag.startswith("/"):
            return _json(shape, "".join(text), inner)
        below = shape.items() if tag == "item" and "array" in shape.kinds else shape.member(tag)
        value = yield from _element(reader, below, depth - 1)
        if value is None:
            return None
        inner.append((tag, value))
    return None


def _json(shape: Shape, text: str, inner: list[tuple[str, str]]) -> str:
    bare = text.strip()
    if not inner and (bare or "string" in shape.kinds or not shape.kinds & {"array", "object"}):
        return json_of(text, shape.kinds)
    if "array" in shape.kinds and all(tag == "item" for tag, _ in inner) and (inner or "object" not in shape.kinds):
        return "[" + ", ".join(value for _, value in inner) + "]"
    return "{" + ", ".join(f"{quoted(tag)}: {value}" for tag, value in dict(inner).items()) + "}"


def _tag(reader: Reader) -> Reading[str]:
    """The name in a tag, behind its token, with the slash of a closing one; "": it does not end, or there is none."""
    name: list[str] = []
    if not (yield from reader.match("<")) or not (yield from reader.until((">",), name.append)):
        return ""
    return "".join(name)


def _drop(text: str) -> None:
    """White space between tags, or what a model has no business to write there."""


ENVELOPE = Envelope(
    opener=f"{OPEN}\n",
    before_name=CALL,
    after_name='">',
    after=f"{CALL_END}\n",
    closer=CLOSE,
    trigger=OPEN,
    parameters=ParameterTexts(
        ELEMENT, ">", ELEMENT_END, marker=TOKEN, named_end=">", key=r'[^\s<>="/\]\[]+'
    ),
)
FORMAT = Format("minimax-m3", (OPEN, CALL), parse, (TOKEN, CLOSE, CALL_END, "</", ">"), (ENVELOPE, alone(ENVELOPE)))
