"""A schema document: its draft, its parts by URI and anchor, and what a `$ref` leads to. Knows no keyword's meaning.

Drafts 4, 6, 7, 2019-09 and 2020-12. Nothing is fetched: references lead into the document, or to a meta-schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote, urljoin

from ..clock import tick
from ..errors import Code, ConstraintError
from .budget import NESTING, SCHEMA_BYTES, too_large
from .metaschemas import METASCHEMAS


class Draft(IntEnum):
    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


DRAFTS = {
    "http://json-schema.org/draft-04/schema": Draft.DRAFT4,
    "http://json-schema.org/draft-06/schema": Draft.DRAFT6,
    "http://json-schema.org/draft-07/schema": Draft.DRAFT7,
    "https://json-schema.org/draft/2019-09/schema": Draft.DRAFT2019,
    "https://json-schema.org/draft/2020-12/schema": Draft.DRAFT2020,
}
# where schemas stand in a schema; both the old and the new names, since a document may mix them
ONE_SCHEMA = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
LISTS_OF_SCHEMAS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
MAPS_OF_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
NAMING = frozenset(["$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"])
# dynamic anchor, the outermost resource that has it, where in the document
Scope = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """A schema with a URI of its own: what `#` means inside it."""

    uri: str
    draft: Draft
    stated: bool  # the document says which draft


class Place:
    """A schema at a place of a document. Immutable; compared by identity."""

    __slots__ = ("_way", "raw", "resource", "scope")

    def __init__(
        self, raw: object, resource: Resource, way: str | tuple[Place, tuple[str | int, ...]], scope: Scope = ()
    ) -> None:
        """way: the pointer, or from which place by which keys."""
        self.raw, self.resource, self.scope, self._way = raw, resource, scope, way

    @property
    def pointer(self) -> str:
        """From the top of the document. Most places are never asked."""
        if isinstance(self._way, str):
            return self._way
        above, keys = self._way
        return above.pointer + "".join(map(_token, keys))

    def at(self, *keys: str | int) -> Place:
        raw = self.raw
        for key in keys:
            raw = raw[key]  # type: ignore[index]
        return Place(raw, self.resource, (self, keys), self.scope)


class Document:
    """One schema as the client sent it."""

    def __init__(self, schema: object, draft: Draft | None = None) -> None:
        names = _measure(schema)
        self._places: dict[str, Place] = {}  # by absolute URI, anchors included
        self._dynamic: dict[str, dict[str, Place]] = {}  # resource -> dynamic anchor -> place
        self._resource_of: dict[int, Resource] = {}  # by identity of the raw schema, where not the document's own
        stated = _draft_of(schema)
        known = draft or stated
        self.root = Place(schema, Resource("", known or Draft.DRAFT2020, known is not None), "#")
        self._places[""] = self.root
        if names:
            self._name(self.root)
            self.root = self.enter(self.root)

    def enter(self, place: Place) -> Place:
        """The same schema, in its own resource if it is one, with the dynamic anchors this brings into scope."""
        resource = self._resource_of.get(id(place.raw), place.resource)
        if resource is place.resource and (resource.uri not in self._dynamic or place.scope):
            return place
        return Place(place.raw, resource, place.pointer, self._widened(place.scope, resource))

    def _widened(self, scope: Scope, resource: Resource) -> Scope:
        known = {anchor for anchor, _, _ in scope}
        new = self._dynamic.get(resource.uri, {})
        return scope + tuple((name, resource.uri, at.pointer) for name, at in new.items() if name not in known)

    def reference(self, place: Place, keyword: str, target: object) -> Place:
        """Where a `$ref`, `$dynamicRef` or `$recursiveRef` at this place leads."""
        if not isinstance(target, str):
            raise ConstraintError(Code.INVALID, place.pointer, f"'{keyword}' must be a string")
        found = self._lookup(place, keyword, target)
        found = Place(found.raw, found.resource, found.pointer, self._widened(place.scope, found.resource))
        name = _defragged(target)[1]
        if keyword == "$ref":
            return found
        if keyword == "$recursiveRef":
            name = ""
        if self._dynamic.get(found.resource.uri, {}).get(name, _NOWHERE).pointer == found.pointer:
            for anchor, uri, _ in found.scope:
                if anchor == name:
                    outer = self._dynamic[uri][anchor]
                    return Place(outer.raw, outer.resource, outer.pointer, found.scope)
        return found

    def _lookup(self, place: Place, keyword: str, target: str) -> Place:
        if target.startswith("#"):
            uri, fragment = place.resource.uri, target[1:]
        else:
            uri, fragment = _defragged(_join(place.resource.uri, target))
        is_anchor = fragment != "" and not fragment.startswith("/")
        if is_anchor and (anchor := self._places.get(f"{uri}#{fragment}")) is not None:
            return anchor
        base = self._places.get(uri)
        if base is None and (meta := METASCHEMAS.get(uri)) is not None:
            draft = DRAFTS[uri]
            base = Place(meta, Resource(uri, draft, True), uri)
            self._places[uri] = base
            self._name(base)
            base = self._places[uri]
        if base is None:
            raise ConstraintError(
                Code.UNSUPPORTED,
                place.pointer,
                f"'{keyword}' to '{target}' is not fetched",
                "inline it under $defs",
            )
        if is_anchor:
            raise _dangling(place, keyword, target)
        return self._walk(place, keyword, target, base, unquote(fragment))

    def _walk(self, place: Place, keyword: str, target: str, base: Place, pointer: str) -> Place:
        """Follow a JSON pointer, and the resources it passes through."""
        found = base
        for token in pointer.split("/")[1:]:
            key: str | int = token.replace("~1", "/").replace("~0", "~")
            raw = found.raw
            if isinstance(raw, list) and str(key).isdigit() and int(key) < len(raw):
                key = int(key)
            elif not (isinstance(raw, dict) and key in raw):
                raise _dangling(place, keyword, target)
            raw = raw[key]  # type: ignore[index]
            found = Place(raw, self._resource_of.get(id(raw), found.resource), (found, (key,)))
        if not isinstance(found.raw, dict | bool):
            raise _dangling(place, keyword, target)
        return found

    def _name(self, top: Place) -> None:
        """Enter every schema below `top` that has a URI or an anchor into the tables."""
        work = [top]
        while work:
            place = self._named(work.pop())
            work.extend(_subschemas(place))

    def _named(self, place: Place) -> Place:
        raw, draft = place.raw, place.resource.draft
        if not isinstance(raw, dict):
            return place
        old = draft <= Draft.DRAFT7
        own = raw.get("id" if draft is Draft.DRAFT4 else "$id")
        resource = place.resource
        if isinstance(own, str) and not (old and "$ref" in raw):
            if own.startswith("#"):
                if old:
                    self._places[resource.uri + own] = place
            else:
                uri = _defragged(_join(resource.uri, own))[0]
                stated = _draft_of(raw)
                resource = Resource(uri, stated or draft, resource.stated or stated is not None)
                self._resource_of[id(raw)] = resource
                place = Place(raw, resource, place.pointer)
                self._places.setdefault(uri, place)
        if not old:
            self._name_anchors(place, raw)
        return place

    def _name_anchors(self, place: Place, raw: dict[str, object]) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := raw.get(keyword), str):
                self._places[f"{place.resource.uri}#{anchor}"] = place
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(place.resource.uri, {})[anchor] = place
        if raw.get("$recursiveAnchor") is True and place.resource.draft is Draft.DRAFT2019:
            self._dynamic.setdefault(place.resource.uri, {})[""] = place


_NOWHERE = Place(None, Resource("", Draft.DRAFT2020, False), "")


def _measure(schema: object) -> bool:
    """Refuse what is too long, too deep or no JSON. True if some schema in it may have a name of its own."""
    size, depth, named, level = 0, 0, False, [schema]
    while level:
        depth += 1
        if depth > NESTING:
            raise too_large(f"the schema is nested more than {NESTING} levels deep")
        below: list[object] = []
        for at, value in enumerate(level):
            if not at % 64:
                tick(16)
            if isinstance(value, str):
                size += len(value)
                if not value.isascii():
                    _require_text(value)
            elif isinstance(value, dict):
                size += _size_of_keys(value) + 5 * len(value)
                below += value.values()
                named = named or not NAMING.isdisjoint(value)
            elif isinstance(value, list):
                size += 2 * len(value)
                below += value
            else:
                size += _size_of_scalar(value)
            if size > SCHEMA_BYTES:
                raise too_large("the schema is longer than 1 MB")
        level = below
    return named


def _size_of_keys(value: dict[str, object]) -> int:
    try:
        keys = "".join(value)
    except TypeError:
        raise ConstraintError(Code.INVALID, "", "a schema's keys must be strings") from None
    if not keys.isascii():
        for key in value:
            _require_text(key)
    return len(keys)


def _size_of_scalar(value: object) -> int:
    match value:
        case float() if not math.isfinite(value):
            raise ConstraintError(Code.INVALID, "", "a number in the schema is not finite")
        case None | bool() | float():
            return 4
        case int():
            return value.bit_length() // 3
    raise ConstraintError(Code.INVALID, "", f"{type(value).__name__} is no JSON type")


def _require_text(string: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in string):
        reason = "a string in the schema holds half of a surrogate pair, which no UTF-8 text can contain"
        raise ConstraintError(Code.INVALID, "", reason)


def _draft_of(raw: object) -> Draft | None:
    uri = raw.get("$schema") if isinstance(raw, dict) else None
    return DRAFTS.get(uri.rstrip("#")) if isinstance(uri, str) else None


def _subschemas(place: Place) -> Iterator[Place]:
    raw = place.raw
    if not isinstance(raw, dict):
        return
    for keyword, value in raw.items():
        if keyword in ONE_SCHEMA and isinstance(value, dict | bool):
            yield place.at(keyword)
        elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
            yield from (place.at(keyword, index) for index in range(len(value)))
        elif keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
            yield from (place.at(keyword, key) for key in value)


def _defragged(uri: str) -> tuple[str, str]:
    """What stands before the fragment, and the fragment. Of anything, which urllib.parse.urldefrag is not for."""
    before, _, fragment = uri.partition("#")
    return before, fragment


def _join(base: str, target: str) -> str:
    if target.startswith("#"):
        return base + target
    if base.startswith("urn:"):
        return target
    try:
        return urljoin(base, target)
    except ValueError:  # no URI at all: it is only equal to itself
        return target


def _token(key: str | int) -> str:
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _dangling(place: Place, keyword: str, target: str) -> ConstraintError:
    return ConstraintError(Code.INVALID, place.pointer, f"'{keyword}' to '{target}' leads to no schema in the document")
