"""Calls whose arguments are JSON: as an object with name and arguments, or arguments alone behind a name."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Emit, Reader, Reading, Steps
from .base import NotACall, ParseCalls, Tools

NAME_LIMIT = 256  # characters


@dataclass(frozen=True, slots=True)
class Keys:
    """What the parts of a call are called in its object. nested: keys of an object that holds name and arguments."""

    name: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters", "args", "input")
    id: tuple[str, ...] = ("id", "tool_call_id", "call_id")
    nested: tuple[str, ...] = ("function", "function_call", "tool_call")
    other: tuple[str, ...] = ("type", "description")

    @property
    def all(self) -> tuple[str, ...]:
        return self.name + self.arguments + self.id + self.nested + self.other


KEYS = Keys()


@dataclass(slots=True)
class _Found:
    """Of a call's object, so far. arguments: those that came before the name."""

    name: str = ""
    id: str = ""
    arguments: str | None = None
    begun: bool = False
    nested: bool = False


def call_object(reader: Reader, answer: Answer, keys: Keys = KEYS, tools: Tools | None = None) -> Steps:
    """One call written as a JSON object.

    Arguments may stand before the name, be an object, a string with one in it, or null, or be left out; an id counts
    if it stands before the arguments, which are passed on as they come.
    tools: where nothing but the object says that it is a call, so that it must have no foreign keys, and arguments or
    the name of one of these. Raises NotACall for what is no object with a name."""
    yield from reader.space()
    if not (yield from reader.match("{")):
        raise NotACall
    found = _Found()
    whole = yield from _members(reader, answer, keys, tools, found)
    if found.begun:
        return
    if not found.name or (tools is not None and found.arguments is None and found.name not in tools):
        raise NotACall
    answer.call(found.name, found.id)
    if found.arguments is None and not whole and (yield from reader.at_end()):
        return
    answer.arguments(object_text(found.arguments or ""))
    answer.called()


def _members(reader: Reader, answer: Answer, keys: Keys, tools: Tools | None, found: _Found) -> Reading[bool]:
    """What stands in the object, its end included. False: it went no further than to something that has no place there,
    or to the end of the output."""
    while not (yield from _closes(reader)):
        key = yield from string(reader)
        if key is None or not (yield from _colon(reader)):
            return False
        if tools is not None and key not in keys.all and not found.begun:
            raise NotACall
        if key in keys.nested and not found.nested and (yield from reader.match("{")):
            found.nested = True
            yield from _members(reader, answer, keys, tools, found)
        elif key in keys.name and not found.name:
            found.name = (yield from string(reader)) or ""
        elif key in keys.id and not found.id and (yield from reader.comes('"')):
            found.id = (yield from string(reader)) or ""
        elif key in keys.arguments and found.name and not found.begun:
            found.begun = True
            yield from arguments_value(reader, answer, found.name, found.id)
        else:
            value: list[str] = []
            yield from reader.json_value(value.append)
            if key in keys.arguments:
                found.arguments = "".join(value)
        if answer.in_call:
            return False
    return True


def call_list(
    reader: Reader, answer: Answer, keys: Keys = KEYS, tools: Tools | None = None, separators: str = ","
) -> Steps:
    """Calls as a JSON array of objects, or as objects one behind the other, with `separators` or nothing between them.

    Stops behind the array, or in front of what is no object. Raises NotACall if there is no call, and for an object
    behind the first that is none."""
    yield from reader.space()
    array = yield from reader.match("[")
    yield from call_items(reader, answer, keys, tools, separators, array)


def call_items(reader: Reader, answer: Answer, keys: Keys, tools: Tools | None, separators: str, array: bool) -> Steps:
    """As `call_list`, behind the bracket that begins the array; array: there was one."""
    yield from call_object(reader, answer, keys, tools)
    while not answer.in_call:
        reader.keep((yield from reader.space()))
        if array and (yield from reader.match("]")):
            return
        separator = yield from reader.first_of(tuple(separators))
        yield from reader.space()
        if not (yield from reader.comes("{")):
            if separator and not array:
                raise NotACall
            return
        reader.keep()
        yield from call_object(reader, answer, keys, tools)


def list_parser(*closers: str, keys: Keys = KEYS) -> ParseCalls:
    """What reads calls as `call_list` does, and one of `closers` behind them."""

    def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
        yield from call_list(reader, answer, keys)
        if not answer.in_call:
            yield from reader.space()
            yield from reader.first_of(closers)

    return parse


def array_envelope(opener: str, closer: str, name: str = "name", arguments: str = "arguments") -> Envelope:
    """An array of objects behind `opener`, which is what calls are known by."""
    return Envelope(
        opener=opener + "[",
        before_name=f'{{"{name}": "',
        after_name=f'", "{arguments}": ',
        after="}",
        separator=", ",
        closer="]" + closer,
        trigger=opener,
        quoted_name=True,
    )


def named_call(reader: Reader, answer: Answer, name: str, id: str = "", ends: tuple[str, ...] = ()) -> Steps:
    """The call `name` with an object of arguments, or none if one of `ends` comes instead. Raises NotACall."""
    yield from reader.space()
    if not name:
        raise NotACall
    for end in ends:
        if (yield from reader.comes(end)):
            answer.whole_call(name, {}, id)
            return
    for beginning in ("{", '"', "null"):
        if (yield from reader.comes(beginning)):
            yield from arguments_value(reader, answer, name, id)
            return
    raise NotACall


def arguments_value(reader: Reader, answer: Answer, name: str, id: str = "") -> Steps:
    """The call `name`, with the JSON value that comes as its arguments. Where the output ends in it, the call stays
    open."""
    yield from reader.space()
    answer.call(name, id)
    if (yield from reader.comes("{")):
        if (yield from reader.json_value(answer.arguments)):
            answer.called()
        return
    value: list[str] = []
    if (yield from reader.json_value(value.append)) or not (yield from reader.at_end()):
        answer.arguments(object_text("".join(value)))
        answer.called()


def text_argument(answer: Answer, key: str) -> Emit:
    """For a call that has begun and takes one text: what passes it on. `close_text` ends it."""
    answer.arguments(json.dumps({key: ""}, ensure_ascii=False)[:-2])
    return lambda text: answer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])


def close_text(answer: Answer) -> None:
    answer.arguments('"}')
    answer.called()


def string(reader: Reader) -> Reading[str | None]:
    """The text of a JSON string; None: there is none, or it does not end."""
    raw: list[str] = []
    if not (yield from reader.comes('"')) or not (yield from reader.json_value(raw.append)):
        return None
    try:
        return encodable(json.loads("".join(raw), strict=False))
    except ValueError:
        return None


def encodable(text: str) -> str:
    """With surrogate pairs joined, and U+FFFD for halves of them: escapes can make those, UTF-8 cannot hold them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def object_text(value: str) -> str:
    """Arguments as a JSON object: `value` itself, the object in a JSON string, or {} for null, nothing and the rest."""
    try:
        parsed = json.loads(value or "{}", strict=False)
        if isinstance(parsed, str):
            value = encodable(parsed)
            parsed = json.loads(value or "{}", strict=False)
    except (ValueError, RecursionError):
        return "{}"
    return (value or "{}") if isinstance(parsed, dict) else "{}"


def _closes(reader: Reader) -> Reading[bool]:
    """Is the object's end next? Consumes it, or the comma before the next key."""
    yield from reader.space()
    yield from reader.match(",")
    yield from reader.space()
    return (yield from reader.match("}"))


def _colon(reader: Reader) -> Reading[bool]:
    yield from reader.space()
    found = yield from reader.match(":")
    yield from reader.space()
    return found
