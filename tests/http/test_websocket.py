"""WebSockets over a real socket, judged by the `websockets` client; broken frames are made by hand."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
import websockets
from websockets.asyncio.client import ClientConnection, connect

from imp.http import websocket
from imp.http.gate import Gate, GateSettings
from imp.http.message import HttpRequest, Response, Switch
from imp.http.protocol import HttpLimits
from imp.http.router import Access, Route
from imp.http.server import ServerSettings
from tests.http.wire import Peer, Site, run, serving

OPENING = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455 1.3 gives it for this key


def frame(opcode: int, payload: bytes, fin: bool = True, mask: bytes | None = b"\1\2\3\4") -> bytes:
    """One frame as a client must send it (RFC 6455 5.2)."""
    size = len(payload)
    bit = 0x80 if mask else 0
    short = bytes([bit | size]) if size < 126 else bytes([bit | 126]) + struct.pack("!H", size)
    if size > 65535:
        short = bytes([bit | 127]) + struct.pack("!Q", size)
    masked = bytes(b ^ mask[i % 4] for i, b in enumerate(payload)) if mask else payload
    return bytes([(0x80 if fin else 0) | opcode]) + short + (mask or b"") + masked


def close_code(data: bytes) -> int:
    """The code of the close frame that ends what a server sent."""
    at = data.rindex(b"\x88")
    return struct.unpack("!H", data[at + 2 : at + 4])[0]


class Echo:
    """Says every message again; `many N` sends N messages, `fail` raises, `hold` waits."""

    def __init__(self, ping_s: float) -> None:
        self.ping_s = ping_s
        self.sessions = self.ended = self.endings = 0
        self.held = asyncio.Event()
        self.requests: list[HttpRequest] = []

    async def handler(self, request: HttpRequest) -> Response:
        headers = websocket.accept(request)
        self.requests.append(request)
        request.at_end(self.at_end)
        return Switch(headers, self.session, self.ping_s)

    def at_end(self) -> None:
        self.endings += 1

    async def session(self, socket: websocket.WebSocket, admit: Any) -> None:
        self.sessions += 1
        try:
            while (message := await socket.receive()) != "bye":
                if message == "fail":
                    raise RuntimeError("a secret")
                if message == "hold":
                    await self.held.wait()
                if message.startswith("many "):
                    for i in range(int(message[5:])):
                        await socket.send(f"{i}:" + "x" * 10_000)
                else:
                    await socket.send(message)
        finally:
            self.ended += 1


@asynccontextmanager
async def echoing(gate: Gate | None = None, ping_s: float = 0, **settings: Any) -> AsyncIterator[tuple[Site, Echo]]:
    echo = Echo(ping_s)
    route = Route(("GET",), "/ws", echo.handler, Access.KEY)
    async with serving([route], ServerSettings(**settings), gate) as site:
        yield site, echo
        await site.server.close()
        assert echo.ended == echo.sessions and not site.server.connections
        assert echo.endings == len(echo.requests)


def opened(site: Site, **options: Any) -> connect:
    return connect(f"ws://127.0.0.1:{site.port}/ws", proxy=None, **options)


async def upgraded(site: Site, opening: bytes = OPENING) -> Peer:
    """A raw connection after the handshake."""
    peer = await site.open()
    await peer.send(opening)
    head = await asyncio.wait_for(peer.reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    return peer


@LOOPS
def test_messages_come_back_whole_in_order_and_however_they_are_cut(loop):
    async def main():
        async with echoing() as (site, _), opened(site) as client:
            for text in ("", "hello", "\U0001f98a" * 3000, "x" * 300_000):
                await client.send(text)
                assert await client.recv() == text
            await client.send(iter(["frag", "", "men\u00e9", "ted"]))
            assert await client.recv() == "fragmen\u00e9ted"
            for i in range(40):  # more than are queued
                await client.send(str(i))
            assert [await client.recv() for _ in range(40)] == [str(i) for i in range(40)]
            await client.send("bye")
            with pytest.raises(websockets.ConnectionClosedOK):
                await client.recv()
            assert (client.close_code, site.server.busy) == (1000, 0)

    run(main, loop)


def test_the_handshake_is_that_of_the_rfc_and_bytes_after_the_head_are_frames():
    async def main():
        async with echoing() as (site, _):
            peer = await site.open()
            await peer.send(OPENING + frame(1, b"early"))
            head = await peer.reader.readuntil(b"\r\n\r\n")
            assert b"Sec-WebSocket-Accept: " + ACCEPT in head
            assert await peer.reader.readexactly(7) == b"\x81\x05early"
            for byte in frame(1, b"byte by byte"):
                await peer.send(bytes([byte]))
            assert await peer.reader.readexactly(14) == b"\x81\x0cbyte by byte"
            await peer.send(frame(9, b"ping"))  # answered between two parts of a message as well
            pong = b""
            while b"\x8a\x04ping" not in pong:
                pong += await asyncio.wait_for(peer.reader.read(100), 10)
            await peer.send(frame(8, struct.pack("!H", 1000) + b"done"))
            assert close_code(await peer.rest()) == 1000

    run(main)


def changed(old: bytes, new: bytes) -> bytes:
    assert old in OPENING
    return OPENING.replace(old, new)


@pytest.mark.parametrize(
    "opening, status",
    [
        (changed(b"Upgrade: websocket\r\n", b""), 426),
        (changed(b"Connection: keep-alive, Upgrade\r\n", b""), 426),
        (changed(b"Version: 13", b"Version: 8"), 426),
        (changed(b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ="), 400),
        (changed(b"dGhlIHNhbXBsZSBub25jZQ==", b"not base64 at all!"), 400),
        (changed(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""), 400),
        (changed(b"GET", b"HEAD"), 426),
        (changed(b"Host: x\r\n", b"Host: x\r\nOrigin: http://evil\r\n"), 403),
    ],
)
def test_what_is_no_opening_is_answered_in_http_and_the_connection_goes_on(opening, status):
    async def main():
        gate = Gate(GateSettings(cors_origins=("http://friend",)))
        async with echoing(gate) as (site, _):
            method = opening.split()[0].decode()
            good = OPENING.replace(b"GET /ws", b"GET /nowhere").replace(b"x\r\n", b"x\r\nConnection: close\r\n", 1)
            first, second = await site.ask(opening + good, method, "GET")
            assert (first.status, second.status) == (status, 404)
            if b"Version: 8" in opening:
                assert first.headers["sec-websocket-version"] == "13"

    run(main)


@pytest.mark.parametrize("origin", [b"http://friend", b"http://X"])
def test_allowed_origins_and_the_servers_own_may_open(origin):
    async def main():
        async with echoing(Gate(GateSettings(cors_origins=("http://friend",)))) as (site, _):
            await upgraded(site, changed(b"Host: x\r\n", b"Host: x\r\nOrigin: " + origin + b"\r\n"))

    run(main)


def test_a_key_is_needed_where_keys_are():
    async def main():
        async with echoing(Gate(GateSettings(api_keys=("good",)))) as (site, _):
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with opened(site):
                    pass
            assert refused.value.response.status_code == 401
            async with opened(site, additional_headers={"Authorization": "Bearer good"}) as client:
                await client.send("hello")
                assert await client.recv() == "hello"

    run(main)


@pytest.mark.parametrize(
    "sent, code",
    [
        (frame(1, b"unmasked", mask=None), 1002),
        (frame(3, b"reserved opcode"), 1002),
        (bytes([0xC1]) + frame(1, b"reserved bit")[1:], 1002),
        (frame(0, b"nothing to continue"), 1002),
        (frame(1, b"a", fin=False) + frame(1, b"b"), 1002),
        (frame(9, b"x", fin=False), 1002),
        (bytes([0x89, 0xFE, 0, 200, 0, 0, 0, 0]), 1002),  # a ping of 200 bytes
        (frame(1, b"\xff\xfe"), 1007),
        (frame(1, b"\xc3", fin=False) + frame(0, b"x"), 1007),
        (frame(8, b"\x03"), 1002),
        (frame(8, struct.pack("!H", 1005)), 1002),
        (frame(8, struct.pack("!H", 3000) + b"\xff"), 1007),
        (frame(8, b""), None),
        (frame(2, b"bytes"), 1003),
        (frame(1, b"x" * 5000), 1009),
        (b"".join([frame(1, b"x" * 900, fin=False)] + [frame(0, b"x" * 900, fin=False)] * 4), 1009),
        (bytes([0x81, 0xFF]) + struct.pack("!Q", 1 << 62) + bytes(4) + b"x" * 5000, 1009),
        (frame(1, b"fail"), 1011),
    ],
)
def test_broken_frames_close_with_the_code_of_the_rfc(sent, code):
    async def main():
        async with echoing(limits=HttpLimits(body_bytes=4096)) as (site, _):
            peer = await upgraded(site)
            await peer.send(frame(1, b"before"))
            await peer.reader.readuntil(b"before")
            await peer.send(sent if code == 1009 else sent + frame(1, b"after"))
            if code in (1003, 1009, 1011):  # the server began: it waits for the client's close
                data = b""
                while b"\x88" not in data:
                    data += await asyncio.wait_for(peer.reader.read(1000), 10)
                await peer.send(frame(8, struct.pack("!H", code)))
                with suppress(OSError):  # the server may have closed already
                    peer.writer.write_eof()
                data += await peer.rest()
            else:
                peer.writer.write_eof()
                data = await peer.rest()
            assert b"after" not in data and b"secret" not in data
            if code is None:
                assert data.endswith(b"\x88\x00")
            else:
                assert close_code(data) == code

    run(main)


@LOOPS
def test_random_frames_never_hang_or_kill_the_server(loop):
    async def main():
        rng = random.Random(20261130)
        async with echoing(limits=HttpLimits(body_bytes=4096)) as (site, _):
            for _ in range(150):
                peer = await upgraded(site)
                junk = b"".join(_random_piece(rng) for _ in range(rng.randrange(1, 6)))
                with suppress(ConnectionError):  # what follows a close frame may find the connection reset, or gone
                    for at in range(0, len(junk), step := rng.choice([1, 7, 1000])):
                        peer.writer.write(junk[at : at + step])
                    peer.writer.write_eof()
                    await peer.rest()  # times out when the server keeps the connection
                peer.close()
            async with opened(site) as client:
                await client.send("still here")
                assert await client.recv() == "still here"

    run(main, loop)


def _random_piece(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice([0, 1, 5, 125, 126, 300, 5000]))
    if rng.random() < 0.3:
        return payload
    return frame(rng.randrange(16), payload, rng.random() < 0.7, rng.choice([None, rng.randbytes(4), rng.randbytes(4)]))


def test_the_server_pings_and_drops_who_never_answers():
    async def main():
        async with echoing(ping_s=0.1, read_timeout_s=1) as (site, _), opened(site) as client:  # answers pings
            peer = await upgraded(site)  # this one does not
            data = await peer.rest()
            assert data.count(b"\x89\x00") >= 2
            await client.send("alive")
            assert await client.recv() == "alive"

    run(main)


def test_a_message_must_come_on():
    async def main():
        async with echoing(read_timeout_s=0.1) as (site, _):
            peer = await upgraded(site)
            await peer.send(frame(1, b"never", fin=False))
            data = b""
            while b"\x88" not in data:
                data += await asyncio.wait_for(peer.reader.read(100), 10)
            assert close_code(data) == 1008

    run(main)


@LOOPS
def test_a_slow_reader_stops_its_own_session_and_is_dropped_at_last(loop):
    async def main():
        async with echoing(write_timeout_s=0.3) as (site, echo):
            slow = await upgraded(site)
            slow.writer.transport.pause_reading()
            await slow.send(frame(1, b"many 5000"))
            async with opened(site) as client:
                while echo.ended == 0:
                    await client.send("quick")
                    assert await client.recv() == "quick"
                    await asyncio.sleep(0.02)
                while len(site.server.connections) > 1:
                    await asyncio.sleep(0.005)
            slow.abort()

    run(main, loop)


@LOOPS
def test_a_client_that_leaves_ends_its_session(loop):
    async def main():
        async with echoing() as (site, echo):
            for leave in (Peer.close, Peer.abort):
                peer = await upgraded(site)
                await peer.send(frame(1, b"hold"))
                before = echo.ended
                await asyncio.sleep(0.02)
                leave(peer)
                while echo.ended == before:
                    await asyncio.sleep(0.005)
            client: ClientConnection
            async with opened(site) as client:
                await client.send("hold")
            while site.server.connections:
                await asyncio.sleep(0.005)
            assert echo.ended == 3

    run(main, loop)


@LOOPS
def test_draining_closes_idle_sockets_at_once_and_busy_ones_after_their_turn(loop):
    async def main():
        async with echoing() as (site, echo), opened(site) as idle, opened(site) as busy:
            await busy.send("hold")
            await busy.send("too late")
            while site.server.busy != 1:
                await asyncio.sleep(0.005)
            draining = asyncio.create_task(site.server.drain(10))
            with pytest.raises(websockets.ConnectionClosedOK):
                await idle.recv()
            assert idle.close_code == 1001 and not draining.done()
            echo.held.set()
            assert await busy.recv() == "hold"
            with pytest.raises(websockets.ConnectionClosedOK):
                await busy.recv()
            assert busy.close_code == 1001 and await draining

    run(main, loop)
