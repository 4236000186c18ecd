"""A response as bytes: status line, fields, framing of the body (RFC 9112 4 to 7). Knows of the request only what
decides the framing. h11 would write the same in several times the time; the tests have it read what is written here.
"""

from __future__ import annotations

from collections.abc import Iterable

_REASONS = {
    100: "Continue",
    101: "Switching Protocols",
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
}
_STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n" for status, reason in _REASONS.items()}
_BODILESS = frozenset({204, 304})
_FRAMING_LENGTHS = (len("Content-Length"), len("Connection"))  # most names need no second look
_CLOSE = "Connection: close\r\n"
_CHUNKED = "Transfer-Encoding: chunked\r\n"


class Answer:
    """One response on its way out: `start`, `data`..., `end`. Another order or length is a mistake of ours: ValueError.

    is_head: the body is left away.  chunks: the client understands chunked bodies (HTTP/1.1).
    keeps: the client keeps the connection.
    """

    __slots__ = ("_chunked", "_left", "_started", "_without_body", "chunks", "closes", "done", "is_head")

    def __init__(self, is_head: bool = False, chunks: bool = True, keeps: bool = True) -> None:
        self.is_head = is_head
        self.chunks = chunks
        self.closes = not keeps  # the connection ends with this response
        self.done = False
        self._started = False
        self._chunked = False
        self._without_body = False
        self._left: int | None = None  # bytes of body that were promised and not given

    def start(self, status: int, headers: Iterable[tuple[str, str]], close: bool) -> bytes:
        """The head. Without Content-Length the body is chunked, or ends the connection."""
        if self._started:
            raise ValueError("a response was begun twice")
        self._started = True
        says_close = False
        for name, value in (headers := list(headers)):
            if len(name) not in _FRAMING_LENGTHS:
                continue
            lower = name.lower()
            if lower == "content-length":
                self._left = int(value)
            elif lower == "connection":
                says_close = value.lower() == "close"
                self.closes |= says_close
        framing = ""
        self._without_body = self.is_head or status in _BODILESS
        if status in _BODILESS:
            self._left = None
        elif self._left is None:
            self._chunked = self.chunks
            self.closes |= not self.chunks
            framing = _CHUNKED if self._chunked else ""
        self.closes |= close
        if self.closes and not says_close:
            framing += _CLOSE
        return head(status, headers, framing)

    def data(self, chunk: bytes) -> bytes:
        """Part of the body; nothing where there is none to have or the chunk is empty."""
        if not self._started or self.done:
            raise ValueError("a body outside of its response")
        if self._without_body or not chunk:
            return b""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(chunk), chunk)
        if self._left is not None:
            self._left -= len(chunk)
            if self._left < 0:
                raise ValueError("a body is longer than its Content-Length")
        return chunk

    def end(self) -> bytes:
        if not self._started or self.done:
            raise ValueError("the end of a response that does not run")
        if self._left and not self._without_body:
            raise ValueError("a body is shorter than its Content-Length")
        self.done = True
        return b"0\r\n\r\n" if self._chunked and not self._without_body else b""


def head(status: int, headers: Iterable[tuple[str, str]], framing: str = "") -> bytes:
    """Status line and fields. ValueError for a field that would be read as more than one."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    block = "".join(lines)
    if block.count("\n") != len(lines) or block.count("\r") != len(lines) or "\0" in block:
        raise ValueError("a response field holds a line end")
    status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    return f"{status_line}{block}{framing}\r\n".encode("ascii")
