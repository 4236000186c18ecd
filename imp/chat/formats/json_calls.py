"""Calls whose arguments are JSON: as an object with name and arguments, or arguments alone behind a name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import NotACall

NAMES = ("name", "function", "tool_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")


def call_object(
    reader: Reader, answer: Answer, names: Sequence[str] = NAMES, arguments: Sequence[str] = ARGUMENTS
) -> Steps:
    """One call written as a JSON object: its name under one of `names`, its arguments under one of `arguments`.

    Arguments may stand before the name, be an object, a string with one in it, or null, or be left out.
    Raises NotACall for what is no object with a name."""
    yield from reader.space()
    if not (yield from reader.match("{")):
        raise NotACall
    name = early = ""
    begun = False
    while not (yield from _closes(reader)):
        key = yield from string(reader)
        if key is None or not (yield from _colon(reader)):
            break
        if key in names and not name:
            name = (yield from string(reader)) or ""
        elif key in arguments and name and not begun:
            begun = True
            yield from arguments_value(reader, answer, name)
            if answer.in_call:
                return
        else:
            value: list[str] = []
            yield from reader.json_value(value.append)
            if key in arguments:
                early = "".join(value)
    if begun:
        return
    if not name:
        raise NotACall
    answer.call(name)
    if (yield from reader.at_end()) and not early:
        return
    answer.arguments(object_text(early))
    answer.called()


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


def string(reader: Reader) -> Reading[str | None]:
    """The text of a JSON string; None: there is none, or it does not end."""
    raw: list[str] = []
    if not (yield from reader.comes('"')) or not (yield from reader.json_value(raw.append)):
        return None
    try:
        return json.loads("".join(raw), strict=False)
    except ValueError:
        return None


def object_text(value: str) -> str:
    """Arguments as a JSON object: `value` itself, the object in a JSON string, or {} for null, nothing and the rest."""
    try:
        parsed = json.loads(value or "{}", strict=False)
        if isinstance(parsed, str):
            value, parsed = parsed, json.loads(parsed or "{}", strict=False)
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
