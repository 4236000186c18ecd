"""Arguments that come one by one as bare text: typed by the tool's JSON Schema, and written as JSON while they come.

A text becomes the first of null, integer, number, boolean, object, array that the schema admits and the text can be;
otherwise it is a string, whatever the schema says: a value is never lost. Where the schema says nothing, a text that is
JSON becomes that JSON, and any other a string. Besides JSON, the spellings of Python are read, which many templates
write: True, None, {'a': 'b'}. Nothing is evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from ..answer import Answer

KINDS = frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})
STRING = frozenset({"string"})
_DEPTH = 32  # of references and combinations followed in a schema
_DIGITS = 400  # of an integer: programs that read JSON know limits
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PYTHON = re.compile(
    r"""'(?P<single>(?:[^'\\\n]|\\.)*+)'|"(?P<double>(?:[^"\\\n]|\\.)*+)"|\b(?P<word>True|False|None)\b|(?P<other>[^'"TFN]+|[TFN])""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_WORDS = {"True": "true", "False": "false", "None": "null"}


def kinds(schema: object, root: Mapping[str, Any] | None = None) -> frozenset[str]:
    """The types of JSON that a schema admits, integers apart. root: what its references point into."""
    return _kinds(schema, schema if root is None and isinstance(schema, Mapping) else root or {}, {}, _DEPTH)


def _kinds(schema: object, root: Mapping[str, Any], known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
    """known: by the identity of a schema, so that each is looked at once, however often it is referred to."""
    if not isinstance(schema, Mapping) or not depth:
        return frozenset() if schema is False else KINDS
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = KINDS  # while it is looked at
    found = _named(schema.get("type"))
    if "const" in schema:
        found &= {_kind(schema["const"])}
    if isinstance(values := schema.get("enum"), list):
        found &= {_kind(value) for value in values}
    if isinstance(reference := schema.get("$ref"), str):
        found &= _kinds(pointed_at(root, reference), root, known, depth - 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(some := schema.get(word), list) and some:
            found &= frozenset().union(*(_kinds(one, root, known, depth - 1) for one in some))
    if isinstance(every := schema.get("allOf"), list):
        for one in every:
            found &= _kinds(one, root, known, depth - 1)
    if schema.get("nullable") is True:  # OpenAPI 3.0
        found |= {"null"}
    known[id(schema)] = found
    return found


def member(schema: object, key: str, root: Mapping[str, Any]) -> object:
    """The schema of an object's member, True where nothing is said about it."""

    def own(schema: Mapping[str, Any]) -> object:
        properties = schema.get("properties")
        return properties.get(key, True) if isinstance(properties, Mapping) else True

    found = _found(schema, root, own, set(), _DEPTH)
    if found is not True:
        return found
    return _found(schema, root, lambda one: one.get("additionalProperties", True), set(), _DEPTH)


def items(schema: object, root: Mapping[str, Any]) -> object:
    """The schema of an array's elements, True where nothing is said about them."""
    return _found(schema, root, lambda one: one.get("items", True), set(), _DEPTH)


def _found(
    schema: object, root: Mapping[str, Any], own: Callable[[Mapping[str, Any]], object], seen: set[int], depth: int
) -> object:
    """What the schema, or one that holds for the same value, says by itself; True: nothing. Each is asked once."""
    if not isinstance(schema, Mapping) or not depth or id(schema) in seen:
        return True
    seen.add(id(schema))
    if (found := own(schema)) not in (True, False):
        return found
    return next((x for one in _below(schema, root) if (x := _found(one, root, own, seen, depth - 1)) is not True), True)


def _below(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
    """The schemas that hold for the same value."""
    below = [pointed_at(root, schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
    for word in ("allOf", "anyOf", "oneOf"):
        if isinstance(some := schema.get(word), list):
            below += some
    return below


def pointed_at(root: Mapping[str, Any], reference: str) -> object:
    """What a reference within the schema points at; True: it leads nowhere."""
    at: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        else:
            return True
    return at if reference.startswith("#") else True


def json_of(text: str, admitted: frozenset[str] = KINDS) -> str:
    """A bare text as JSON of one of these types, or as a JSON string."""
    if admitted == STRING:
        return quoted(text)
    if "number" in admitted:
        admitted -= {"integer"}  # every integer is one, and what is written as a fraction stays that
    bare = text.strip()
    for kind, read in _LADDER.items():
        if kind in admitted and (found := read(bare, "string" in admitted)) is not None:
            return found
    return quoted(text)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Shape:
    """What a schema says of a value. kinds: the types it admits."""

    def __init__(self, schema: object, root: Mapping[str, Any]) -> None:
        self._schema, self._root = schema, root
        self.kinds = kinds(schema, root) or STRING

    def member(self, key: str) -> Shape:
        return Shape(member(self._schema, key, self._root), self._root)

    def items(self) -> Shape:
        """Of the elements of an array."""
        return Shape(items(self._schema, self._root), self._root)


class Members:
    """The arguments of one call that has begun, written to an answer as the members of a JSON object."""

    def __init__(self, answer: Answer, parameters: Mapping[str, Any]) -> None:
        """parameters: the tool's JSON Schema."""
        self._answer, self._shape = answer, Shape(parameters, parameters)
        self._seen: set[str] = set()
        self._begun = False  # the quotation mark of a string is out
        self._held: list[str] = []
        self._known = ""
        self._kinds = KINDS
        self._repeated = False

    def shape(self, key: str) -> Shape:
        return self._shape.member(key)

    def open(self, key: str, admitted: frozenset[str]) -> None:
        """A value begins. Of a key that comes again the first value counts: it is out."""
        self._repeated = key in self._seen
        if not self._repeated:
            self._answer.arguments((", " if self._seen else "{") + quoted(key) + ": ")
        self._seen.add(key)
        self._kinds, self._begun, self._held, self._known = admitted, False, [], ""

    def piece(self, text: str) -> None:
        """More of the value's text."""
        if self._kinds != STRING:
            self._held.append(text)
        elif not self._repeated:
            self._answer.arguments(quoted(text)[self._begun : -1])
            self._begun = True

    def known(self, value: str) -> None:
        """The value as JSON, in the place of its text."""
        self._known = value

    def close(self) -> None:
        """The value is complete."""
        if self._repeated:
            return
        if self._known:
            self._answer.arguments(self._known)
        elif self._kinds == STRING:
            self._answer.arguments('"' if self._begun else '""')
        else:
            self._answer.arguments(json_of("".join(self._held), self._kinds))

    def end(self) -> None:
        """There are no more: the call is complete."""
        self._answer.arguments("}" if self._seen else "{}")
        self._answer.called()


def _named(types: object) -> frozenset[str]:
    if isinstance(types, str):
        types = [types]
    if not isinstance(types, list):
        return KINDS
    found = frozenset(t for t in types if isinstance(t, str))
    return (found | {"integer"} if "number" in found else found) & KINDS or KINDS


def _kind(value: object) -> str:
    for type_, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, type_):
            return name
    return "null" if value is None else "object"


def _null(text: str, strict: bool) -> str | None:
    return "null" if text in ("null", "None") else None


def _integer(text: str, strict: bool) -> str | None:
    """strict: only as JSON writes it, since otherwise it is a string."""
    if not (_NUMBER if strict else _LOOSE_NUMBER).fullmatch(text):
        return None
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return text if len(text) <= _DIGITS else None
    value = Decimal(text)
    if value.adjusted() > _DIGITS or (value and value.adjusted() < 0) or value != value.to_integral_value():
        return None
    return str(int(value))


def _number(text: str, strict: bool) -> str | None:
    if not (_NUMBER if strict else _LOOSE_NUMBER).fullmatch(text) or not math.isfinite(value := float(text)):
        return None
    return text if _NUMBER.fullmatch(text) else repr(value)


def _boolean(text: str, strict: bool) -> str | None:
    return text.lower() if text in ("true", "false", "True", "False", "TRUE", "FALSE") else None


def _container(brackets: str) -> Callable[[str, bool], str | None]:
    def read(text: str, strict: bool) -> str | None:
        if text[:1] != brackets[0] or text[-1:] != brackets[1]:
            return None
        return _as_json(text) or _as_json(_from_python(text))

    return read


def _as_json(text: str) -> str | None:
    """The text if it is JSON; written anew if it is so but for control characters in its strings."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        return None
    except ValueError:
        pass
    else:
        return text
    try:
        return json.dumps(json.loads(text, parse_constant=_no_constant, strict=False))
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _from_python(text: str) -> str:
    """Python's spelling of lists and dicts as JSON; anything else comes out as something that is not JSON."""
    translated, at = [], 0
    while match := _PYTHON.match(text, at):  # no further than to a string without an end
        at = match.end()
        body = match["single"] if match["single"] is not None else match["double"]
        if body is not None:
            translated.append(json.dumps(_ESCAPE.sub(_unescaped, body)))
        else:
            translated.append(_WORDS[match["word"]] if match["word"] else match["other"])
    return "".join(translated) if at == len(text) else ""


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPED.get(escape, escape)


_LADDER = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container("{}"),
    "array": _container("[]"),
}
