"""The body parser of every dialect: a table of fields in, checked values out. Knows no dialect and no sockets.

What is known is enforced, refused, or a documented no-op; what is not known is let through and named, so that a client
learns which of its wishes had no effect. `null` means absent. Decisions that callers can rely on:
- a boolean is never a number, and a number never a boolean;
- 16.0 is an integer (JSON has one number type, and JSON Schema agrees); 16.5 is not;
- numbers are finite, integers at most 2^63 - 1 in size unless the table allows more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from imp.http.errors import ApiError, bad_request

ITEMS_AT_ONCE = 1 << 14
MAX_FIELDS = 1000  # names in one object of the body that has a table
MAX_INTEGER = 2**63 - 1
IGNORED_HEADER = "X-Imp-Ignored"  # fields nobody knows
CUT_HEADER = "X-Imp-Truncated"  # inputs of which tokens were left away, as the request asked
MAX_NAMED_CHARS = 1000


class Kind(Enum):
    """JSON types; INTEGER is a number without a fraction."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"
    ANY = "any value"


class Status(Enum):
    """What the server does with a known field."""

    ENFORCED = "enforced"
    NO_OP = "no-op"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One known field.

    kind: one Kind, or several in a tuple.  low, high: inclusive bounds of numbers; `above`: exclusive lower bound.
    default: what absence means (None: absent stays None).  nullable: null means absent, else it is refused.
    choices: the only values.  min_items, max_items: length of an array, or of a string in characters.
    items: what each entry of an array must be (its name is not used).  fields: the table of an object.
    doc: one sentence for the documentation; for a REFUSED field, the reason, shown to the client.
    """

    name: str
    kind: Kind | tuple[Kind, ...] = Kind.ANY
    low: float | None = None
    high: float | None = None
    default: Any = None
    nullable: bool = True
    choices: tuple[Any, ...] = ()
    doc: str = ""
    status: Status = Status.ENFORCED
    above: float | None = None
    required: bool = False
    min_items: int | None = None
    max_items: int | None = None
    items: Field | None = None
    fields: tuple[Field, ...] = ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.kind if isinstance(self.kind, tuple) else (self.kind,)


@dataclass(frozen=True, slots=True)
class Parsed:
    """`values`: every name of the table, absent ones with their default.  `ignored`: paths nobody knows, in order."""

    values: dict[str, Any]
    ignored: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def parse(body: Mapping[str, Any], table: Sequence[Field], path: str = "") -> Parsed:
    """Check a JSON object against its table. Objects with a table inside become dicts of the same kind as `values`.

    ApiError 400 naming the field's path, what is allowed and what came.
    """
    ignored: list[str] = []
    return Parsed(_object(body, table, path, ignored), tuple(ignored))


def number(
    body: Mapping[str, Any],
    name: str,
    default: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """One numeric field outside any table."""
    return parse(body, (Field(name, Kind.NUMBER, low, high, default),))[name]


def wrong(path: str, allowed: str, value: Any) -> ApiError:
    """400 in the one wording of this server: `"path" must be ALLOWED, not VALUE.`"""
    return bad_request(path, f'"{path}" must be {allowed}, not {shown(value)}.')


def refuse_unsupported(part: Any, path: str, unsupported: Mapping[str, tuple[str, str]]) -> None:
    """ApiError 400 where a part of a message is of a type that is known, but not served. unsupported: of each such
    type, the error's code and the reason."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in unsupported:
        code, reason = unsupported[kind]
        raise ApiError(400, code, f'"{path}": {reason}', path)


def shown(value: Any, limit: int = 60) -> str:
    """A client's value in an error message, shortened. Containers are named, not shown."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + "..."


def describe(field: Field) -> str:
    """What a field accepts, in words: `a number between 0 and 2`."""
    if field.choices:
        words = [json.dumps(choice, ensure_ascii=False) for choice in field.choices]
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    return " or ".join(_describe_kind(kind, field) for kind in field.kinds)


def named(names: Iterable[str]) -> str:
    """Paths of fields as the value of a header: joined by commas, anything but printable ASCII percent-encoded, cut at
    1000 characters with a final `...`."""
    text = ", ".join(quote(name, safe="!#$&'()*+-./:;<=>?@[]^_`{|}~ ") for name in names)
    return text if len(text) <= MAX_NAMED_CHARS else text[: MAX_NAMED_CHARS - 3] + "..."


def markdown(table: Sequence[Field]) -> str:
    """The table for the documentation, objects' own fields below them by path."""
    rows = ["| field | value | default | status | notes |", "|---|---|---|---|---|"]
    rows += _rows(table, "")
    return "\n".join(rows) + "\n"


def _object(body: Mapping[str, Any], table: Sequence[Field], path: str, ignored: list[str]) -> dict[str, Any]:
    if len(body) > MAX_FIELDS:
        where = f'"{path}"' if path else "The request body"
        raise bad_request(path or None, f"{where} has more than {MAX_FIELDS} fields.")
    prefix = f"{path}." if path else ""
    values = {field.name: _field(body, field, prefix + field.name, ignored) for field in table}
    ignored.extend(prefix + name for name in body if name not in values)
    return values


def _field(body: Mapping[str, Any], field: Field, path: str, ignored: list[str]) -> Any:
    if field.name not in body:
        if field.required:
            raise bad_request(path, f'"{path}" is required.', "missing_required_parameter")
        return field.default
    value = body[field.name]
    if value is None:
        if field.required or not field.nullable:
            raise wrong(path, describe(field), None)
        return field.default
    if field.status is Status.REFUSED:
        reason = f": {field.doc}" if field.doc else ""
        raise bad_request(path, f'"{path}" is not supported by this server{reason}', "unsupported_parameter")
    if field.status is Status.NO_OP:
        return value
    return _value(value, field, path, ignored)


def _value(value: Any, field: Field, path: str, ignored: list[str]) -> Any:
    kind = next((kind for kind in field.kinds if _FITS[kind](value)), None)
    if kind is None:
        raise wrong(path, describe(field), value)
    if kind is Kind.INTEGER:
        value = int(value)
    if field.choices and not any(type(value) is type(choice) and value == choice for choice in field.choices):
        raise wrong(path, describe(field), value)
    if kind in (Kind.INTEGER, Kind.NUMBER) and not _in_range(value, field):
        raise wrong(path, describe(field), value)
    if kind in (Kind.STRING, Kind.ARRAY) and not _right_length(value, field):
        raise bad_request(path, f'"{path}" must be {describe(field)}, not {_length(value)}.')
    if kind is Kind.ARRAY and field.items is not None:
        return _items(value, field.items, path, ignored)
    if kind is Kind.OBJECT and field.fields:
        return _object(value, field.fields, path, ignored)
    return value


def _items(values: list[Any], item: Field, path: str, ignored: list[str]) -> list[Any]:
    if item.kind is Kind.INTEGER and not item.choices and values:
        # a prompt may hold a million token ids; no call over some of them holds the interpreter's lock for long
        parts = [values[start : start + ITEMS_AT_ONCE] for start in range(0, len(values), ITEMS_AT_ONCE)]
        if all(set(map(type, part)) == {int} for part in parts):
            for value in (min(map(min, parts)), max(map(max, parts))):
                if not _in_range(value, item):
                    raise wrong(f"{path}[{values.index(value)}]", describe(item), value)
            return values
    checked = []
    for index, value in enumerate(values):
        where = f"{path}[{index}]"
        if value is None:
            raise wrong(where, describe(item), None)
        checked.append(_value(value, item, where, ignored))
    return checked


def _is_integer(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


_FITS: dict[Kind, Callable[[Any], bool]] = {
    Kind.BOOLEAN: lambda value: type(value) is bool,
    Kind.INTEGER: _is_integer,
    Kind.NUMBER: lambda value: type(value) in (int, float),
    Kind.STRING: lambda value: type(value) is str,
    Kind.ARRAY: lambda value: type(value) is list,
    Kind.OBJECT: lambda value: type(value) is dict,
    Kind.ANY: lambda value: True,
}


def _in_range(value: float, field: Field) -> bool:
    endless = float("inf") if type(value) is float else MAX_INTEGER
    low = -endless if field.low is None else field.low
    high = endless if field.high is None else field.high
    return low <= value <= high and (field.above is None or value > field.above)


def _right_length(value: str | list[Any], field: Field) -> bool:
    count = len(value)
    return (field.min_items is None or count >= field.min_items) and (
        field.max_items is None or count <= field.max_items
    )


def _length(value: str | list[Any]) -> str:
    if not value:
        return "an empty one"
    return f"one of {len(value)} {'characters' if isinstance(value, str) else 'entries'}"


_NOUNS = {
    Kind.BOOLEAN: "true or false",
    Kind.INTEGER: "an integer",
    Kind.NUMBER: "a number",
    Kind.STRING: "a string",
    Kind.ARRAY: "an array",
    Kind.OBJECT: "an object",
    Kind.ANY: "a value",
}
_PLURALS = {
    Kind.BOOLEAN: "booleans",
    Kind.INTEGER: "integers",
    Kind.NUMBER: "numbers",
    Kind.STRING: "strings",
    Kind.ARRAY: "arrays",
    Kind.OBJECT: "objects",
    Kind.ANY: "values",
}


def _describe_kind(kind: Kind, field: Field) -> str:
    if kind in (Kind.INTEGER, Kind.NUMBER):
        return _NOUNS[kind] + _range(field)
    if kind is Kind.STRING:
        return _NOUNS[kind] + _count(field, "characters")
    if kind is Kind.ARRAY:
        if field.items is None:
            return _NOUNS[kind] + _count(field, "entries")
        return _NOUNS[kind] + _count(field, " or ".join(_PLURALS[each] for each in field.items.kinds))
    return _NOUNS[kind]


def _range(field: Field) -> str:
    low, high, above = (None if bound is None else _plain(bound) for bound in (field.low, field.high, field.above))
    if above is not None:
        return f" greater than {above}" + (f" and at most {high}" if high is not None else "")
    if low is not None and high is not None:
        return f" between {low} and {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _count(field: Field, unit: str) -> str:
    low, high = field.min_items, field.max_items
    if low and high is not None:
        return f" of {low} to {high} {unit}"
    if low:
        return f" of at least {low} {unit if low > 1 else _singular(unit)}"
    if high is not None:
        return f" of at most {high} {unit}"
    return "" if unit in ("entries", "characters") else f" of {unit}"


def _singular(unit: str) -> str:
    return {"entries": "entry", "characters": "character"}.get(unit, unit.replace("s or ", " or ").removesuffix("s"))


def _rows(table: Sequence[Field], prefix: str) -> list[str]:
    rows = []
    for field in table:
        path = prefix + field.name
        default = "required" if field.required else "" if field.default is None else f"`{json.dumps(field.default)}`"
        cells = [f"`{path}`", describe(field), default, field.status.value, field.doc]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        rows += _rows(field.fields, path + ".")
        if field.items is not None:
            rows += _rows(field.items.fields, path + "[].")
    return rows
