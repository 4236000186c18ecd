"""WebSockets (RFC 6455) after the upgrade: frames to messages and back, pings, closing, time. Knows no dialect.

wsproto parses and frames; this file is to it what server.py and protocol.py are to h11: it owns the transport once the
connection has left HTTP, bounds what a client may send, and ends what it does not read. Messages are text; a session
takes them one at a time and what a client sends meanwhile waits, first in a short queue, then in its own socket.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wsproto.connection import SERVER, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import generate_accept_token

from imp.http.errors import ApiError
from imp.http.message import Headers, HttpRequest

log = logging.getLogger(__name__)

MAX_QUEUED = 16  # messages taken ahead of the session
MAX_QUEUED_BYTES = 1 << 20
CLOSING_S = 5.0  # for the client's half of the closing handshake
PATIENCE = 10  # one message may take this many read timeouts in all

GOING_AWAY, NORMAL, UNSUPPORTED, TOO_BIG, TOO_SLOW, INTERNAL = 1001, 1000, 1003, 1009, 1008, 1011


class Closed(Exception):
    """The conversation is over: the client closed or broke it, or the server goes down."""


class SlowReaderError(Exception):
    """The client takes nothing of what it is sent."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What a client may do. Times in seconds."""

    message_bytes: int = 100 << 20  # 1009 past it
    read_timeout_s: float = 60.0  # between two pieces of one message, and for any sign of life
    write_timeout_s: float = 600.0  # a reader that takes nothing
    ping_s: float = 15.0  # 0: never


def wants_upgrade(headers: Headers) -> bool:
    return "websocket" in _tokens(headers, "upgrade") and "upgrade" in _tokens(headers, "connection")


def accept(request: HttpRequest) -> dict[str, str]:
    """The fields of the 101 that opens a WebSocket (RFC 6455 4.2). ApiError 400, or 426 naming what is spoken here."""
    headers = request.headers
    if request.method != "GET" or not wants_upgrade(headers):
        message = f"{request.path} answers GET only as the opening of a WebSocket."
        raise ApiError(426, "upgrade_required", message, headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    if request.http_version != "1.1":
        raise ApiError(400, "malformed_request", "A WebSocket is opened with HTTP/1.1.")
    if headers.all("sec-websocket-version") != ["13"]:
        raise ApiError(
            426,
            "websocket_version",
            "The only WebSocket version spoken here is 13.",
            headers={"Sec-WebSocket-Version": "13", "Upgrade": "websocket", "Connection": "Upgrade"},
        )
    keys = headers.all("sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        raise ApiError(400, "malformed_request", "Sec-WebSocket-Key must be 16 bytes in base64.")
    token = generate_accept_token(keys[0].encode("ascii")).decode("ascii")
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": token}


def _tokens(headers: Headers, name: str) -> set[str]:
    return {token.strip().lower() for value in headers.all(name) for token in value.split(",")}


def _is_key(value: str) -> bool:
    try:
        return len(base64.b64decode(value.encode("ascii"), validate=True)) == 16
    except (UnicodeEncodeError, binascii.Error):
        return False


class WebSocket(asyncio.Protocol):
    """One client after the upgrade. Mutable, owned by its loop.

    A session reads with `receive` and writes with `send`; when it returns the socket closes with 1000, when it raises
    with 1011. A client that leaves cancels the session.
    """

    def __init__(self, transport: asyncio.Transport, limits: SocketLimits, on_end: Callable[[WebSocket], None]) -> None:
        """on_end: called once, when the transport is gone and the session has ended."""
        self._transport = transport
        self._limits = limits
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._frames = Connection(SERVER)
        self._part = io.StringIO()  # of the message that is coming
        self._part_bytes = 0
        self._part_began: float | None = None  # loop time
        self._messages: deque[str] = deque()
        self._queued_bytes = 0
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._owed: Ping | None = None  # to be answered when the client reads again
        self._reading = True
        self._waiting = False  # the session waits for a message
        self._leaving = False  # the server drains
        self._over = False  # a close frame was sent or received, or the protocol was broken
        self._deaf = False  # nothing that still comes means anything
        self._lost = False
        self._heard = self._loop.time()
        self._closer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None  # the session

    def begin(self, session: Callable[[WebSocket], Awaitable[None]], rest: bytes) -> None:
        """Serve the client from now on.  rest: what it sent already."""
        self._transport.set_protocol(self)
        self._transport.resume_reading()
        self.task = self._loop.create_task(self._serve(session))
        self.task.add_done_callback(self._on_done)
        self._ticker = self._loop.call_later(self._period_s, self._tick)
        if rest:
            self.data_received(rest)

    # -- the session's calls

    async def receive(self) -> str:
        """The next message. Raises Closed."""
        self._waiting = True
        try:
            while True:
                if self._leaving and not self._over:
                    self.close(GOING_AWAY, "The server is shutting down.")
                if self._over:
                    raise Closed
                if self._messages:
                    return self._take()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting = False

    async def send(self, text: str) -> None:
        """One message; waits while the client reads slower than we write. Raises Closed or SlowReaderError."""
        if self._over:
            raise Closed
        self._write(self._frames.send(TextMessage(data=text)))
        await asyncio.sleep(0)  # a source that never waits would keep the loop from noticing that the client has gone
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._limits.write_timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                raise SlowReaderError from error

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame; the transport goes when the client has answered it, or after a few seconds."""
        if not self._over and self._frames.state is ConnectionState.OPEN:
            self._write(self._frames.send(CloseConnection(code=code, reason=reason)))
        self._end()

    # -- the server's calls

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self._waiting

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def close_if_idle(self) -> None:
        """Close when the running turn is over, which may be now."""
        self._leaving = True
        self._changed.set()
        if self.task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- the transport's calls

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._deaf:
            return
        self._frames.receive_data(data)
        for event in self._frames.events():
            if isinstance(event, CloseConnection):
                self._closed_by(event)
                return
            if isinstance(event, Ping):
                self._pong(event)
            elif isinstance(event, TextMessage) and not self._over:
                self._add(event)
            elif isinstance(event, BytesMessage) and not self._over:
                self.close(UNSUPPORTED, "Messages must be text.")

    def eof_received(self) -> bool:
        return False  # without a close frame: the client is gone

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = self._over = True
        for timer in (self._closer, self._ticker):
            if timer is not None:
                timer.cancel()
        self._writable.set()
        if self.task is not None:
            self.task.cancel()
        else:
            self._on_end(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self._pong(owed)

    # -- inside

    async def _serve(self, session: Callable[[WebSocket], Awaitable[None]]) -> None:
        try:
            await session(self)
            self.close(NORMAL)
        except Closed:
            pass
        except SlowReaderError:
            log.info("a WebSocket's reader took nothing for %g s", self._limits.write_timeout_s)
            self.abort()
        except Exception:
            log.exception("a WebSocket's session failed")
            self.close(INTERNAL, "The server met an unexpected error.")

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if task.cancelled() and not self._over:
            self.abort()
        if self._lost:
            self._on_end(self)

    def _take(self) -> str:
        message = self._messages.popleft()
        self._queued_bytes -= len(message)
        if not self._reading and not self._over and not self._is_full:
            self._reading = True
            self._transport.resume_reading()
        return message

    @property
    def _is_full(self) -> bool:
        return len(self._messages) >= MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES

    def _add(self, event: TextMessage) -> None:
        self._part.write(event.data)
        self._part_bytes += len(event.data) if event.data.isascii() else len(event.data.encode())
        if self._part_bytes > self._limits.message_bytes:
            self.close(TOO_BIG, f"A message may have {self._limits.message_bytes} bytes.")
            return
        if not event.message_finished:
            self._part_began = self._part_began or self._heard
            return
        message, self._part = self._part.getvalue(), io.StringIO()
        self._part_bytes, self._part_began = 0, None
        self._messages.append(message)
        self._queued_bytes += len(message)
        self._changed.set()
        if self._is_full and self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _pong(self, ping: Ping) -> None:
        if self._frames.state is not ConnectionState.OPEN:
            return
        if self._writable.is_set():
            self._write(self._frames.send(ping.response()))
        else:
            self._owed = ping  # RFC 6455 5.5.3: only the last one needs an answer

    def _closed_by(self, event: CloseConnection) -> None:
        """The client's close frame, or a mistake of its framing, which wsproto reports in the same words."""
        broken = self._frames.state is ConnectionState.OPEN
        if broken:
            self._write(self._frames.send(CloseConnection(code=event.code, reason=event.reason)))
        elif self._frames.state is ConnectionState.REMOTE_CLOSING:
            self._write(self._frames.send(event.response()))
        self._deaf = True
        self._messages.clear()
        self._end()
        if broken:
            self._linger()
        else:
            self._transport.close()  # what is unsent is still sent
        if self.task is not None:
            self.task.cancel()

    def _linger(self) -> None:
        """Say that we are done and read on for a while: the client may still be sending, and closing at once would
        reset what we said."""
        try:
            self._transport.write_eof()
        except (OSError, NotImplementedError):
            self._transport.close()

    def _end(self) -> None:
        self._over = True
        self._changed.set()
        if not self._reading:  # the client's answer to our close frame is behind what it has queued
            self._reading = True
            self._transport.resume_reading()
        if self._closer is None and not self._lost:
            self._closer = self._loop.call_later(CLOSING_S, self._transport.abort)

    @property
    def _period_s(self) -> float:
        return min(self._limits.ping_s or self._limits.read_timeout_s, self._limits.read_timeout_s)

    def _tick(self) -> None:
        """Now and then: is the client there, and does its message come on?"""
        limits, now = self._limits, self._loop.time()
        silent = now - self._heard
        if self._over:
            return
        if self._part_began is not None and (
            silent > limits.read_timeout_s or now - self._part_began > limits.read_timeout_s * PATIENCE
        ):
            self.close(TOO_SLOW, "The message took too long to arrive.")
            return
        if limits.ping_s and self._reading and silent > limits.read_timeout_s + 2 * self._period_s:
            log.info("a WebSocket's client has not answered a ping for %g s", silent)
            self._transport.abort()
            return
        if limits.ping_s and self._writable.is_set():
            self._write(self._frames.send(Ping(payload=b"")))
        self._ticker = self._loop.call_later(self._period_s, self._tick)

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)
