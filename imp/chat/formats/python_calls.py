"""Calls as Python writes them: names, keyword arguments and literals. Read by rules of our own, never evaluated."""

from __future__ import annotations

import json
import math
import re
import string
import sys
from collections.abc import Mapping

from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import NotACall, Tools
from .json_calls import KEYS, call_items, encodable

MAX_DEPTH = 32  # of lists and dictionaries in each other
WORDS: Mapping[str, str] = {
    "None": "null",
    "True": "true",
    "False": "false",
    "null": "null",
    "true": "true",
    "false": "false",
}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CODE = re.compile(r"[-+]?0[0-9]")
_STOPS = "()[]{},:=\"'"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_CODE_POINT = {"x": 2, "u": 4, "U": 8}  # digits behind the letter


def python_list(reader: Reader, answer: Answer, tools: Tools, known: bool = False) -> Steps:
    """`[f(a=1), g()]`, or the same with one call and no brackets, or with JSON objects. known: of tools that exist.

    A call is passed on when it is complete. Raises NotACall for what is none."""
    yield from reader.space()
    array = yield from reader.match("[")
    yield from reader.space()
    if not known and (yield from reader.comes("{")):
        yield from call_items(reader, answer, KEYS, None, ",", array)
        return
    if known and not array:
        raise NotACall
    yield from python_call(reader, answer, tools, known)
    while True:
        reader.keep((yield from reader.space()))
        if array and (yield from reader.match("]")):
            return
        comma = yield from reader.match(",")
        yield from reader.space()
        if (yield from reader.at_end()) or (yield from reader.comes("<")):
            return
        if not comma:
            raise NotACall
        if array and (yield from reader.match("]")):
            return
        yield from python_call(reader, answer, tools, known)


def python_call(reader: Reader, answer: Answer, tools: Tools, known: bool = False, method: str = "") -> Steps:
    """`f(a=1, b="x")`; method: `f.METHOD(...)` is the same. Values without a keyword go by the schema's order."""
    name = yield from reader.word(_STOPS + "<")
    if method:
        name = name.removesuffix("." + method)
    yield from reader.space()
    if not name or (known and name not in tools) or not (yield from reader.match("(")):
        raise NotACall
    order = list(tools[name].parameters.get("properties") or ()) if name in tools else []
    arguments: dict[str, str] = {}
    while not (yield from _closed(reader, ")")):
        key, value = yield from _argument(reader)
        if key is None and len(arguments) >= len(order):
            raise NotACall
        arguments[order[len(arguments)] if key is None else key] = value
        yield from _comma(reader, ")")
    answer.call(name)
    answer.arguments(_json_object(arguments))
    answer.called()


def _argument(reader: Reader) -> Reading[tuple[str | None, str]]:
    """The keyword, if there is one, and the value as JSON. A keyword that Python could not write stands in quotes."""
    yield from reader.space()
    word = yield from reader.word(_STOPS)
    yield from reader.space()
    if not word:
        value = yield from _value(reader, 0)
        yield from reader.space()
        if not (value.startswith('"') and (yield from reader.match("="))):
            return None, value
        yield from reader.space()
        return json.loads(value), (yield from _value(reader, 0))
    if not (yield from reader.match("=")):
        return None, _scalar(word)
    yield from reader.space()
    return encodable(word), (yield from _value(reader, 0))


def _value(reader: Reader, depth: int) -> Reading[str]:
    """A literal, as JSON text."""
    if depth > MAX_DEPTH or (yield from reader.at_end()):
        raise NotACall
    for quote in ('"""', "'''", '"', "'"):
        if (yield from reader.match(quote)):
            return json.dumps((yield from _string(reader, quote)), ensure_ascii=False)
    for opening, closing in (("[", "]"), ("(", ")")):
        if (yield from reader.match(opening)):
            return (yield from _list(reader, closing, depth))
    if (yield from reader.match("{")):
        return (yield from _dictionary(reader, depth))
    word = yield from _words(reader)
    if not word:
        raise NotACall
    return _scalar(word)


def _list(reader: Reader, closing: str, depth: int) -> Reading[str]:
    items = []
    while not (yield from _closed(reader, closing)):
        items.append((yield from _value(reader, depth + 1)))
        yield from _comma(reader, closing)
    return "[" + ", ".join(items) + "]"


def _dictionary(reader: Reader, depth: int) -> Reading[str]:
    members: dict[str, str] = {}
    while not (yield from _closed(reader, "}")):
        key = yield from _value(reader, depth + 1)
        yield from reader.space()
        if not (yield from reader.match(":")):
            raise NotACall
        yield from reader.space()
        members[json.loads(key) if key.startswith('"') else key] = yield from _value(reader, depth + 1)
        yield from _comma(reader, "}")
    return _json_object(members)


def _words(reader: Reader) -> Reading[str]:
    """A number, a name, or several words without quotes."""
    words: list[str] = []
    while True:
        word = yield from reader.word(_STOPS)
        if not word:
            return " ".join(words)
        words.append(word)
        yield from reader.space()


def _string(reader: Reader, quote: str) -> Reading[str]:
    """The text up to the quote that ends it. A single one ends it only in front of what may follow a value, since
    some models write quotes into strings as they are."""
    taken: list[str] = []
    while marker := (yield from reader.until((quote, "\\"), taken.append)):
        if marker == "\\":
            taken.append((yield from _escape(reader)))
            continue
        space = yield from reader.space()
        if len(quote) == 3 or (yield from _may_follow(reader)):
            return encodable("".join(taken))
        taken.append(quote + space)
    raise NotACall


def _may_follow(reader: Reader) -> Reading[bool]:
    """May a value end here?"""
    for mark in ",)]}:=":
        if (yield from reader.comes(mark)):
            return True
    return (yield from reader.at_end())


def _escape(reader: Reader) -> Reading[str]:
    """What stands for an escape, behind its backslash: as in Python, and `/` as in JSON."""
    if not (yield from reader.need(1)):
        return ""
    letter = reader.take(1)
    digits = _CODE_POINT.get(letter, 0)
    if not digits:
        return letter if letter in "\\'\"/" else _ESCAPES.get(letter, "\\" + letter)
    hexadecimal = yield from reader.characters(string.hexdigits, digits)
    if len(hexadecimal) < digits or int(hexadecimal, 16) > sys.maxunicode:
        return "\\" + letter + hexadecimal
    return chr(int(hexadecimal, 16))


def _closed(reader: Reader, closing: str) -> Reading[bool]:
    yield from reader.space()
    return (yield from reader.match(closing))


def _comma(reader: Reader, closing: str) -> Steps:
    """What must stand between two values, or in front of `closing`."""
    yield from reader.space()
    if not (yield from reader.match(",")) and not (yield from reader.comes(closing)):
        raise NotACall


def _scalar(word: str) -> str:
    """A number or a word as JSON; what is neither is a text."""
    if word in WORDS:
        return WORDS[word]
    if _JSON_NUMBER.fullmatch(word):
        return word
    number = _number(word)
    return json.dumps(encodable(word) if number is None else number, ensure_ascii=False)


def _number(word: str) -> float | None:
    """What Python takes for a number; not digits behind a zero, which are a code."""
    if _CODE.match(word):
        return None
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


def _json_object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()) + "}"
