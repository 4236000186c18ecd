"""What crosses between the server and a handler: HttpRequest in; Full, Stream or Switch out. Knows no sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, Protocol
from urllib.parse import parse_qsl

from imp.http.errors import ApiError, Envelope, bad_request, envelope, envelope_of

MAX_JSON_DEPTH = 100  # checked before the parser, which recurses
MAX_JSON_VALUES = 2_000_000  # an empty list is 2 bytes in a body and 56 in memory
MAX_JSON_NAMES = 200_000  # of all objects together; a name costs a microsecond of the loop's time
MAX_NUMBER_DIGITS = 1000  # below CPython's own limit, past which int() raises
MAX_QUERY_FIELDS = 100

# A string, terminated or not, in one possessive match: linear in the body whatever it holds.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_DIGITS = re.compile(rb"[0-9]{%d}" % (MAX_NUMBER_DIGITS + 1))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACES_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
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
        value = json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise _invalid(f"there is a mistake at line {error.lineno}, column {error.colno}") from error
    if not isinstance(value, dict):
        raise bad_request(None, f"The request body must be a JSON object, not {_KINDS[type(value)]}.", "invalid_json")
    if _SURROGATE.search(body):
        _check_surrogates(value)
    return value


_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _invalid(what: str) -> ApiError:
    return bad_request(None, f"The request body is not valid JSON: {what}.", "invalid_json")


def _check_bounds(body: bytes) -> None:
    """Refuse what would exhaust the parser's stack, the memory or int(); without recursion and at the speed of C."""
    bare = _STRINGS.sub(b"", body)
    brackets = bare.translate(_BRACES_AS_BRACKETS, _NO_BRACKETS)
    if bare.count(b",") + len(brackets) // 2 > MAX_JSON_VALUES:
        raise bad_request(None, f"The request body has more than {MAX_JSON_VALUES} values.", "invalid_json")
    if bare.count(b":") > MAX_JSON_NAMES:
        raise bad_request(None, f"The objects in the body have more than {MAX_JSON_NAMES} names.", "invalid_json")
    if _DIGITS.search(bare):
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


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON number")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _invalid("a string holds half of a surrogate pair") from error
