"""Sockets and time around `protocol`: reading, writing, timeouts, disconnects, draining. Knows no routes.

Runs on uvloop or plain asyncio. One task per request being answered; a client that goes away cancels it:
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
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Protocol, cast

from imp.http.errors import ApiError, unavailable
from imp.http.message import Full, HttpRequest, Response, Stream, Switch, parse_query
from imp.http.protocol import Complete, Head, HttpConnection, HttpLimits
from imp.http.router import Handler
from imp.http.websocket import SlowReaderError, SocketLimits, WebSocket

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 64 * 1024  # pipelined bytes taken while a request is being answered
WRITE_BUFFER_BYTES = 64 * 1024  # per connection, before the stream has to wait for its reader
DRAINED_BODY_BYTES = 64 * 1024  # a refused request's body up to this is read, so that the connection lives on
LINGER_IDLE_S = 2.0  # a closing client may still be sending; closing at once would reset and lose our answer
LINGER_S = 30.0
BODY_PATIENCE = 10  # a body may take this many read timeouts in all
BACKLOG = 2048


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


class Server:
    """Listening sockets and the connections they brought. Owned by the running loop."""

    def __init__(self, application: Served, settings: ServerSettings | None = None) -> None:
        self.application = application
        self.settings = settings or ServerSettings()
        self.draining = False
        self.connections: set[Connection | WebSocket] = set()
        self._listeners: list[asyncio.Server] = []
        self._date = (0, "")

    async def listen(self, host: str = "127.0.0.1", port: int = 8080) -> None:
        """Bind every address of `host` ("" or "*": all) and serve. Port 0: any free one. OSError when taken."""
        await self.serve(bind(host, port))

    async def serve(self, sockets: Iterable[socket.socket]) -> None:
        """Serve listening, or at least bound, sockets; they are closed with the server."""
        loop = asyncio.get_running_loop()
        for sock in sockets:
            sock.setblocking(False)
            self._listeners.append(await loop.create_server(lambda: Connection(self), sock=sock, backlog=BACKLOG))

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of every listening socket."""
        return [sock.getsockname()[:2] for listener in self._listeners for sock in listener.sockets]

    @property
    def busy(self) -> int:
        """Requests being answered."""
        return sum(connection.is_busy for connection in self.connections)

    async def drain(self, timeout_s: float) -> bool:
        """Finish what runs, for at most `timeout_s`; True when nothing runs any more.

        From the first call on every connection closes after its next answer and idle ones close now. Listening goes
        on until all is done, so that the gate can answer 503 and the probes the truth. May be called again, with
        whatever makes the rest end in between; then `close`.
        """
        self.draining = True
        deadline = time.monotonic() + timeout_s
        for connection in list(self.connections):
            connection.close_if_idle()
        running = self._tasks()  # later requests are refused by the gate and do not count
        if running:
            await asyncio.wait(running, timeout=timeout_s)
        while any(connection.unsent_bytes for connection in self.connections) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return all(task.done() for task in running)

    async def close(self) -> None:
        """Stop listening and cut every connection; returns when all handlers have ended."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        tasks = self._tasks()
        for connection in list(self.connections):
            connection.abort()
        if tasks:
            await asyncio.wait(tasks)
        while self.connections:  # the loop reports each as lost in one of its next turns
            await asyncio.sleep(0)

    def date(self) -> str:
        """The Date header, formatted once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, formatdate(now, usegmt=True))
        return self._date[1]

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {connection.task for connection in self.connections if connection.task is not None}


class Connection(asyncio.Protocol):
    """One client. Mutable, owned by its loop."""

    def __init__(self, server: Server) -> None:
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
        self._writable = asyncio.Event()
        self._reading = True
        self._eof = False
        self._switched = False  # to a WebSocket
        self._lingering = False
        self._deadline: float | None = None
        self._last_chance: float | None = None  # of a phase whose deadline moves
        self._timer: asyncio.TimerHandle | None = None

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
            self._refuse(unavailable("too_many_connections", "The server has as many connections as it takes."))
            return
        self._expect_until(self._settings.read_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._expect_until(LINGER_IDLE_S, self._last_chance)
            return
        was_idle = self._http.idle
        self._http.receive(data)
        if self.task is not None:
            if self._http.buffered > READ_AHEAD_BYTES:
                self._pause_reading()
        elif was_idle:
            self._expect_until(self._settings.read_timeout_s)
        elif self._http.reading_body:
            self._expect_until(self._settings.read_timeout_s, self._last_chance)
        self._advance()

    def eof_received(self) -> bool:
        self._eof = True
        if self.task is None:
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
        if self.task is None and (self._lingering or self._http.idle):
            self._close()

    def abort(self) -> None:
        """Drop the connection; what is unsent stays unsent, which the client sees as a cut answer."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    def _advance(self) -> bool:
        """Take what has arrived as far as it goes; False when the next request is not complete."""
        while self.task is None and not self._lingering:
            event = self._http.next_event()
            if event is None:
                return False
            if isinstance(event, Head):
                self._begin(event)
            elif isinstance(event, Complete):
                self._complete(event)
            else:
                self._refuse(event.error)
        return True

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
        self.task = self._loop.create_task(self._answer(self._request, self._admitted))
        self.task.add_done_callback(self._on_answered)  # also of a task that was cancelled before it began

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, or took too long, and close."""
        request = self._request or HttpRequest("", "", peer_ip=self._peer_ip)
        self._http.refuse(error)
        self._send_and_close(self._server.application.refuse(request, error))

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
        if self._switched:
            return
        self._end_request()
        if task.cancelled():
            self.abort()
        else:
            self._next()

    async def _stream(self, request: HttpRequest, response: Stream) -> None:
        try:
            self._write(self._http.start(response.status, self._headers(response), self._is_last))
            if not self._http.is_head:
                while True:
                    try:
                        chunk = await anext(response.chunks)
                    except StopAsyncIteration:
                        break
                    self._write(self._http.data(chunk))
                    await self._drained()
        finally:
            await response.chunks.aclose()
        self._write(self._http.end())
        await self._drained()

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
        """Wait while the client reads slower than we write. Lets the loop turn in any case: a source that never waits
        would keep it from everything else, from noticing that the client has gone, too."""
        await asyncio.sleep(0)
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._settings.write_timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                raise SlowReaderError from error

    def _next(self) -> None:
        """After an answer: the next request, which may be here already."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._answered += 1
        if not self._http.reusable:
            self._linger()
            return
        self._http.next_cycle()
        self._expect_until(self._settings.read_timeout_s)
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if not self._advance() and (self._eof or self._server.draining):
            self._close()

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
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
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
            self._refuse(ApiError(408, "request_timeout", "The request took too long to arrive."))


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host`, all on one port. OSError when none can be bound."""
    found = socket.getaddrinfo(
        None if host in ("", "*") else host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets
