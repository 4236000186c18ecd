"""GET /openapi.json: OpenAPI 3.1 made of the route table, of what described.py tells of each route, and of the field
tables that validate requests. Pure: tables in, one JSON document out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imp import __version__
from imp.http.answers import COMPONENTS
from imp.http.errors import Envelope, envelope_of
from imp.http.fields import IGNORED_HEADER, MAX_INTEGER, Field, Kind, Status
from imp.http.router import Access, Route
from imp.http.routes.described import Described, described

Schema = dict[str, Any]

_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "integer",
    Kind.NUMBER: "number",
    Kind.STRING: "string",
    Kind.ARRAY: "array",
    Kind.OBJECT: "object",
}
_WORDS = {
    400: "The request is wrong in a way that the message names.",
    401: "The API key is missing or wrong.",
    403: "Only for the machine itself, or for holders of a key.",
    404: "There is nothing of that name.",
    405: "The method is wrong.",
    408: "The request took too long to arrive.",
    409: "There is no model that this could be done with.",
    411: "The body has no length.",
    413: "The body is too large.",
    414: "The request line is too long.",
    415: "The body is not JSON in UTF-8.",
    417: "The expectation cannot be met.",
    426: "Only a WebSocket can be opened here.",
    429: "Too many requests; Retry-After tells when to come again.",
    431: "The head is too large.",
    499: "The request was cancelled by its id.",
    500: "The server's own fault.",
    501: "The transfer encoding is not supported.",
    503: "Not now: no model, shutting down, or no memory for this prompt.",
    504: "The request took longer than the server allows.",
    505: "The HTTP version is not supported.",
    507: "There is too little memory.",
}
_EVERYWHERE = (400, 405, 408, 413, 414, 417, 431, 500, 501, 505)


def document(routes: Iterable[Route]) -> Schema:
    """The whole description. Raises KeyError for a route nobody describes."""
    paths: dict[str, Schema] = {}
    for route in routes:
        item = paths.setdefault(route.pattern, {})
        for method in route.methods:
            item[method.lower()] = _operation(route, method, described(method, route.pattern))
    return {
        "openapi": "3.1.0",
        "info": {"title": "imp-server", "version": __version__, "description": _INTRODUCTION},
        "paths": paths,
        "components": {"schemas": COMPONENTS, "securitySchemes": _SECURITY},
    }


_INTRODUCTION = (
    "Fields that no schema names are let through and named in the response header "
    f"{IGNORED_HEADER}. `null` means absent. API keys are only asked for where the server was started with some."
)
_SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _operation(route: Route, method: str, about: Described) -> Schema:
    names = re.findall(r"\{(\w+)\}", route.pattern)
    found: Schema = {
        "summary": about.summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.pattern}").strip("_") or method.lower(),
        "responses": _responses(route, method, about),
    }
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    parameters += [
        {"name": each.name, "in": "query", "schema": schema_of(each), "description": each.doc} for each in about.query
    ]
    if parameters:
        found["parameters"] = parameters
    if about.table is not None and method == "POST":
        content: Schema = {"schema": object_schema(about.table)}
        if about.example is not None:
            content["example"] = about.example
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.access is not Access.OPEN:
        found["security"] = [{}, {"bearer": []}, {"key": []}]
    return found


def _responses(route: Route, method: str, about: Described) -> Schema:
    ok: Schema = {"description": "The answer."}
    if about.answer is not None:
        ok["content"] = {about.media: {"schema": about.answer}}
    if about.chunk is not None:
        event = {
            "event": {"type": "string"},
            "data": {"type": "string"},
        }  # of one event, for tools that tell them apart
        described_as = f"Server-sent events; data: {about.chunk}"
        ok.setdefault("content", {})["text/event-stream"] = {
            "schema": {"description": described_as, "properties": event}
        }
    shape = "AnthropicError" if envelope_of(route.pattern) is Envelope.ANTHROPIC else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
    found: Schema = {"101": {"description": "The WebSocket is open."}} if about.socket else {"200": ok}
    for status in sorted(_statuses(route, method, about)):
        content = {"application/json": {"schema": about.errors[status]}} if status in about.errors else error
        found[str(status)] = {"description": _WORDS[status], "content": content}
    return found


def _statuses(route: Route, method: str, about: Described) -> set[int]:
    """Of the errors this route can answer with."""
    found = {*_EVERYWHERE, *about.errors}
    if route.access is not Access.OPEN:
        found |= {401, 429, 503, 415}
    if route.access is Access.ADMIN:
        found.add(403)
    if method == "POST":
        found |= {411, 415}
    if about.needs_model:
        found |= {404, 503}
    if route.generates:
        found |= {404, 429, 499, 503, 504}
    return found | ({404} if "{" in route.pattern else set())


# -- fields as JSON Schema ------------------------------------------------------------------------


def object_schema(table: Sequence[Field]) -> Schema:
    """JSON Schema (2020-12) of an object with these fields, and any others."""
    required = [field.name for field in table if field.required]
    found: Schema = {"type": "object", "properties": {field.name: schema_of(field) for field in table}}
    return found | ({"required": required} if required else {})


def schema_of(field: Field) -> Schema:
    """JSON Schema of the values that a field takes, as far as its table says it."""
    if field.status is Status.REFUSED:
        return {"type": "null", "description": f"Refused: {field.doc}"}
    noted: Schema = {"description": field.doc} if field.doc else {}
    if field.default is not None:
        noted["default"] = field.default
    if field.status is Status.NO_OP or Kind.ANY in field.kinds:
        return noted
    null = ["null"] if field.nullable and not field.required and field.name else []
    kinds = [_TYPES[kind] for kind in field.kinds] + null
    found: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if field.choices:
        found["enum"] = [*field.choices, *(None for _ in null)]
    for kind in field.kinds:
        found |= _BOUNDS[kind](field)
    return found | noted


def _number(field: Field) -> Schema:
    integers = field.kind is Kind.INTEGER
    low = -MAX_INTEGER if field.low is None and integers else field.low
    high = MAX_INTEGER if field.high is None and integers else field.high
    return _given(minimum=low, maximum=high, exclusiveMinimum=field.above)


def _array(field: Field) -> Schema:
    items = None if field.items is None else schema_of(field.items)
    return _given(minItems=field.min_items, maxItems=field.max_items, items=items)


def _given(**keywords: Any) -> Schema:
    return {name: value for name, value in keywords.items() if value is not None}


_BOUNDS: Mapping[Kind, Any] = {
    Kind.BOOLEAN: lambda field: {},
    Kind.INTEGER: _number,
    Kind.NUMBER: _number,
    Kind.STRING: lambda field: _given(minLength=field.min_items, maxLength=field.max_items),
    Kind.ARRAY: _array,
    Kind.OBJECT: lambda field: {key: value for key, value in object_schema(field.fields).items() if key != "type"},
}
