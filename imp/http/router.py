"""The route table: which handler answers a method and a path, and who may ask. Knows no sockets and no dialects.

A path is compared as sent, segment by segment, decoded once. Nothing is normalised: a doubled slash, a trailing slash,
another case or a dot segment is another path, hence 404. So no spelling of a path reaches a handler that the table
does not name, and none reaches it with another access than the table's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote_to_bytes

from imp.http.errors import ApiError, bad_request, not_found
from imp.http.message import HttpRequest, Response

Handler = Callable[[HttpRequest], Awaitable[Response]]

ALIASED = ("chat", "completions", "embeddings", "models", "responses", "rerank", "score")  # served without /v1 as well


class Access(Enum):
    """Who may use a route."""

    OPEN = "open"  # anybody, at any rate
    KEY = "key"  # holders of an API key, where keys are configured
    ADMIN = "admin"  # the same; without keys only the machine itself


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table. A `{name}` segment of `pattern` matches one non-empty segment.

    `generates`: the request occupies the engine, so it counts against the limit of concurrent requests.
    """

    methods: tuple[str, ...]
    pattern: str
    handler: Handler
    access: Access = Access.KEY
    generates: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    params: dict[str, str]


class Router:
    """Finds routes. Immutable after construction; the first matching line wins."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed: dict[str, list[Route]] = {}
        self._patterns: list[tuple[tuple[str, ...], Route]] = []
        for route in self.routes:
            segments = tuple(route.pattern.split("/"))
            if any(_is_name(segment) for segment in segments):
                self._patterns.append((segments, route))
            else:
                self._fixed.setdefault(route.pattern, []).append(route)

    def find(self, method: str, path: str) -> Match:
        """The route of a method and path as sent. HEAD falls back to GET.

        ApiError: 400 for a broken percent-escape, 404 for a path nobody has, 405 with Allow for a wrong method.
        """
        matches = self._matches(path)
        if not matches:
            raise not_found(f"There is no {method} {_shown(path)} on this server.", "unknown_url")
        for wanted in (method, "GET") if method == "HEAD" else (method,):
            for match in matches:
                if wanted in match.route.methods:
                    return match
        allow = allowed(match.route for match in matches)
        message = f"{_shown(path)} does not take {method}, only {allow}."
        raise ApiError(405, "method_not_allowed", message, headers={"Allow": allow})

    def allow(self, path: str) -> str | None:
        """The value of an Allow header for this path; None where no route has it."""
        matches = self._matches(path)
        return allowed(match.route for match in matches) if matches else None

    def _matches(self, path: str) -> list[Match]:
        if path in self._fixed:
            return [Match(route, {}) for route in self._fixed[path]]
        if not path.startswith("/"):
            return []
        segments = [decode_segment(segment) for segment in path.split("/")]
        if "%" in path and not any("/" in segment for segment in segments):
            fixed = self._fixed.get("/".join(segments), ())
            if fixed:
                return [Match(route, {}) for route in fixed]
        found = []
        for pattern, route in self._patterns:
            params = _bind(pattern, segments)
            if params is not None:
                found.append(Match(route, params))
        return found


def with_aliases(routes: Iterable[Route]) -> list[Route]:
    """The table, and the same handlers without `/v1` where clients of other servers expect that."""
    table = list(routes)
    known = {route.pattern for route in table}
    for route in list(table):
        bare = route.pattern.removeprefix("/v1")
        if bare != route.pattern and bare.split("/")[1] in ALIASED and bare not in known:
            table.append(replace(route, pattern=bare))
    return table


def allowed(routes: Iterable[Route]) -> str:
    """The value of an Allow header."""
    methods = {method for route in routes for method in route.methods} | {"OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


_ESCAPES = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def decode_segment(segment: str) -> str:
    """Percent-decode one path segment, once. ApiError 400 for a broken escape, invalid UTF-8 or control characters."""
    if "%" not in segment:
        return segment
    try:
        if _ESCAPES.search(segment):
            raise ValueError
        decoded = unquote_to_bytes(segment).decode("utf-8")
        if _CONTROLS.search(decoded):
            raise ValueError
    except ValueError as error:
        raise bad_request(None, "The path has a percent-escape that is not printable UTF-8.", "invalid_url") from error
    return decoded


def _is_name(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _bind(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    params = {}
    for wanted, segment in zip(pattern, segments, strict=True):
        if _is_name(wanted):
            if segment in ("", ".", ".."):
                return None
            params[wanted[1:-1]] = segment
        elif wanted != segment:
            return None
    return params


def _shown(path: str) -> str:
    return path if len(path) <= 100 else path[:100] + "..."
