"""Listening sockets, the connections they bring, and their end. Runs on uvloop or plain asyncio."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from email.utils import formatdate

from imp.http.connection import Connection, Served, ServerSettings
from imp.http.turns import Turns
from imp.http.websocket import WebSocket

__all__ = ["Server", "ServerSettings", "bind"]

BACKLOG = 2048


class Server:
    """Listening sockets and the connections they brought. Owned by the running loop."""

    def __init__(self, application: Served, settings: ServerSettings | None = None) -> None:
        self.application = application
        self.settings = settings or ServerSettings()
        self.draining = False
        self.connections: set[Connection | WebSocket] = set()
        self.turns = Turns()  # of requests that begin
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
