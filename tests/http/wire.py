"""A client for raw bytes, judged by h11 in its client role, and a server on a free port of the loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11

from imp.http.application import Application
from imp.http.gate import Gate
from imp.http.router import Route, Router
from imp.http.server import Server, ServerSettings


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]

    def json(self) -> Any:
        return json.loads(self.body)


def read_answers(data: bytes, methods: list[str], closed: bool = True) -> list[Answer]:
    """Parse responses to requests of these methods as h11's client does; any framing mistake raises."""
    answers, at = [], 0
    for method in methods:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        answer = None
        chunks: list[bytes] = []
        while True:
            event = client.next_event()
            if isinstance(event, h11.InformationalResponse):
                continue
            if isinstance(event, h11.Response):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                answer = Answer(event.status_code, headers, b"", chunks)
            elif isinstance(event, h11.Data):
                chunks.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            elif event is h11.NEED_DATA and (at < len(data) or closed):
                client.receive_data(data[at : at + 4096])  # at the end: b"", which says closed
                at += 4096
            else:
                raise AssertionError(f"the answer is not complete: {event}, {data!r}")
        assert answer is not None
        answer.body = b"".join(chunks)
        answers.append(answer)
        at = min(at, len(data)) - len(client.trailing_data[0])
    assert at >= len(data), f"bytes after the last answer: {data[at:]!r}"
    return answers


class Peer:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await asyncio.wait_for(self.reader.read(-1), 20)

    async def answer(self, method: str = "GET") -> Answer:
        """One answer that is framed by Content-Length or chunks; the connection stays."""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        answer = None
        chunks: list[bytes] = []
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(await asyncio.wait_for(self.reader.read(65536), 20))
            elif isinstance(event, h11.Response):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                answer = Answer(event.status_code, headers, b"", chunks)
            elif isinstance(event, h11.Data):
                chunks.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert answer is not None
                answer.body = b"".join(chunks)
                return answer
            elif isinstance(event, h11.ConnectionClosed):
                raise AssertionError("closed without an answer")

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


@dataclass
class Site:
    server: Server
    gate: Gate
    port: int

    async def open(self) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, data: bytes, *methods: str) -> list[Answer]:
        """Send these bytes on a connection of their own and read until the server closes."""
        peer = await self.open()
        await peer.send(data)
        answers = read_answers(await peer.rest(), list(methods or ["GET"]))
        peer.close()
        return answers


@asynccontextmanager
async def serving(
    routes: list[Route], settings: ServerSettings | None = None, gate: Gate | None = None, **kwargs: Any
) -> AsyncIterator[Site]:
    gate = gate or Gate()
    server = Server(Application(Router(routes), gate, **kwargs), settings or ServerSettings())
    await server.listen("127.0.0.1", 0)
    try:
        yield Site(server, gate, server.addresses[0][1])
    finally:
        await server.close()


def run(main: Callable[[], Coroutine[Any, Any, None]], loop_factory: Callable[[], Any] | None = None) -> None:
    """Run a test on a fresh loop, with an end to every hang."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 60))
