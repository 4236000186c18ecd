"""Gemma 4: arguments in a notation of its own, with a control token for the quotation mark.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3,more:{tags:[<|"|>a<|"|>],all:true}}<tool_call|>

Values are also read as JSON, and bare words as the tool's schema has them.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts
from ..answer import Answer
from ..reader import Emit, Reader, Reading, Steps
from .base import Format, NotACall, Tools
from .json_calls import string
from .typed import Shape, json_of, quoted

TEMPLATE_MARKS = ("<|tool_call>call:", '<|"|>')

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
RESULT = "<|tool_response>"  # what a model writes behind its calls, to be given their results
_DEPTH = 64
_BEHIND_WORD = (",", "}", "]", CLOSE)


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from reader.space()
    if not (yield from reader.match("call:")):
        raise NotACall
    name = yield from reader.word("{<>")
    yield from reader.space()
    if not name or not (yield from reader.match("{")):
        raise NotACall
    answer.call(name)
    parameters = tools[name].parameters if name in tools else {}
    answer.arguments("{")
    if not (yield from _object(reader, answer.arguments, Shape(parameters, parameters), _DEPTH)):
        return
    answer.called()
    yield from reader.space()
    yield from reader.match(CLOSE)
    yield from reader.match(RESULT)


def _value(reader: Reader, emit: Emit, shape: Shape, depth: int) -> Reading[bool]:
    """Hand on a value as JSON; False: the output ends in it, or it goes too deep."""
    yield from reader.space()
    if (yield from reader.match(QUOTE)):
        emit('"')
        if not (yield from reader.until((QUOTE,), lambda text: emit(quoted(text)[1:-1]))):
            return False
        emit('"')
        return True
    if (yield from reader.comes('"')):
        return (yield from reader.json_value(emit))
    if depth and (yield from reader.match("{")):
        emit("{")
        return (yield from _object(reader, emit, shape, depth - 1))
    if depth and (yield from reader.match("[")):
        emit("[")
        return (yield from _array(reader, emit, shape.items(), depth - 1))
    word: list[str] = []
    if not (yield from reader.before(_BEHIND_WORD, word.append)):
        return False
    emit(json_of("".join(word).strip(), shape.kinds))
    return True


def _object(reader: Reader, emit: Emit, shape: Shape, depth: int) -> Reading[bool]:
    """Hand on the members behind the brace, and the closing one, if there is one before the call's end."""
    first = True
    while not (yield from _ends(reader, "}")):
        key = yield from _key(reader)
        if key is None:
            return False
        emit(("" if first else ", ") + quoted(key) + ": ")
        first = False
        if not (yield from _value(reader, emit, shape.member(key), depth)):
            return False
    emit("}")
    return True


def _array(reader: Reader, emit: Emit, shape: Shape, depth: int) -> Reading[bool]:
    first = True
    while not (yield from _ends(reader, "]")):
        if not first:
            emit(", ")
        first = False
        if not (yield from _value(reader, emit, shape, depth)):
            return False
    emit("]")
    return True


def _ends(reader: Reader, bracket: str) -> Reading[bool]:
    """Is the closing bracket next, or the call's end, which closes all? Consumes it, or a comma."""
    yield from reader.space()
    yield from reader.match(",")
    yield from reader.space()
    return (yield from reader.match(bracket)) or (yield from reader.comes(CLOSE))


def _key(reader: Reader) -> Reading[str | None]:
    """A key, bare or quoted, and the colon behind it; None: the output ends before."""
    parts: list[str] = []
    if (yield from reader.match(QUOTE)):
        if not (yield from reader.until((QUOTE,), parts.append)):
            return None
    elif (yield from reader.comes('"')):
        parts.append((yield from string(reader)) or "")
    return "".join(parts).strip() if (yield from reader.until((":",), parts.append)) else None


ENVELOPE = Envelope(
    before_name=f"{OPEN}call:",
    after_name="{",
    after=f"}}{CLOSE}",
    trigger=OPEN,
    parameters=ParameterTexts(
        "", f":{QUOTE}", QUOTE, separator=",", key=r'[^\s<>="{}:,|]+', quote=QUOTE, after_key_json=":", end_json=""
    ),
)
FORMAT = Format("gemma4", (OPEN,), parse, (CLOSE, QUOTE, RESULT), (ENVELOPE,))
