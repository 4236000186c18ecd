"""HTTP/1.1 without sockets: bytes in, events out; responses in, bytes out. h11 parses; `head` and `body` add the limits
and refuse everything h11 lets through that a proxy in front might read differently (RFC 9112; request smuggling).

One `HttpConnection` a client. Requests are handed out one at a time: what a client pipelines waits in the buffer until
`next_cycle`. After `Refused` nothing more is read: the framing cannot be trusted, the connection must close.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import h11

from imp.http import answer
from imp.http.answer import Answer
from imp.http.body import Chunks, Length
from imp.http.errors import ApiError
from imp.http.head import Head, HttpLimits, KiB, find_end, malformed, read_head, request_line

__all__ = ["Complete", "Head", "HttpConnection", "HttpLimits", "KiB", "Refused"]


@dataclass(frozen=True, slots=True)
class Complete:
    """The body has arrived; empty where it was discarded."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Bytes that are no acceptable request. Answer `error`, then close.

    method, target: what was asked, of a head that cannot be taken, as far as that can be read.
    """

    error: ApiError
    method: str = ""
    target: str = ""


class _State(Enum):
    HEAD = 0
    BODY = 1
    RECEIVED = 2  # until next_cycle
    REFUSED = 3


class HttpConnection:
    """One client's connection. Mutable, owned by its transport's loop."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self._state: _State
        self._head: bytes
        self._answer: Answer
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
    def reading_head(self) -> bool:
        """A part of a head has come."""
        return self._state is _State.HEAD and bool(self._buffer)

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
            return self.refuse(malformed("The request is not valid HTTP."))
        return None

    def refuse(self, error: ApiError) -> Refused:
        """Read no further; also the caller's way to end a request that takes too long."""
        method, target = ("", "") if self._state is not _State.HEAD else request_line(self._head or self._buffer)
        if method == "HEAD":
            self._answer.is_head = True
        self._state = _State.REFUSED
        self._buffer.clear()
        return Refused(error, method, target)

    def want_body(self) -> bytes:
        """The body of the current head is wanted; returns `100 Continue` to send where the client waits for it."""
        return answer.head(100, ()) if self._h11.they_are_waiting_for_100_continue and not self._buffer else b""

    def discard_body(self) -> None:
        """Read the body of the current head without keeping it."""
        self._keep_body = False

    # -- answering

    def start(self, status: int, headers: Iterable[tuple[str, str]], close: bool = False) -> bytes:
        """The head of a response. Without Content-Length the body is chunked, or ends the connection (HTTP/1.0).

        close: say that this connection ends with the response, which is said unasked where it must.
        """
        return self._answer.start(status, headers, close)

    def data(self, chunk: bytes) -> bytes:
        """Part of the body; nothing where the request was HEAD or the chunk is empty."""
        return self._answer.data(chunk)

    def end(self) -> bytes:
        return self._answer.end()

    def switch(self, headers: Iterable[tuple[str, str]]) -> tuple[bytes, bytes]:
        """Leave HTTP: the 101 to send, and what the client sent after its head. Nothing else is called after this."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return answer.head(101, headers), rest

    @property
    def is_head(self) -> bool:
        return self._answer.is_head

    @property
    def reusable(self) -> bool:
        """Both sides are done and neither asked to close."""
        return self._state is _State.RECEIVED and self._answer.done and not self._answer.closes

    def next_cycle(self) -> None:
        """Go on to the next request, which may already be in the buffer."""
        assert self.reusable
        self._new_exchange()

    # -- inside

    def _new_exchange(self) -> None:
        self._state = _State.HEAD
        self._skipped_blank = False
        self._scanned = 0
        self._head = b""  # one that has not been taken yet
        self._keep_body = True
        self._body = bytearray()
        self._extent: Length | Chunks | None = None  # None: there is no body
        self._answer = Answer(keeps=False)  # to what is no request

    def _take_head(self) -> Head | None:
        buffer = self._buffer
        if not self._skipped_blank and buffer[:2] == b"\r\n":  # RFC 9112 2.2: one empty line before a request
            del buffer[:2]
            self._skipped_blank = True
        if not buffer or buffer == b"\r":
            return None
        end = find_end(buffer, self._scanned, self.limits)
        if end < 0:
            self._scanned = len(buffer)
            return None
        raw = self._head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        head = read_head(raw, self.limits)
        # a fresh h11 connection per exchange: it never holds bytes of a later request
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes + KiB)
        self._h11.receive_data(raw)
        event = self._h11.next_event()
        if not isinstance(event, h11.Request):
            raise malformed("The request head is not valid HTTP.")
        self._answer = Answer(head.method == "HEAD", head.http_version != "1.0", head.keeps_connection)
        if head.body_length != 0:
            self._extent = Chunks(self.limits) if head.body_length is None else Length(head.body_length)
        self._state, self._head = _State.BODY, b""
        return head

    def _take_body(self) -> Complete | None:
        if self._extent is None:
            self._state = _State.RECEIVED
            return Complete(b"")
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
