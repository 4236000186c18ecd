"""Why no value fulfils a schema, found in the schema: the first contradiction on the way to what must be there.

What is read here may be no schema: keywords beside a `$ref` of old drafts are looked at by nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ..errors import ConstraintError
from .load import Document, Place

NO_VALUE = "no value can satisfy this"
BOUNDS = (
    ("minimum", "maximum"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)


def explain(document: Document, is_empty: Callable[[Place], bool] = lambda place: False) -> tuple[str, str]:
    """Pointer and reason. is_empty: a proof that no value fulfils the schema there."""
    seen: set[int] = set()
    work = deque([document.root])
    deepest = document.root
    while work:
        place = work.popleft()
        if id(place.raw) in seen:
            continue
        seen.add(id(place.raw))
        deepest = place if is_empty(place) else deepest
        reason = "the schema is false" if place.raw is False else _contradiction(place)
        if reason:
            return place.pointer, f"{NO_VALUE}: {reason}"
        work.extend(_needed(document, place))
    return deepest.pointer, f"{NO_VALUE}: its keywords contradict each other"


def _contradiction(place: Place) -> str | None:
    raw = place.raw
    if not isinstance(raw, dict):
        return None
    for low, high in BOUNDS:
        a, b = raw.get(low), raw.get(high)
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            continue
        if a > b:
            return f"'{low}' {a} is above '{high}' {b}"
        if a == b and "exclusive" in low + high:
            return f"'{low}' {a} excludes '{high}' {b}"
    if raw.get("enum") == []:
        return "'enum' is empty"
    if "type" in raw and ("enum" in raw or "const" in raw):
        keyword = "enum" if "enum" in raw else "const"
        if _is_scalar(raw):
            return f"'{keyword}' has no member of 'type' {raw['type']!r} that the other keywords allow"
        return None
    properties = _properties(raw)
    for name in _required(raw):
        if properties.get(name) is False:
            return f"'required' names '{name}', which 'properties' forbids"
        if raw.get("additionalProperties") is False and name not in properties and not raw.get("patternProperties"):
            return f"'required' names '{name}', which 'additionalProperties' forbids"
    return None


def _is_scalar(raw: dict[str, object]) -> bool:
    return "properties" not in raw and "items" not in raw


def _needed(document: Document, place: Place) -> Iterator[Place]:
    """Schemas that must be fulfilled where this one is."""
    raw = place.raw
    if not isinstance(raw, dict):
        return
    if isinstance(raw.get("$ref"), str):
        try:
            yield document.reference(place, "$ref", raw["$ref"])
        except ConstraintError:
            return
    if isinstance(raw.get("allOf"), list):
        yield from (place.at("allOf", index) for index in range(len(raw["allOf"])))
    for name in _required(raw):
        if name in _properties(raw):
            yield place.at("properties", name)
    least = raw.get("minItems")
    if isinstance(least, int | float) and least > 0:
        if isinstance(raw.get("items"), dict | bool):
            yield place.at("items")
        if isinstance(raw.get("prefixItems"), list):
            yield from (place.at("prefixItems", i) for i in range(int(min(least, len(raw["prefixItems"])))))


def _required(raw: dict[str, object]) -> list[str]:
    names = raw.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _properties(raw: dict[str, object]) -> dict[str, object]:
    properties = raw.get("properties")
    return properties if isinstance(properties, dict) else {}
