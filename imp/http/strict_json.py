"""Strict JSON out of foreign bytes: what is refused, and with which words. Knows no HTTP but its errors.

A call over a long text holds the interpreter's lock until it is over, on whatever thread it runs. So long ones are
looked through a window at a time, and the parser comes back to Python for every object and every number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, NoReturn

from imp.http.errors import ApiError, bad_request

MAX_JSON_DEPTH = 100  # checked before the parser, which recurses
MAX_JSON_VALUES = 2_000_000  # an empty list is 2 bytes in a body and 56 in memory
MAX_JSON_NAMES = 200_000  # of all objects together; each costs a microsecond
MAX_NUMBER_DIGITS = 1000  # below CPython's own limit, past which int() raises
WINDOW = 1 << 16

# All possessive: linear in the text whatever it holds.
_INSIDE = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'  # of a string, up to its end or that of the text
_STRINGS = re.compile(rb'"%b"?' % _INSIDE, re.DOTALL)
_WHOLE_STRINGS = re.compile(rb'(?:[^"]++|"%b")*+' % _INSIDE, re.DOTALL)  # and what is between them
_STRING = re.compile(_INSIDE, re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_DIGITS = b"0" * (MAX_NUMBER_DIGITS + 1)
_BRACES_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Strict RFC 8259: UTF-8 without a mark, no NaN, no lone surrogates, no name twice in one object.

    A repeated name is refused because two readers of one body (a proxy that checks, a server that acts) may disagree
    on which value counts. Nesting past 100, more than two million values and numbers past 1000 digits are refused
    before the recursive parser sees them. ApiError 400 in every case.
    """
    if not body or body.isspace():
        raise bad_request(None, "The request body is empty; a JSON object is expected.", "invalid_json")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from error
    if text.startswith("\ufeff"):
        raise _invalid("it begins with a byte order mark")
    _check_bounds(body)
    try:
        value = _parsed(text)
    except json.JSONDecodeError as error:
        raise _invalid(f"there is a mistake at line {error.lineno}, column {error.colno}") from error
    if not isinstance(value, dict):
        raise bad_request(None, f"The request body must be a JSON object, not {_KINDS[type(value)]}.", "invalid_json")
    if _SURROGATE.search(body):
        _check_surrogates(value)
    return value


def _parsed(text: str) -> Any:
    if len(text) <= WINDOW:
        return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)
    return json.loads(
        text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant, parse_int=_integer
    )


_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _invalid(what: str) -> ApiError:
    return bad_request(None, f"The request body is not valid JSON: {what}.", "invalid_json")


def _check_bounds(body: bytes) -> None:
    """Refuse what would exhaust the parser's stack, the memory or int(); without recursion and at the speed of C."""
    bare = b"".join(_outside_strings(body))
    brackets = bare.translate(_BRACES_AS_BRACKETS, _NO_BRACKETS)
    if bare.count(b",") + len(brackets) // 2 > MAX_JSON_VALUES:
        raise bad_request(None, f"The request body has more than {MAX_JSON_VALUES} values.", "invalid_json")
    if bare.count(b":") > MAX_JSON_NAMES:
        raise bad_request(None, f"The objects in the body have more than {MAX_JSON_NAMES} names.", "invalid_json")
    if _TOO_MANY_DIGITS in bare.translate(_DIGITS_AS_ZEROS):
        raise bad_request(None, f"A number in the body has more than {MAX_NUMBER_DIGITS} digits.", "invalid_json")
    for _ in range(MAX_JSON_DEPTH):  # each round takes the innermost brackets away
        inner, brackets = brackets, brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
    if brackets:
        if b"[]" in brackets or brackets.count(b"[") > MAX_JSON_DEPTH:
            message = f"The request body is nested deeper than {MAX_JSON_DEPTH} levels."
            raise bad_request(None, message, "invalid_json")
        raise _invalid("its brackets do not match")


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """What is not in a string; one that does not end goes on to the body's end."""
    at = 0
    while at < len(body):
        end = min(len(body), at + WINDOW)
        stop = end if end == len(body) else _end(_WHOLE_STRINGS, body, at, end)
        yield _STRINGS.sub(b"", body[at:stop])
        at = stop if stop == end else _behind_string(body, stop + 1)


def _behind_string(body: bytes, at: int) -> int:
    """Where the string ends that `at` is in."""
    while at < len(body):
        stop = _end(_STRING, body, at, min(len(body), at + WINDOW))
        if body[stop : stop + 1] == b'"':
            return stop + 1
        if stop == at:  # nothing but half an escape is left
            break
        at = stop
    return at


def _end(pattern: re.Pattern[bytes], body: bytes, at: int, end: int) -> int:
    match = pattern.match(body, at, end)
    assert match is not None, "these match the empty text, too"
    return match.end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise bad_request(_short(name), f'"{_short(name)}" occurs more than once in one object.', "invalid_json")
    return made


def _short(name: str) -> str:
    return name.encode("utf-8", "replace").decode()[:100]


def _finite(literal: str) -> float:
    value = float(literal)
    if not isfinite(value):
        raise bad_request(None, "A number in the body is too large for a 64-bit float.", "invalid_json")
    return value


def _integer(literal: str) -> int:
    """What the parser does by itself, in Python: where the lock can change hands."""
    return int(literal)


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON number")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _invalid("a string holds half of a surrogate pair") from error
