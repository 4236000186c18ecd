"""The many fields in which clients say what the output must be, and the one ConstraintSpec they come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imp.http.errors import ApiError, bad_request
from imp.http.fields import Field, Kind, Parsed, Status
from imp.http.strict_json import parse_json_object
from imp.types import ConstraintKind, ConstraintSpec

_SCHEMA = (Kind.OBJECT, Kind.BOOLEAN)
_NO_PATTERN = "whitespace between JSON tokens is bounded by this server; `constrained.whitespace` chooses how."
_NO_TAGS = "structural tags are not available; use a grammar."

RESPONSE_FORMAT = Field(
    "response_format",
    Kind.OBJECT,
    doc="What the whole output must be.",
    fields=(
        Field("type", Kind.STRING, choices=("text", "json_object", "json_schema", "regex", "grammar"), required=True),
        Field(
            "json_schema",
            Kind.OBJECT,
            doc="With type json_schema.",
            fields=(
                Field("name", Kind.STRING, status=Status.NO_OP, doc="Has no effect here."),
                Field("description", Kind.STRING, status=Status.NO_OP, doc="Has no effect here."),
                Field("schema", _SCHEMA, doc="JSON Schema: draft 7, 2019-09 or 2020-12."),
                Field("strict", Kind.BOOLEAN, status=Status.NO_OP, doc="Every schema is enforced exactly."),
            ),
        ),
        Field("schema", _SCHEMA, doc="With type json_object: the same as json_schema."),
        Field("regex", Kind.STRING, min_items=1, doc="With type regex: matched by the whole output."),
        Field("grammar", Kind.STRING, min_items=1, doc="With type grammar: GBNF or Lark."),
    ),
)

TEXT_FORMAT = Field(
    "format",
    Kind.OBJECT,
    doc="What the whole output must be.",
    fields=(
        Field("type", Kind.STRING, choices=("text", "json_object", "json_schema", "regex", "grammar"), required=True),
        Field("name", Kind.STRING, doc="Said back."),
        Field("description", Kind.STRING, doc="Said back."),
        Field("schema", _SCHEMA, doc="With type json_schema; with json_object: the same."),
        Field("strict", Kind.BOOLEAN, doc="Every schema is enforced exactly. Said back."),
        Field("regex", Kind.STRING, min_items=1, doc="With type regex: matched by the whole output."),
        Field("grammar", Kind.STRING, min_items=1, doc="With type grammar: GBNF or Lark."),
    ),
)

CONSTRAINTS = (
    Field("grammar", Kind.STRING, doc="GBNF or Lark; empty: none."),
    Field("json_schema", _SCHEMA, doc="A schema for the whole output, as llama.cpp has it."),
    Field("guided_json", (*_SCHEMA, Kind.STRING), doc="A schema, or its JSON text."),
    Field("guided_regex", Kind.STRING, min_items=1),
    Field("guided_grammar", Kind.STRING, min_items=1, doc="GBNF or Lark."),
    Field("guided_choice", Kind.ARRAY, min_items=1, max_items=100_000, items=Field("", Kind.STRING)),
    Field("guided_decoding_backend", status=Status.NO_OP, doc="There is one."),
    Field("guided_whitespace_pattern", status=Status.REFUSED, doc=_NO_PATTERN),
    Field(
        "structured_outputs",
        Kind.OBJECT,
        doc="Exactly one of its kinds.",
        fields=(
            Field("json", (*_SCHEMA, Kind.STRING), doc="A schema, or its JSON text."),
            Field("json_object", Kind.BOOLEAN, doc="Any JSON object."),
            Field("regex", Kind.STRING, min_items=1),
            Field("choice", Kind.ARRAY, min_items=1, max_items=100_000, items=Field("", Kind.STRING)),
            Field("grammar", Kind.STRING, min_items=1, doc="GBNF or Lark."),
            Field("disable_any_whitespace", Kind.BOOLEAN, doc="Compact JSON."),
            Field("structural_tag", status=Status.REFUSED, doc=_NO_TAGS),
            Field("whitespace_pattern", status=Status.REFUSED, doc=_NO_PATTERN),
        ),
    ),
)

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def constraint(parsed: Parsed) -> ConstraintSpec | None:
    """What the output must be, from the fields of RESPONSE_FORMAT and CONSTRAINTS. ApiError where two fields say it."""
    found = [*_from_response_format(parsed["response_format"]), *_from_fields(parsed)]
    if parsed["structured_outputs"] is not None:
        found += _from_structured_outputs(parsed["structured_outputs"])
    return only(found)


def constraint_of_text(parsed: Parsed) -> ConstraintSpec | None:
    """The same for the Responses dialect, from `text.format` and CONSTRAINTS."""
    found = [*_from_text_format((parsed["text"] or {}).get("format")), *_from_fields(parsed)]
    if parsed["structured_outputs"] is not None:
        found += _from_structured_outputs(parsed["structured_outputs"])
    return only(found)


def only(found: list[ConstraintSpec]) -> ConstraintSpec | None:
    """The one there is. ApiError naming both where there are two."""
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise bad_request(second, f'"{first}" and "{second}" both say what the output must be; send one of them.')
    return found[0] if found else None


def schema(value: Any, param: str, compact: bool | None = None) -> ConstraintSpec:
    """A JSON Schema; property order is kept."""
    return ConstraintSpec(ConstraintKind.JSON_SCHEMA, json.dumps(value, ensure_ascii=False), param, compact)


def _from_response_format(given: Mapping[str, Any] | None) -> list[ConstraintSpec]:
    kind = "text" if given is None else given["type"]
    if given is None or kind == "text":
        return []
    path = "response_format"
    if kind == "json_object":
        return [schema(_ANY_OBJECT if given["schema"] is None else given["schema"], path + ".schema")]
    if kind == "json_schema":
        wanted = _needed(given, kind, path)
        return [schema(_needed(wanted, "schema", f"{path}.{kind}"), f"{path}.{kind}.schema")]
    return [_text(kind, _needed(given, kind, path), f"{path}.{kind}")]


def _from_text_format(given: Mapping[str, Any] | None) -> list[ConstraintSpec]:
    kind, path = "text" if given is None else given["type"], "text.format"
    if given is None or kind == "text":
        return []
    if kind == "json_object" and given["schema"] is None:
        return [schema(_ANY_OBJECT, path)]
    if kind in ("json_object", "json_schema"):
        return [schema(_needed(given, "schema", path), f"{path}.schema")]
    return [_text(kind, _needed(given, kind, path), f"{path}.{kind}")]


def _needed(given: Mapping[str, Any], name: str, path: str) -> Any:
    if given[name] is None:
        raise bad_request(f"{path}.{name}", f'"{path}.{name}" is required.', "missing_required_parameter")
    return given[name]


def _from_fields(parsed: Parsed) -> list[ConstraintSpec]:
    found = []
    if parsed["grammar"]:
        found.append(_text("grammar", parsed["grammar"], "grammar"))
    for name in ("json_schema", "guided_json"):
        if parsed[name] is not None:
            found.append(schema(_schema_value(parsed[name], name), name))
    for name in ("regex", "grammar", "choice"):
        if (value := parsed[f"guided_{name}"]) is not None:
            found.append(_text(name, value, f"guided_{name}"))
    return found


def _from_structured_outputs(given: Mapping[str, Any]) -> list[ConstraintSpec]:
    path, compact, found = "structured_outputs", given["disable_any_whitespace"], []
    if given["json"] is not None:
        found.append(schema(_schema_value(given["json"], f"{path}.json"), f"{path}.json", compact))
    if given["json_object"]:
        found.append(schema(_ANY_OBJECT, f"{path}.json_object", compact))
    found += [_text(name, given[name], f"{path}.{name}") for name in ("regex", "choice", "grammar") if given[name]]
    if not found:
        raise bad_request(path, f'"{path}" must have one of "json", "json_object", "regex", "choice" and "grammar".')
    return found


def _text(kind: str, value: str | list[str], param: str) -> ConstraintSpec:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return ConstraintSpec(ConstraintKind(kind), text, param)


def _schema_value(value: Any, param: str) -> Any:
    """A schema as it is, or as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json_object(value.encode())
    except ApiError as error:
        raise bad_request(param, f'"{param}" must be a JSON Schema, or one as JSON text: {error.message}') from None
