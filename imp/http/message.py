"""What crosses between the server and a handler: HttpRequest in; Full, Stream or Switch out. Knows no sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from imp.http.errors import ApiError, Envelope, bad_request, envelope, envelope_of
from imp.http.strict_json import parse_json_object

MAX_QUERY_FIELDS = 100
ITEMS_AT_ONCE = 1024  # numbers take a microsecond each
TEXT_AT_ONCE = 1 << 16  # characters

_JSON_TYPE = re.compile(r"application/(?:json|[\w.-]+\+json)\Z")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_UTF8 = {"utf-8", "utf8", "us-ascii", ""}


class Headers:
    """Header fields in order; names are case-insensitive and may occur more than once. Immutable."""

    __slots__ = ("_first", "_items")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items = tuple([(name.lower(), value) for name, value in items])
        self._first = dict(reversed(self._items))

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a field."""
        return self._first.get(name.lower(), default)

    def all(self, name: str) -> list[str]:
        name = name.lower()
        if name not in self._first:
            return []
        return [value for key, value in self._items if key == name]

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(eq=False, slots=True)
class HttpRequest:
    """One request. Belongs to the event loop; `body` is empty until the gate has admitted the head.

    `path` is as sent (percent-encoded, without the query); `params` are the router's decoded `{name}` segments.
    """

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)  # the last one wins
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    http_version: str = "1.1"
    peer_ip: str = ""
    client_ip: str = ""  # peer_ip, or what a trusted proxy says
    id: str = ""
    client_request_id: str | None = None  # what the client sent as X-Request-Id
    params: dict[str, str] = field(default_factory=dict)
    arrived: float = 0.0  # the loop's clock when the head was complete
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    charge: Callable[[int], None] = lambda tokens: None  # against the rate limit: tokens it has used, once known
    owner: str = ""  # whose stored things it may see: a name of its API key; "" where there are no keys
    local: Any = None  # what a WebSocket keeps for the requests that come over it
    _endings: list[Callable[[], None]] = field(default_factory=list)

    @property
    def envelope(self) -> Envelope:
        return envelope_of(self.path)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call back once when the exchange is over, however it ends: answered, refused, failed or abandoned."""
        self._endings.append(callback)

    def end(self) -> None:
        """The server's call; last registered, first called."""
        while self._endings:
            self._endings.pop()()

    def outlive(self) -> Callable[[], None]:
        """Take over what `end` would do, for work that goes on when the exchange is over; call it when that ends."""
        work = HttpRequest(self.method, self.path)
        work._endings, self._endings = self._endings, []
        return work.end

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Pure and without state: a big body may be parsed in the pool.

        Raises ApiError 415 for another media type and 400 for anything that is not one strict JSON object.
        """
        require_json(self.headers)
        return parse_json_object(self.body)


@dataclass(eq=False, slots=True)
class Full:
    """A response that is complete."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Chunks(Protocol):
    """What an async generator of bytes has. `aclose` must release everything, also when nothing was ever taken."""

    def __anext__(self) -> Awaitable[bytes]: ...
    def aclose(self) -> Awaitable[None]: ...


@dataclass(eq=False, slots=True)
class Stream:
    """A response that grows. The head goes out at once, before the first chunk exists; each chunk is one write.

    The server always closes `chunks` (aclose), also when the client has gone. When `chunks` raises, the connection is
    aborted so that the client can tell a cut body from a complete one.

    ping: a chunk of its own, sent when there was no other for `ping_s` seconds; 0: never.
    """

    status: int
    headers: dict[str, str]
    chunks: Chunks
    ping: bytes = b""
    ping_s: float = 0.0


@dataclass(eq=False, slots=True)
class Switch:
    """101: the connection leaves HTTP and becomes a WebSocket. `session` serves it and returns when it is over.

    session: called with the socket and with the door by which requests that come over it are let in, as if each had
    come alone: it gives the handler, or the refusal.  ping_s: seconds between two pings; 0: none.
    """

    headers: dict[str, str]
    session: Callable[[Any, Callable[[HttpRequest], Any]], Awaitable[None]]
    ping_s: float = 15.0


Response = Full | Stream | Switch


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and infinities are a mistake of ours and raise ValueError."""
    return _ENCODER.encode(value).encode()


def dumps_long(value: Any) -> bytes:
    """The same in many calls: one over a long array holds the interpreter's lock all that time, on whatever thread."""
    return b"".join(_parts(value))


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        opening = b"{"
        for name, item in value.items():
            yield opening + dumps(name) + b":"
            yield from _parts(item)
            opening = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list) and value:
        opening, like = b"[", next((item for item in value if item is not None), None)
        if _holds_containers(like):
            for item in value:
                yield opening
                yield from _parts(item)
                opening = b","
        else:
            step = max(1, ITEMS_AT_ONCE // max(1, len(like))) if isinstance(like, dict) else ITEMS_AT_ONCE
            for start in range(0, len(value), step):
                yield opening + dumps(value[start : start + step])[1:-1]
                opening = b","
        yield b"]"
    elif isinstance(value, str) and len(value) > TEXT_AT_ONCE:
        yield b'"'
        for start in range(0, len(value), TEXT_AT_ONCE):
            yield dumps(value[start : start + TEXT_AT_ONCE])[1:-1]
        yield b'"'
    else:
        yield dumps(value)


def _holds_containers(item: Any) -> bool:
    return isinstance(item, list) or (
        isinstance(item, dict) and any(isinstance(each, dict | list) for each in item.values())
    )


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Full:
    return json_bytes(dumps(value), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Full:
    """A response of JSON that is written already."""
    return Full(status, body, {"Content-Type": "application/json"} | dict(headers or {}))


def error_response(error: ApiError, path: str, request_id: str) -> Full:
    """The error in the envelope of its path."""
    return json_response(envelope(error, envelope_of(path), request_id), error.status, error.headers)


def parse_query(raw: str) -> dict[str, str]:
    """`a=1&b=2`; the last of several wins. ApiError 400 past 100 fields or for bytes that are not UTF-8."""
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise bad_request(None, "The query string is not valid UTF-8 or has more than 100 fields.") from error
    return dict(pairs)


def require_json(headers: Headers) -> None:
    """415 unless the body is declared as JSON in UTF-8. A missing type counts as another: a web page can send that
    across origins without asking first, so being lenient here would let any page use a local server."""
    kind, _, parameters = (headers.get("content-type") or "").partition(";")
    match = re.search(r'charset\s*=\s*"?([^\s";]*)', parameters, re.IGNORECASE)
    charset = match.group(1).lower() if match else ""
    if not _JSON_TYPE.match(kind.strip().lower()) or charset not in _UTF8:
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(415, "unsupported_media_type", message)
