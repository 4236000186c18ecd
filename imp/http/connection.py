"""One client: reading, answering, writing, and all that may take too long or go away meanwhile. Knows no routes.

One task per request being answered, begun at once: an answer that never waits is sent before `data_received` returns.
A client that goes away cancels its task:
- a lost connection, always;
- the client's half-close (FIN), for every method but GET and HEAD: after it nobody tells a closed browser from a
  client that only finished sending, so whoever wants a long answer keeps its side open.
Reading goes on while a request is answered, to see the client go; it stops only when too much is pipelined.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, field
from typing import Protocol, cast

from imp.http.errors import ApiError, unavailable
from imp.http.message import Full, HttpRequest, Response, Stream, Switch, parse_query
from imp.http.protocol import Complete, Head, HttpConnection, HttpLimits, Refused
from imp.http.router import Handler
from imp.http.turns import Turns
from imp.http.websocket import SlowReaderError, SocketLimits, WebSocket

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 64 * 1024  # pipelined bytes taken while a request is being answered
WRITE_BUFFER_BYTES = 64 * 1024  # per connection, before the stream has to wait for its reader
DRAINED_BODY_BYTES = 64 * 1024  # a refused request's body up to this is read, so that the connection lives on
CHUNKS_PER_TURN = 16
LINGER_IDLE_S = 2.0  # a closing client may still be sending; closing at once would reset and lose our answer
LINGER_S = 30.0
BODY_PATIENCE = 10  # a body may take this many read timeouts in all
ANSWERS_PER_TURN = 8  # of pipelined requests that are answered at once, before others have their turn


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How connections are kept. Times in seconds."""

    read_timeout_s: float = 60.0  # a head in all, a body between two pieces, an idle connection
    write_timeout_s: float = 600.0  # a reader that takes nothing
    keep_alive_max: int = 100  # requests per connection; 0: no limit
    max_connections: int = 0  # 0: no limit
    limits: HttpLimits = field(default_factory=HttpLimits)


class Served(Protocol):
    """What a server serves (application.py)."""

    def admit(self, request: HttpRequest) -> Full | Handler: ...
    def refuse(self, request: HttpRequest, error: ApiError) -> Full: ...


class House(Protocol):
    """The server a connection belongs to (server.py)."""

    application: Served
    settings: ServerSettings
    draining: bool
    connections: set[Connection | WebSocket]
    turns: Turns

    def date(self) -> str: ...


class Connection(asyncio.Protocol):
    """One client. Mutable, owned by its loop."""

    def __init__(self, server: House) -> None:
        self._server = server
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self._http = HttpConnection(server.settings.limits)
        self._transport: asyncio.Transport | None = None
        self._peer_ip = ""
        self._request: HttpRequest | None = None  # from its head to the end of its answer
        self._admitted: Full | Handler | None = None
        self.task: asyncio.Task[None] | None = None  # answering
        self._answered = 0
        self._between = False  # nothing has come since the last answer
        self._postponed = False  # what has come is taken up in one of the loop's next turns
        self._writable = asyncio.Event()
        self._reading = True
        self._eof = False
        self._switched = False  # to a WebSocket
        self._lingering = False
        self._deadline: float | None = None
        self._last_chance: float | None = None  # of a phase whose deadline moves
        self._timer: asyncio.TimerHandle | None = None
        self._streamed_at = 0.0  # the loop's time of the last chunk
        self._pinger: asyncio.TimerHandle | None = None

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport = transport
        self._writable.set()
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self._peer_ip = peer[0] if isinstance(peer, tuple) else ""
        connections = self._server.connections
        connections.add(self)
        if self._settings.max_connections and len(connections) > self._settings.max_connections:
            full = unavailable("too_many_connections", "The server has as many connections as it takes.")
            self._refuse(self._http.refuse(full))
            return
        self._expect_until(self._settings.read_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._expect_until(LINGER_IDLE_S, self._last_chance)
            return
        http = self._http
        was_idle, self._between = http.idle, False
        http.receive(data)
        if self.task is not None or self._postponed:
            if http.buffered > READ_AHEAD_BYTES:
                self._pause_reading()
            return
        if http.reading_body:
            self._expect_until(self._settings.read_timeout_s, self._last_chance)
        if not http.reading_body and not self._server.turns.has_time():
            self._postponed = True
            self._server.turns.later(self._go_on)
            if was_idle:
                self._expect_until(self._settings.read_timeout_s)
            return
        self._advance()
        if was_idle and http.reading_head:
            self._expect_until(self._settings.read_timeout_s)

    def eof_received(self) -> bool:
        self._eof = True
        if self.task is None and not self._postponed:
            return False  # the transport sends what is unsent and closes itself
        if self._request is not None and self._request.method not in ("GET", "HEAD"):
            self._client_left()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
        self._writable.set()
        self._client_left()
        if self.task is None:
            self._end_request()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- the server's calls

    @property
    def is_busy(self) -> bool:
        return self.task is not None

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close_if_idle(self) -> None:
        """Close between two requests, or when there is nothing to do but linger. What is unsent is still sent."""
        if self.task is None and not self._postponed and (self._lingering or self._http.idle):
            self._close()

    def abort(self) -> None:
        """Drop the connection; what is unsent stays unsent, which the client sees as a cut answer."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    def _advance(self) -> None:
        """Take what has arrived as far as it goes, answering on the way."""
        turn = 0
        while self.task is None and not self._lingering:
            if turn == ANSWERS_PER_TURN:
                self._postponed = True
                self._loop.call_soon(self._go_on)
                return
            event = self._http.next_event()
            if event is None:
                if self._between and (self._eof or self._server.draining):
                    self._close()
                return
            if isinstance(event, Head):
                self._begin(event)
            elif isinstance(event, Complete):
                self._complete(event)
                turn += 1
            else:
                self._refuse(event)

    def _go_on(self) -> None:
        self._postponed = False
        if self._transport is not None and not self._transport.is_closing():
            self._advance()
            if self.task is None and not self._postponed:
                self._resume_reading()
                if self._eof:
                    self._close()  # nothing more comes

    def _begin(self, head: Head) -> None:
        path, _, query = head.target.partition("?")
        request = HttpRequest(
            head.method,
            path,
            headers=head.headers,
            http_version=head.http_version,
            peer_ip=self._peer_ip,
            arrived=time.monotonic(),
        )
        self._request = request
        try:
            if query:
                request.query = parse_query(query.partition("#")[0])
        except ApiError as error:
            self._admitted = self._server.application.refuse(request, error)
        else:
            self._admitted = self._server.application.admit(request)
        if isinstance(self._admitted, Full):
            small = head.body_length is not None and head.body_length <= DRAINED_BODY_BYTES
            if not small or (head.expects_continue and head.body_length):
                self._send_and_close(self._admitted)
                return
            self._http.discard_body()
        elif head.body_length != 0:
            self._write(self._http.want_body())
        if head.body_length != 0:
            patience_s = self._settings.read_timeout_s * BODY_PATIENCE
            self._expect_until(self._settings.read_timeout_s, self._loop.time() + patience_s)

    def _complete(self, event: Complete) -> None:
        assert self._request is not None and self._admitted is not None
        self._expect_nothing()
        self._request.body = event.body
        # begun at once: what never waits needs no turn of the loop
        task = asyncio.Task(self._answer(self._request, self._admitted), loop=self._loop, eager_start=True)
        if task.done():
            self._settle(task)
        else:
            self.task = task
            task.add_done_callback(self._on_answered)

    def _refuse(self, refused: Refused) -> None:
        """Answer what is no request, or took too long, and close."""
        path = refused.target.partition("?")[0]
        request = self._request or HttpRequest(refused.method, path, peer_ip=self._peer_ip)
        self._send_and_close(self._server.application.refuse(request, refused.error))

    def _send_and_close(self, response: Full) -> None:
        self._write(self._full(response, close=True))
        self._end_request()
        self._linger()

    # -- answers

    async def _answer(self, request: HttpRequest, admitted: Full | Handler) -> None:
        try:
            response = admitted if isinstance(admitted, Full) else await admitted(request)
            if isinstance(response, Full):
                self._write(self._full(response, self._is_last))
                await self._drained()
            elif isinstance(response, Stream):
                await self._stream(request, response)
            else:
                self._switch(request, response)
        except SlowReaderError:
            log.info("request %s: its reader took nothing for %g s", request.id, self._settings.write_timeout_s)
            self.abort()
        except Exception:
            log.exception("request %s failed while it was answered", request.id)
            self.abort()

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        self.task = None
        self._settle(task)
        self._advance()

    def _settle(self, task: asyncio.Task[None]) -> None:
        """After an answer: be ready for the next request, or for the end."""
        if self._switched:
            return
        self._end_request()
        if task.cancelled():
            self.abort()
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._answered += 1
        if not self._http.reusable:
            self._linger()
            return
        self._http.next_cycle()
        self._between = True
        self._expect_until(self._settings.read_timeout_s)
        self._resume_reading()

    async def _stream(self, request: HttpRequest, response: Stream) -> None:
        try:
            self._write(self._http.start(response.status, self._headers(response), self._is_last))
            if not self._http.is_head:
                self._begin_pings(response)
                await self._copy(response)
        finally:
            if self._pinger is not None:
                self._pinger.cancel()
            await response.chunks.aclose()
        self._write(self._http.end())
        await self._drained()

    async def _copy(self, response: Stream) -> None:
        count = 0
        while True:
            try:
                chunk = await anext(response.chunks)
            except StopAsyncIteration:
                return
            self._write(self._http.data(chunk))
            self._streamed_at = self._loop.time()
            await self._drained()
            count += 1
            if count % CHUNKS_PER_TURN == 0:  # a source that never waits would keep the loop from seeing the client go
                await asyncio.sleep(0)

    def _begin_pings(self, response: Stream) -> None:
        self._streamed_at = self._loop.time()
        if response.ping_s > 0:
            self._pinger = self._loop.call_later(response.ping_s, self._ping, response)

    def _ping(self, response: Stream) -> None:
        """One timer per stream, which looks at what was sent since."""
        now, due = self._loop.time(), self._streamed_at + response.ping_s
        if now >= due:
            if self._writable.is_set():  # else the client has enough to read
                self._write(self._http.data(response.ping))
            self._streamed_at, due = now, now + response.ping_s
        self._pinger = self._loop.call_at(due, self._ping, response)

    def _switch(self, request: HttpRequest, response: Switch) -> None:
        """Leave the client to a WebSocket, which takes this connection's place."""
        assert self._transport is not None
        if self._eof:
            self.abort()
            return
        own, application, connections = self._settings, self._server.application, self._server.connections
        start, rest = self._http.switch(self._headers(response))
        self._write(start)

        def on_end(socket: WebSocket) -> None:
            connections.discard(socket)
            request.end()

        limits = SocketLimits(own.limits.body_bytes, own.read_timeout_s, own.write_timeout_s, response.ping_s)
        socket = WebSocket(self._transport, limits, on_end)
        self._switched, self._request = True, None
        connections.discard(self)
        connections.add(socket)
        socket.begin(lambda socket: response.session(socket, application.admit), rest)
        if self._server.draining:
            socket.close_if_idle()

    async def _drained(self) -> None:
        """Wait while the client reads slower than we write."""
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._settings.write_timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                raise SlowReaderError from error

    def _end_request(self) -> None:
        request, self._request, self._admitted = self._request, None, None
        if request is not None:
            request.end()

    def _client_left(self) -> None:
        if self._request is not None:
            self._request.disconnected.set()
        if self.task is not None:
            self.task.cancel()
            if self._transport is not None:
                self._transport.abort()

    @property
    def _is_last(self) -> bool:
        limit = self._settings.keep_alive_max
        return self._server.draining or bool(limit and self._answered + 1 >= limit)

    def _full(self, response: Full, close: bool) -> bytes:
        headers = self._headers(response)
        if response.status != 204:
            headers.append(("Content-Length", str(len(response.body))))
        start = self._http.start(response.status, headers, close)
        return start + self._http.data(response.body) + self._http.end()

    def _headers(self, response: Response) -> list[tuple[str, str]]:
        return [("Date", self._server.date()), ("Server", "imp"), *response.headers.items()]

    # -- the transport

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _linger(self) -> None:
        """Say that we are done, and read what the client is still sending until it is done too."""
        assert self._transport is not None
        if self._eof or not self._transport.can_write_eof():
            self._close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has gone already; the loop is about to tell
            self._close()
            return
        self._lingering = True
        self._resume_reading()
        self._expect_until(LINGER_IDLE_S, self._loop.time() + LINGER_S)

    # -- time

    def _expect_until(self, seconds: float, last_chance: float | None = None) -> None:
        """Something has to arrive within `seconds`, and never later than `last_chance` (loop time)."""
        self._last_chance = last_chance
        deadline = self._loop.time() + seconds
        self._deadline = deadline if last_chance is None else min(deadline, last_chance)
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _expect_nothing(self) -> None:
        self._deadline = None

    def _on_timer(self) -> None:
        """One timer per connection, which looks at the deadline of the moment."""
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
            return
        self._deadline = None
        assert self._transport is not None
        if self._lingering:
            if self._transport.get_write_buffer_size() and self._last_chance is not None:
                # our answer is still on its way to a slow reader
                self._last_chance = None
                self._expect_until(self._settings.write_timeout_s)
            else:
                self._transport.abort()
        elif self._http.idle:
            self._close()
        else:
            late = ApiError(408, "request_timeout", "The request took too long to arrive.")
            self._refuse(self._http.refuse(late))
