"""The server over real sockets of the loopback, on plain asyncio and on uvloop; h11 judges every answer."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from imp.http import sse
from imp.http.errors import bad_request
from imp.http.gate import Gate
from imp.http.message import Full, HttpRequest, Response, Stream, json_response
from imp.http.notify import Notifier, inherited_sockets
from imp.http.protocol import HttpLimits
from imp.http.router import Access, Route
from imp.http.server import ServerSettings, bind
from tests.http.wire import Peer, Site, read_answers, run, serving

try:
    import uvloop
except ImportError:
    LOOPS: dict[str, Callable[[], Any] | None] = {"asyncio": None}
else:
    LOOPS = {"asyncio": None, "uvloop": uvloop.new_event_loop}

pytestmark = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)

GET = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def post(path: str, body: bytes = b"", *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body


class World:
    """Handlers, and what happened to them."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.closed = asyncio.Event()
        self.release = asyncio.Event()
        self.produced = 0
        self.hang_up: Callable[[], None] = lambda: None
        self.requests: list[HttpRequest] = []

    async def hello(self, request: HttpRequest) -> Response:
        return json_response({"hello": request.query})

    async def echo(self, request: HttpRequest) -> Response:
        return Full(200, request.body)

    async def parse(self, request: HttpRequest) -> Response:
        return json_response(request.json())

    async def refuse(self, request: HttpRequest) -> Response:
        raise bad_request("x", '"x" is wrong.')

    async def wait(self, request: HttpRequest) -> Response:
        self.requests.append(request)
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json_response({"waited": True})

    async def stream(self, request: HttpRequest) -> Response:
        return Stream(200, dict(sse.HEADERS), self.numbers())

    async def numbers(self) -> AsyncGenerator[bytes]:
        self.started.set()
        try:
            yield sse.frame(1)
            await self.release.wait()
            yield sse.frame(2) + sse.frame(3)
            yield sse.DONE
        finally:
            self.closed.set()

    async def flood(self, request: HttpRequest) -> Response:
        return Stream(200, {}, self.chunks())

    async def chunks(self) -> AsyncGenerator[bytes]:
        try:
            while True:
                self.produced += 1
                yield b"x" * 65536
        finally:
            self.closed.set()

    async def endless(self, request: HttpRequest) -> Response:
        """Never waits; after its first chunk the client is gone. Bounded, so that a spinning writer fails the test."""

        async def chunks() -> AsyncGenerator[bytes]:
            try:
                for self.produced in range(100_000):
                    yield b"x"
                    if self.produced == 0:
                        self.hang_up()
            finally:
                self.closed.set()

        return Stream(200, {}, chunks())

    async def torn(self, request: HttpRequest) -> Response:
        async def chunks() -> AsyncGenerator[bytes]:
            yield b"half"
            raise RuntimeError("boom")

        return Stream(200, {}, chunks())

    def routes(self) -> list[Route]:
        return [
            Route(("GET",), "/hello", self.hello, Access.OPEN),
            Route(("POST",), "/echo", self.echo),
            Route(("POST",), "/parse", self.parse),
            Route(("POST",), "/v1/messages", self.parse),
            Route(("POST",), "/refuse", self.refuse),
            Route(("GET", "POST"), "/wait", self.wait, generates=True),
            Route(("GET", "POST"), "/stream", self.stream, generates=True),
            Route(("GET", "POST"), "/flood", self.flood),
            Route(("POST",), "/endless", self.endless),
            Route(("GET",), "/torn", self.torn),
        ]


def scene(
    loop: Callable[[], Any] | None,
    play: Callable[[Site, World], Any],
    settings: ServerSettings | None = None,
    gate: Callable[[], Gate] = Gate,
) -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes(), settings, gate()) as site:
            await play(site, world)

    run(main, loop)


async def within(event: asyncio.Event, seconds: float = 10) -> None:
    await asyncio.wait_for(event.wait(), seconds)


def test_keep_alive_pipelining_and_errors_on_one_connection(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        data = GET + post("/echo", b"abc") + post("/refuse") + post("/nowhere", b"xyz") + post("/hello")
        data += b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
        data += (
            b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nGET /hello?q=%20a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        methods = ["GET", "POST", "POST", "POST", "POST", "POST", "OPTIONS", "GET"]
        answers = await site.ask(data, *methods)
        assert [each.status for each in answers] == [200, 200, 400, 404, 405, 200, 204, 200]
        assert answers[1].body == b"abc" and answers[5].body == b"def"
        assert answers[2].json()["error"]["param"] == "x"
        assert answers[4].headers["allow"] == "GET, HEAD, OPTIONS"
        assert answers[7].json() == {"hello": {"q": " a"}}
        assert all("x-request-id" in each.headers and "date" in each.headers for each in answers)

    scene(loop, play)


def test_one_byte_at_a_time(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        for byte in post("/echo", b"abc") + LAST:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        answers = read_answers(await peer.rest(), ["POST", "GET"])
        assert [each.body for each in answers] == [b"abc", b'{"hello":{}}']
        peer.close()

    scene(loop, play)


def test_more_pipelined_requests_than_are_read_ahead(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        sending = asyncio.ensure_future(peer.send(GET * 2000 + LAST))
        answers = read_answers(await peer.rest(), ["GET"] * 2001)
        await sending
        assert len(answers) == 2001 and {each.status for each in answers} == {200}
        peer.close()

    scene(loop, play, ServerSettings(keep_alive_max=0))


def test_malformed_requests_get_the_envelope_and_a_closed_connection(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        for data, status in [
            (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n" + GET, 505),
            (b"\x16\x03\x01\x00", 400),
            (b"GET /hello?a=%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
            (
                b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                + GET,
                400,
            ),
            (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        ]:
            (answer,) = await site.ask(data)
            assert answer.status == status and answer.headers["connection"] == "close"
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
            assert answer.headers["x-request-id"]

    scene(loop, play)


def test_errors_on_messages_are_anthropic_at_every_layer(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        bodies = [
            (await site.ask(post("/v1/messages", b"[", "Content-Type: application/json", "Connection: close")))[0],
            (await site.ask(b"GET /v1/messages HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))[0],
            (await site.ask(b"POST /v1/messages/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "POST"))[0],
        ]
        for answer in bodies:
            assert answer.json()["type"] == "error" and answer.json()["request_id"] == answer.headers["request-id"]
        too_large = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"
        declared = b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n"
        for data in (too_large, declared):
            (answer,) = await site.ask(data)
            assert answer.json()["error"]["type"] == "request_too_large"
        (answer,) = await site.ask(b"HEAD /v1/messages HTTP/1.1\r\n\r\n", "HEAD")  # no Host
        assert answer.status == 400 and answer.body == b""

    scene(loop, play)


def test_head_and_http_1_0(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        world.release.set()
        head = b"HEAD %s HTTP/1.1\r\nHost: a\r\n\r\n"
        answers = await site.ask(head % b"/hello" + head % b"/stream" + LAST, "HEAD", "HEAD", "GET")
        assert [each.body for each in answers[:2]] == [b"", b""] and answers[2].status == 200
        assert answers[0].headers["content-length"] == str(len(answers[2].body))
        peer = await site.open()
        await peer.send(b"GET /stream HTTP/1.0\r\n\r\n")
        raw = await peer.rest()
        assert b"chunked" not in raw.lower() and raw.endswith(
            b"\r\n\r\n" + sse.frame(1) + sse.frame(2) + sse.frame(3) + sse.DONE
        )
        peer.close()

    scene(loop, play)


def test_100_continue_only_for_a_wanted_body(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        peer = await site.open()
        await peer.send(head % b"/echo")
        assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await peer.send(b"abc")
        assert read_answers(await peer.rest(), ["POST"])[0].body == b"abc"
        peer.close()
        (answer,) = await site.ask(head % b"/nowhere", "POST")
        assert answer.status == 404

    scene(loop, play)


def test_a_refused_body_is_drained_when_small_and_the_connection_closed_when_not(loop: Any) -> None:
    # G10-04: keep-alive works after a 4xx (body drained or connection closed)
    async def play(site: Site, world: World) -> None:
        answers = await site.ask(post("/nowhere", b"x" * 60_000) + LAST, "POST", "GET")
        assert [each.status for each in answers] == [404, 200]
        peer = await site.open()
        await peer.send(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n")
        answer = await peer.answer("POST")
        assert answer.status == 404 and answer.headers["connection"] == "close"
        for _ in range(80):  # goes on sending, unhindered and unread
            await peer.send(b"x" * 100_000)
        peer.writer.write_eof()
        assert await peer.rest() == b""
        peer.close()

    scene(loop, play)


def test_too_large_bodies_are_413_before_they_are_read(loop: Any) -> None:
    # G10-04: POST 2 GB chunked; Content-Length 10 GB
    async def play(site: Site, world: World) -> None:
        (declared,) = await site.ask(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n")
        assert declared.status == 413
        peer = await site.open()
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        await peer.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(32):
            await peer.send(chunk)
        answer = await peer.answer("POST")
        assert answer.status == 413 and answer.headers["connection"] == "close"
        peer.close()

    scene(loop, play, ServerSettings(limits=HttpLimits(body_bytes=1_000_000)))


def test_slow_requests_are_408_and_idle_connections_close(loop: Any) -> None:
    # G10-04: half a request, then silence; one byte now and then; others are not disturbed
    async def play(site: Site, world: World) -> None:
        idle, half, body, drip = [await site.open() for _ in range(4)]
        await half.send(b"GET /hello HTTP/1.1\r\nHo")
        await body.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")

        async def dripping() -> None:
            for byte in b"GET /hello HTTP/1.1\r\nX: " + b"a" * 100:
                drip.writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        task = asyncio.ensure_future(dripping())
        assert (await site.ask(LAST))[0].status == 200
        assert await idle.rest() == b""
        for peer in (half, body, drip):
            (answer,) = read_answers(await peer.rest(), ["GET"])
            assert answer.status == 408 and answer.json()["error"]["code"] == "request_timeout"
        task.cancel()
        for peer in (idle, half, body, drip):
            peer.close()

    scene(loop, play, ServerSettings(read_timeout_s=0.4))


def test_a_long_answer_is_not_a_slow_request(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(post("/wait"))
        await within(world.started)
        await asyncio.sleep(0.5)
        world.release.set()
        assert (await peer.answer("POST")).json() == {"waited": True}
        peer.close()

    scene(loop, play, ServerSettings(read_timeout_s=0.2))


def test_three_hundred_slow_connections_do_not_disturb_others(loop: Any) -> None:
    # G10-04
    async def play(site: Site, world: World) -> None:
        peers = [await site.open() for _ in range(300)]
        for peer in peers:
            await peer.send(b"GET /")
        began = time.perf_counter()
        assert (await site.ask(LAST))[0].status == 200
        assert time.perf_counter() - began < 5  # not one read timeout, on any machine
        for peer in peers:
            peer.abort()

    scene(loop, play)


def test_the_stream_head_and_each_event_are_sent_at_once(loop: Any) -> None:
    # G01-07: headers are flushed before the first event
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(post("/stream"))
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head and b"transfer-encoding: chunked" in head.lower()
        assert b"X-Accel-Buffering: no" in head
        first = b"%x\r\n%s\r\n" % (len(sse.frame(1)), sse.frame(1))
        assert await peer.reader.readexactly(len(first)) == first
        world.release.set()
        both = sse.frame(2) + sse.frame(3)
        rest = b"%x\r\n%s\r\n" % (len(both), both) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(sse.DONE), sse.DONE)
        assert await peer.reader.readexactly(len(rest)) == rest
        await peer.send(GET)
        assert (await peer.answer()).status == 200  # the connection lives on
        peer.close()

    scene(loop, play)


@pytest.mark.parametrize("leave", ["reset", "close", "half-close"])
@pytest.mark.parametrize("path", ["/wait", "/stream"])
def test_a_client_that_leaves_cancels_its_request(loop: Any, leave: str, path: str, caplog: Any) -> None:
    # G01-06: while generating, streamed or not; the place is free again and the log has no traceback
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(post(path))
        await within(world.started)
        assert site.gate.generating == 1
        if leave == "reset":
            peer.abort()
        elif leave == "close":
            peer.close()
        else:
            peer.writer.write_eof()
        await within(world.cancelled if path == "/wait" else world.closed, 1)
        while site.gate.generating or site.server.busy:
            await asyncio.sleep(0.01)
        assert all(request.disconnected.is_set() for request in world.requests)
        world.release.set()
        assert (await site.ask(LAST))[0].status == 200
        peer.close()

    scene(loop, play)
    assert not caplog.records


def test_a_request_and_its_fin_together_leave_nothing_behind(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        for _ in range(20):
            peer = await site.open()
            peer.writer.write(post("/wait"))
            peer.writer.write_eof()
            assert await peer.rest() == b""
            peer.close()
        while site.server.connections:
            await asyncio.sleep(0.01)
        assert site.gate.generating == 0

    scene(loop, play)


def test_get_is_answered_after_a_half_close(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        peer.writer.write(GET * 3)
        peer.writer.write_eof()
        assert len(read_answers(await peer.rest(), ["GET"] * 3)) == 3
        peer.close()

    scene(loop, play)


def test_a_slow_reader_bounds_the_memory_and_only_its_own_stream(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", site.port, limit=1024))
        await peer.send(post("/flood"))
        before = -1
        while world.produced != before:  # until the stream stands still
            before = world.produced
            await asyncio.sleep(0.2)
        (connection,) = site.server.connections
        assert connection.unsent_bytes < 1_000_000
        assert world.produced * 65536 < 64_000_000  # the rest is in the kernel's buffers
        assert (await site.ask(LAST))[0].status == 200
        await peer.reader.read(10_000_000)  # reads on: the stream goes on
        stood = world.produced
        for _ in range(200):
            await peer.reader.read(1_000_000)
        assert world.produced > stood
        peer.abort()
        await within(world.closed)

    scene(loop, play)


def test_a_reader_that_takes_nothing_is_dropped(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", site.port, limit=1024))
        await peer.send(post("/flood"))
        await within(world.closed)
        while site.server.connections:
            await asyncio.sleep(0.01)
        peer.abort()

    scene(loop, play, ServerSettings(write_timeout_s=0.3))


def test_a_failure_inside_a_stream_cuts_the_body_visibly(loop: Any, caplog: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(b"GET /torn HTTP/1.1\r\nHost: a\r\n\r\n")
        try:
            raw = await peer.rest()
        except ConnectionResetError:
            raw = b""
        assert not raw.endswith(b"0\r\n\r\n")
        peer.close()

    scene(loop, play)
    assert "boom" in caplog.text


def test_keep_alive_ends_at_its_limit(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        answers = await site.ask(GET * 10, *["GET"] * 3)
        assert [each.headers.get("connection") for each in answers] == [None, None, "close"]

    scene(loop, play, ServerSettings(keep_alive_max=3))


def test_too_many_connections_are_503(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        first = await site.open()
        await first.send(GET)
        assert (await first.answer()).status == 200
        second = await site.open()
        assert read_answers(await second.rest(), ["GET"])[0].status == 503
        first.close(), second.close()

    scene(loop, play, ServerSettings(max_connections=1))


def test_draining_finishes_what_runs_and_refuses_the_rest(loop: Any) -> None:
    # G10-08
    async def play(site: Site, world: World) -> None:
        idle, waiting, stream = [await site.open() for _ in range(3)]
        await idle.send(GET)
        await idle.answer()
        await waiting.send(post("/wait"))
        await within(world.started)
        world.started.clear()
        await stream.send(post("/stream"))
        await within(world.started)
        site.gate.draining = True
        draining = asyncio.ensure_future(site.server.drain(10))
        assert await idle.rest() == b""
        (late,) = await site.ask(post("/wait"), "POST")
        assert late.status == 503 and late.headers["connection"] == "close"
        assert late.json()["error"]["code"] == "draining"
        assert (await site.ask(GET))[0].status == 200  # an open route still tells the truth, and closes
        world.release.set()
        assert read_answers(await waiting.rest(), ["POST"])[0].headers["connection"] == "close"
        assert read_answers(await stream.rest(), ["POST"])[0].body.endswith(sse.DONE)
        assert await draining is True
        await site.server.close()
        with pytest.raises(OSError) as caught:
            await site.open()
        assert caught.value.errno == errno.ECONNREFUSED
        for peer in (idle, waiting, stream):
            peer.close()

    scene(loop, play)


def test_draining_is_bounded_and_closing_cuts_what_is_left(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(post("/wait"))
        await within(world.started)
        assert await site.server.drain(0.05) is False
        await site.server.close()
        assert world.cancelled.is_set() and not site.server.connections and site.gate.generating == 0
        peer.close()

    scene(loop, play)


def test_what_is_unsent_survives_draining(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        body = os.urandom(8_000_000)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", site.port, limit=1024))
        await peer.send(post("/echo", body))
        while not any(connection.unsent_bytes for connection in site.server.connections):
            await asyncio.sleep(0.01)
        draining = asyncio.ensure_future(site.server.drain(20))
        assert (await peer.answer("POST")).body == body
        assert await draining is True
        peer.close()

    scene(loop, play)


def test_every_address_of_a_host_shares_one_port(loop: Any) -> None:
    for host in ("127.0.0.1", "localhost", "*"):
        sockets = bind(host, 0)
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        with pytest.raises(OSError):
            bind(host, sockets[0].getsockname()[1])
        for sock in sockets:
            sock.close()


def test_ipv6(loop: Any) -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            try:
                await site.server.listen("::1", 0)
            except OSError:
                pytest.skip("no IPv6 loopback here")
            host, port = site.server.addresses[-1]
            peer = Peer(*await asyncio.open_connection(host, port))
            await peer.send(LAST)
            assert read_answers(await peer.rest(), ["GET"])[0].status == 200
            peer.close()

    run(main, loop)


def test_random_bytes_over_a_socket_leave_the_server_well_seed_11(loop: Any, caplog: Any) -> None:
    random_ = random.Random(11)

    async def play(site: Site, world: World) -> None:
        for _ in range(150):
            data = bytearray(post("/parse", json.dumps({"a": [1]}).encode(), "Content-Type: application/json") + LAST)
            for _ in range(random_.randint(1, 5)):
                data[random_.randrange(len(data))] = random_.randrange(256)
            peer = await site.open()
            await peer.send(bytes(data))
            if random_.random() < 0.5:
                peer.writer.write_eof()
                await peer.rest()
            peer.abort()
        assert (await site.ask(LAST))[0].status == 200
        while site.server.connections:
            await asyncio.sleep(0.01)

    scene(loop, play)
    assert not caplog.records


def test_the_service_manager_is_told(loop: Any, tmp_path: Any) -> None:
    async def main() -> None:
        path = str(tmp_path / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(5)
            notifier = Notifier(path, watchdog_s=0.02)
            notifier.ready()
            notifier.extend_timeout(1.5)
            assert manager.recv(100) == b"READY=1"
            assert manager.recv(100) == b"EXTEND_TIMEOUT_USEC=1500000"
            task = asyncio.ensure_future(notifier.watchdog())
            await asyncio.sleep(0.05)
            task.cancel()
            assert manager.recv(100) == manager.recv(100) == b"WATCHDOG=1"
        notifier.stopping()  # nobody listens: no error
        Notifier(None).ready()

    run(main, loop)


def test_inherited_sockets_are_taken(loop: Any) -> None:
    script = (
        "import os, socket; listening = socket.create_server(('127.0.0.1', 0)); os.dup2(listening.fileno(), 3)\n"
        "from imp.http.notify import inherited_sockets\n"
        "(taken,) = inherited_sockets(os.getpid(), 1)\n"
        "assert taken.fileno() == 3 and taken.getsockname() == listening.getsockname() and not os.get_inheritable(3)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_sockets_for_another_process_are_left_alone(loop: Any) -> None:
    assert inherited_sockets(os.getpid() + 1, 1) == []
    assert inherited_sockets(None, 1) == []
    assert inherited_sockets(os.getpid(), 0) == []


def test_a_source_that_never_waits_does_not_keep_the_loop_from_seeing_the_client_go(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        client = socket.create_connection(("127.0.0.1", site.port))

        def hang_up() -> None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
            client.close()

        world.hang_up = hang_up
        client.sendall(post("/endless"))
        await within(world.closed)
        assert world.produced < 1000

    scene(loop, play)


def test_a_source_that_never_waits_leaves_the_loop_to_others(loop: Any) -> None:
    async def play(site: Site, world: World) -> None:
        peer = await site.open()
        await peer.send(post("/endless"))
        reading = asyncio.create_task(peer.reader.read(-1))
        assert (await site.ask(LAST))[0].status == 200
        assert world.produced < 99_000
        reading.cancel()
        peer.abort()

    scene(loop, play)
