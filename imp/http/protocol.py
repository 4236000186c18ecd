"""HTTP/1.1 without sockets: bytes in, events out; responses in, bytes out. h11 parses and frames; this file adds the
limits and everything h11 lets through that a proxy in front might read differently (RFC 9112; request smuggling).

One `HttpConnection` a client. Requests are handed out one at a time: what a client pipelines waits in the buffer until
`next_cycle`. After `Refused` nothing more is read: the framing cannot be trusted, the connection must close.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import h11

from imp.http.errors import ApiError
from imp.http.message import Headers

KiB = 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a request may weigh."""

    request_line_bytes: int = 16 * KiB  # 414 past it
    head_bytes: int = 64 * KiB  # request line and fields together; 431
    header_count: int = 256  # 431
    body_bytes: int = 100 * KiB * KiB  # 413
    chunk_line_bytes: int = 4 * KiB  # a chunk size with its extensions, or one trailer field; 400


@dataclass(frozen=True, slots=True)
class Head:
    """A complete, valid head. `body_length` is None for a chunked body."""

    method: str
    target: str  # origin form: path and query; also "*", or CONNECT's authority
    headers: Headers
    http_version: str
    body_length: int | None
    expects_continue: bool


@dataclass(frozen=True, slots=True)
class Complete:
    """The body has arrived; empty where it was discarded."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Bytes that are no acceptable request. Answer `error`, then close."""

    error: ApiError


class _State(Enum):
    HEAD = 0
    BODY = 1
    RECEIVED = 2  # until next_cycle
    REFUSED = 3


class HttpConnection:
    """One client's connection. Mutable, owned by its transport's loop."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self._buffer = bytearray()
        self._new_exchange()

    # -- receiving

    @property
    def buffered(self) -> int:
        """Bytes received and not yet part of an event."""
        return len(self._buffer)

    @property
    def idle(self) -> bool:
        """Between requests, with not one byte of the next."""
        return self._state is _State.HEAD and not self._buffer

    @property
    def reading_body(self) -> bool:
        return self._state is _State.BODY

    def receive(self, data: bytes) -> None:
        if self._state is not _State.REFUSED:
            self._buffer += data

    def next_event(self) -> Head | Complete | Refused | None:
        """What the bytes so far amount to; None: more bytes are needed, or the current request is not answered yet."""
        try:
            if self._state is _State.HEAD:
                return self._take_head()
            if self._state is _State.BODY:
                return self._take_body()
        except ApiError as error:
            return self.refuse(error)
        except h11.RemoteProtocolError:
            return self.refuse(_malformed("The request is not valid HTTP."))
        return None

    def refuse(self, error: ApiError) -> Refused:
        """Read no further; also the caller's way to end a request that takes too long."""
        self._state = _State.REFUSED
        self._buffer.clear()
        return Refused(error)

    def want_body(self) -> bytes:
        """The body of the current head is wanted; returns `100 Continue` to send where the client waits for it."""
        if self._h11.they_are_waiting_for_100_continue and not self._buffer:
            return self._h11.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""
        return b""

    def discard_body(self) -> None:
        """Read the body of the current head without keeping it."""
        self._keep_body = False

    # -- answering

    def start(self, status: int, headers: Iterable[tuple[str, str]], close: bool = False) -> bytes:
        """The head of a response. Without Content-Length the body is chunked, or ends the connection (HTTP/1.0).

        close: say that this connection ends with the response; h11 adds that itself where it must.
        """
        fields = list(headers)
        if close and not any(name.lower() == "connection" for name, _ in fields):
            fields.append(("Connection", "close"))
        return self._h11.send(h11.Response(status_code=status, headers=fields, reason=_reason(status))) or b""

    def data(self, chunk: bytes) -> bytes:
        """Part of the body; nothing where the request was HEAD or the chunk is empty."""
        if self._is_head or not chunk:
            return b""
        return self._h11.send(h11.Data(data=chunk)) or b""

    def end(self) -> bytes:
        return self._h11.send(h11.EndOfMessage()) or b""

    def switch(self, headers: Iterable[tuple[str, str]]) -> tuple[bytes, bytes]:
        """Leave HTTP: the 101 to send, and what the client sent after its head. Nothing else is called after this."""
        fields = list(headers)
        reason = b"Switching Protocols"
        start = self._h11.send(h11.InformationalResponse(status_code=101, headers=fields, reason=reason)) or b""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return start, rest

    @property
    def is_head(self) -> bool:
        return self._is_head

    @property
    def reusable(self) -> bool:
        """Both sides are done and neither asked to close."""
        return self._state is _State.RECEIVED and self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    def next_cycle(self) -> None:
        """Go on to the next request, which may already be in the buffer."""
        assert self.reusable
        self._new_exchange()

    # -- inside

    def _new_exchange(self) -> None:
        # a fresh h11 connection per exchange: it never holds bytes of a later request
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes + KiB)
        self._state = _State.HEAD
        self._skipped_blank = False
        self._scanned = 0
        self._is_head = False
        self._keep_body = True
        self._body = bytearray()
        self._extent: _Length | _Chunks = _Length(0)

    def _take_head(self) -> Head | None:
        buffer = self._buffer
        if not self._skipped_blank and buffer[:2] == b"\r\n":  # RFC 9112 2.2: one empty line before a request
            del buffer[:2]
            self._skipped_blank = True
        if not buffer or buffer == b"\r":
            return None
        end = _find_end(buffer, self._scanned, self.limits)
        if end < 0:
            self._scanned = len(buffer)
            return None
        raw = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        head = _read_head(raw, self.limits)
        self._h11.receive_data(raw)
        event = self._h11.next_event()
        if not isinstance(event, h11.Request):
            raise _malformed("The request head is not valid HTTP.")
        self._is_head = head.method == "HEAD"
        self._extent = _Chunks(self.limits) if head.body_length is None else _Length(head.body_length)
        self._state = _State.BODY
        return head

    def _take_body(self) -> Complete | None:
        piece = self._extent.take(self._buffer)
        if piece:
            self._h11.receive_data(piece)
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Data):
                if self._keep_body:
                    self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._state = _State.RECEIVED
                body, self._body = bytes(self._body), bytearray()
                return Complete(body)
            else:
                return None


class _Length:
    """The extent of a body of known length."""

    def __init__(self, length: int) -> None:
        self._left = length

    def take(self, buffer: bytearray) -> bytes:
        piece = bytes(buffer[: self._left])
        del buffer[: len(piece)]
        self._left -= len(piece)
        return piece


_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n\Z")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n\Z")


class _Chunks:
    """The extent of a chunked body: how far the message goes, checked before h11 sees a byte, because h11 waits for
    ever for a chunk of 2^63 bytes and takes line ends that others do not."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._total = 0
        self._left = 0  # of the current chunk, its line end included
        self._in_trailers = False
        self._trailers = 0
        self._ended = False

    def take(self, buffer: bytearray) -> bytes:
        """Cut what belongs to this body off the buffer. ApiError 400 or 413."""
        at = 0
        while not self._ended and at < len(buffer):
            if self._left:
                at += self._skip_chunk(buffer, at)
                continue
            end = buffer.find(b"\n", at) + 1
            if not end:
                if len(buffer) - at > self._limits.chunk_line_bytes:
                    raise _malformed("A line of the chunked body is too long.")
                break
            self._read_line(bytes(buffer[at:end]))
            at = end
        piece = bytes(buffer[:at])
        del buffer[:at]
        return piece

    def _skip_chunk(self, buffer: bytearray, at: int) -> int:
        taken = min(self._left, len(buffer) - at)
        for offset, wanted in ((self._left - 2, 13), (self._left - 1, 10)):  # CR LF after the chunk's data
            if 0 <= offset < taken and buffer[at + offset] != wanted:
                raise _malformed("A chunk of the body is longer than its size says.")
        self._left -= taken
        return taken

    def _read_line(self, line: bytes) -> None:
        if self._in_trailers:
            self._trailers += 1
            self._ended = line == b"\r\n"
            if not self._ended and not (_TRAILER_LINE.match(line) and self._trailers <= self._limits.header_count):
                raise _malformed("The trailer of the chunked body is not valid.")
            return
        match = _CHUNK_LINE.match(line)
        if not match or len(line) > self._limits.chunk_line_bytes:
            raise _malformed("A chunk size of the body is not valid.")
        size = int(match.group(1), 16)
        self._total += size
        if self._total > self._limits.body_bytes:
            raise _too_large(self._limits)
        self._in_trailers = size == 0
        self._left = size + 2 if size else 0


_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TOKEN_BYTE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\Z")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*\Z")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
# RFC 3986 reg-name or IP literal, and a port; empty is allowed (RFC 9110 7.2)
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?\Z")


def _find_end(buffer: bytearray, scanned: int, limits: HttpLimits) -> int:
    """Where the head's last line ends, -1 while it is not there. ApiError as soon as it can never be valid."""
    if not _TOKEN_BYTE.match(buffer):
        raise _malformed("The request does not begin with an HTTP method.")
    end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    known = len(buffer) if end < 0 else end
    line = buffer.find(b"\r\n", 0, limits.request_line_bytes + 2)
    if line < 0 and known > limits.request_line_bytes:
        raise ApiError(414, "uri_too_long", f"The request line is longer than {limits.request_line_bytes} bytes.")
    if known > limits.head_bytes or buffer.count(b"\r\n", 0, known) > limits.header_count:
        raise ApiError(
            431,
            "headers_too_large",
            f"The request has more than {limits.header_count} header fields or {limits.head_bytes} bytes of them.",
        )
    if _BARE_LINE_END.search(buffer, max(0, scanned - 1), known):
        raise _malformed("A line of the request head does not end with CR LF.")
    return end


def _read_head(raw: bytes, limits: HttpLimits) -> Head:
    first, *lines = raw[:-4].split(b"\r\n")
    match = _REQUEST_LINE.match(first)
    if not match:
        raise _malformed("The request line is not valid HTTP.")
    method, target, version = (group.decode("ascii") for group in match.groups())
    if version not in ("1.0", "1.1"):
        raise ApiError(505, "http_version", f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0.")
    headers = Headers(_read_field(line) for line in lines)
    _check_host(headers, version)
    length = _body_length(method, headers, version, limits)
    expects = _expects_continue(headers, version)
    return Head(method, _origin_form(method, target), headers, version, length, expects)


def _read_field(line: bytes) -> tuple[str, str]:
    if line[:1] in b" \t":
        raise _malformed("A header field is folded over several lines, which HTTP no longer allows.")
    match = _FIELD.match(line)
    if not match:
        raise _malformed("A header field is not valid HTTP.")
    return match.group(1).decode("ascii"), match.group(2).decode("latin-1")


def _check_host(headers: Headers, version: str) -> None:
    hosts = headers.all("host")
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise _malformed("The request must have exactly one Host field.")
    if hosts and not _HOST.match(hosts[0]):
        raise _malformed("The Host field is not a host name.")


def _body_length(method: str, headers: Headers, version: str, limits: HttpLimits) -> int | None:
    """Bytes of body to come; None: chunked."""
    lengths, codings = headers.all("content-length"), headers.all("transfer-encoding")
    if codings:
        if version == "1.0" or lengths:
            raise _malformed("Transfer-Encoding goes neither with HTTP/1.0 nor with Content-Length.")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise ApiError(501, "transfer_encoding", "The only Transfer-Encoding spoken here is chunked.")
        return None
    if len(lengths) > 1 or (lengths and not re.fullmatch(r"[0-9]{1,20}", lengths[0])):
        raise _malformed("Content-Length must be one decimal number.")
    if not lengths:
        if version == "1.0" and method in ("POST", "PUT", "PATCH"):  # could only end with the connection
            raise ApiError(411, "length_required", "A body in HTTP/1.0 needs a Content-Length.")
        return 0
    length = int(lengths[0])
    if length > limits.body_bytes:
        raise _too_large(limits)
    return length


def _expects_continue(headers: Headers, version: str) -> bool:
    expectations = [value.lower() for value in headers.all("expect")]
    if version == "1.0" or not expectations:
        return False
    if expectations != ["100-continue"]:
        raise ApiError(417, "expectation_failed", "The only expectation met here is 100-continue.")
    return True


def _origin_form(method: str, target: str) -> str:
    if method == "CONNECT" or target.startswith("/") or (target == "*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        raise _malformed("The request target is neither a path nor an http URL.")
    rest = target[absolute.end() :]
    return rest if rest.startswith("/") else "/" + rest


def _malformed(message: str) -> ApiError:
    return ApiError(400, "malformed_request", message)


def _too_large(limits: HttpLimits) -> ApiError:
    return ApiError(413, "body_too_large", f"The request body is larger than {limits.body_bytes} bytes.")


_REASONS = {
    200: b"OK",
    204: b"No Content",
    206: b"Partial Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    411: b"Length Required",
    413: b"Content Too Large",
    414: b"URI Too Long",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
    507: b"Insufficient Storage",
}


def _reason(status: int) -> bytes:
    return _REASONS.get(status, b"")
