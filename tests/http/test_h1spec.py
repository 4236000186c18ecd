"""HTTP/1.1 as RFC 9110 and 9112 have it, and what a proxy in front might read differently: over real sockets, fed whole,
a byte at a time and at random splits. h11's client judges how answers are framed; statuses are worked out by hand.

Every refused request is followed by another one, which must never be run.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imp.http.message import Full, HttpRequest, Response, json_response
from imp.http.protocol import HttpLimits
from imp.http.router import Access, Route
from imp.http.server import ServerSettings
from tests.http.wire import Peer, Site, read_answers, run, serving

try:
    import uvloop
except ImportError:
    LOOP: Callable[[], Any] | None = None
else:
    LOOP = uvloop.new_event_loop

NEXT = b"GET /smuggled HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class World:
    """Handlers that remember what reached them."""

    def __init__(self) -> None:
        self.smuggled = 0
        self.bodies: list[bytes] = []

    async def hello(self, request: HttpRequest) -> Response:
        self.bodies.append(request.body)
        return json_response({"hello": True})

    async def echo(self, request: HttpRequest) -> Response:
        self.bodies.append(request.body)
        return Full(200, request.body)

    async def smuggle(self, request: HttpRequest) -> Response:
        self.smuggled += 1
        return Full(200)

    def routes(self) -> list[Route]:
        return [
            Route(("GET",), "/hello", self.hello, Access.OPEN),
            Route(("POST", "PUT", "DELETE"), "/echo", self.echo),
            Route(("GET",), "/smuggled", self.smuggle),
        ]


def get(*fields: str, target: str = "/hello", version: str = "HTTP/1.1", host: str = "Host: a") -> bytes:
    return "\r\n".join([f"GET {target} {version}", *([host] if host else []), *fields, "", ""]).encode("latin-1")


def post(*fields: str, body: bytes = b"", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"POST /echo {version}", "Host: a", *fields, "", ""]).encode("latin-1") + body


def chunked(body: bytes, *fields: str) -> bytes:
    return post("Transfer-Encoding: chunked", *fields, body=body)


ABC = b"3\r\nabc\r\n0\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    # two ways to tell where the body ends
    "length and chunked": (post("Content-Length: 3", "Transfer-Encoding: chunked", body=ABC), 400),
    "chunked and length": (post("Transfer-Encoding: chunked", "Content-Length: 3", body=ABC), 400),
    "length 0 and chunked": (post("Content-Length: 0", "Transfer-Encoding: chunked", body=ABC), 400),
    "two different lengths": (post("Content-Length: 3", "Content-Length: 4", body=b"abcd"), 400),
    "two equal lengths": (post("Content-Length: 3", "Content-Length: 3", body=b"abc"), 400),
    "a list of lengths": (post("Content-Length: 3, 3", body=b"abc"), 400),
    "two codings": (post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=ABC), 501),
    "chunked and identity": (post("Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=ABC), 501),
    # lengths that are none
    "length with a plus": (post("Content-Length: +3", body=b"abc"), 400),
    "negative length": (post("Content-Length: -3", body=b"abc"), 400),
    "hexadecimal length": (post("Content-Length: 0x3", body=b"abc"), 400),
    "length in exponents": (post("Content-Length: 3e0", body=b"abc"), 400),
    "fractional length": (post("Content-Length: 3.0", body=b"abc"), 400),
    "length with a space inside": (post("Content-Length: 1 3", body=b"abc"), 400),
    "empty length": (post("Content-Length: ", body=b"abc"), 400),
    "length with a semicolon": (post("Content-Length: 3;", body=b"abc"), 400),
    "length with a vertical tab": (post("Content-Length: \x0b3", body=b"abc"), 400),
    "length with an underscore": (post("Content-Length: 1_0", body=b"abc"), 400),
    "length with a superscript": (post("Content-Length: \xb3", body=b"abc"), 400),
    "length past any integer": (post("Content-Length: " + "9" * 40), 400),
    "length past 64 bits": (post("Content-Length: 18446744073709551617"), 413),
    "length past the limit": (post("Content-Length: 5000000000"), 413),
    # codings that are not chunked
    "gzip": (post("Transfer-Encoding: gzip", body=ABC), 501),
    "gzip, chunked": (post("Transfer-Encoding: gzip, chunked", body=ABC), 501),
    "chunked, gzip": (post("Transfer-Encoding: chunked, gzip", body=ABC), 501),
    "chunked twice": (post("Transfer-Encoding: chunked, chunked", body=ABC), 501),
    "xchunked": (post("Transfer-Encoding: xchunked", body=ABC), 501),
    "quoted chunked": (post('Transfer-Encoding: "chunked"', body=ABC), 501),
    "chunked with a parameter": (post("Transfer-Encoding: chunked;q=1", body=ABC), 501),
    "empty coding": (post("Transfer-Encoding: ", body=ABC), 501),
    "coding with a vertical tab": (post("Transfer-Encoding: \x0bchunked", body=ABC), 400),
    "coding with a nul": (post("Transfer-Encoding: chunked\0", body=ABC), 400),
    "chunked in HTTP/1.0": (post("Transfer-Encoding: chunked", body=ABC, version="HTTP/1.0"), 400),
    "no length in HTTP/1.0": (post(version="HTTP/1.0"), 411),
    # fields that hide others
    "space before the colon": (post("Transfer-Encoding : chunked", body=ABC), 400),
    "tab before the colon": (post("Content-Length\t: 3", body=b"abc"), 400),
    "nul before a name": (post("\0Transfer-Encoding: chunked", body=ABC), 400),
    "folded coding": (post("Transfer-Encoding:", " chunked", body=ABC), 400),
    "folded by a tab": (post("X: a", "\tb", body=b""), 400),
    "fold that hides a length": (post("X: a", " Content-Length: 3", body=b"abc"), 400),
    "first field folded": (b"POST /echo HTTP/1.1\r\n Host: a\r\nContent-Length: 0\r\n\r\n", 400),
    "bare lf between fields": (post("X: a\nTransfer-Encoding: chunked", body=ABC), 400),
    "bare cr between fields": (post("X: a\rTransfer-Encoding: chunked", body=ABC), 400),
    "cr cr lf": (post("X: a\r", body=b""), 400),
    "bare lf at the end": (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\n\r\n", 400),
    "lf alone everywhere": (b"GET /hello HTTP/1.1\nHost: a\n\n", 400),
    "name with a space": (get("X Y: a"), 400),
    "name with a bracket": (get("X(Y): a"), 400),
    "name with an umlaut": (get("\xe4: a"), 400),
    "empty name": (get(": a"), 400),
    "no colon": (get("X"), 400),
    "nul in a value": (get("X: a\0b"), 400),
    "bell in a value": (get("X: a\x07b"), 400),
    "delete in a value": (get("X: a\x7fb"), 400),
    "escape in a value": (get("X: \x1b[0m"), 400),
    # chunks
    "chunk size with 0x": (chunked(b"0x3\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size with a plus": (chunked(b"+3\r\nabc\r\n0\r\n\r\n"), 400),
    "negative chunk size": (chunked(b"-3\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size that is none": (chunked(b"xyz\r\n"), 400),
    "chunk size with an underscore": (chunked(b"1_0\r\nabc\r\n0\r\n\r\n"), 400),
    "space before a chunk size": (chunked(b" 3\r\nabc\r\n0\r\n\r\n"), 400),
    "empty chunk size": (chunked(b"\r\nabc\r\n"), 400),
    "chunk size of 2^63": (chunked(b"8000000000000000\r\n"), 413),
    "chunk size of 2^64 + 3": (chunked(b"10000000000000003\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size ends with lf": (chunked(b"3\nabc\r\n0\r\n\r\n"), 400),
    "chunk size ends with cr": (chunked(b"3\rabc\r\n0\r\n\r\n"), 400),
    "extension with a bare lf": (chunked(b"3;a\nb\r\nabc\r\n0\r\n\r\n"), 400),
    "extension with a nul": (chunked(b"3;a\0\r\nabc\r\n0\r\n\r\n"), 400),
    "extension without an end": (chunked(b"3;" + b"a" * 10_000), 400),
    "chunk longer than its size": (chunked(b"3\r\nabcd\r\n0\r\n\r\n"), 400),
    "chunk without its line end": (chunked(b"3\r\nabc0\r\n\r\n"), 400),
    "chunk that ends with lf": (chunked(b"3\r\nabc\n0\r\n\r\n"), 400),
    "folded trailer": (chunked(b"0\r\nX: a\r\n b\r\n\r\n"), 400),
    "trailer without a name": (chunked(b"0\r\n: a\r\n\r\n"), 400),
    "trailer with a bare lf": (chunked(b"0\r\nX: a\nY: b\r\n\r\n"), 400),
    "trailers without an end": (chunked(b"0\r\n" + b"X: a\r\n" * 1000), 400),
    # request lines
    "HTTP/0.9": (b"GET /hello\r\n\r\n", 400),
    "HTTP/1.2": (get(version="HTTP/1.2"), 505),
    "HTTP/2.0": (get(version="HTTP/2.0"), 505),
    "HTTP/0.9, spelled out": (get(version="HTTP/0.9"), 505),
    "HTTP/11.1": (get(version="HTTP/11.1"), 400),
    "HTTP/1": (get(version="HTTP/1"), 400),
    "lower-case protocol": (get(version="http/1.1"), 400),
    "another protocol": (get(version="RTSP/1.1"), 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "a SOCKS greeting": (b"\x05\x01\x00", 400),
    "an SSH banner": (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", 400),
    "two spaces before the target": (get(target=" /hello"), 400),
    "two spaces after the target": (get(target="/hello "), 400),
    "tabs between the parts": (b"GET\t/hello\tHTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a part too many": (get(version="HTTP/1.1 x"), 400),
    "no target": (b"GET HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "leading space": (b" " + get(), 400),
    "leading lf": (b"\n" + get(), 400),
    "two leading line ends": (b"\r\n\r\n" + get(), 400),
    "nul in the target": (get(target="/hel\0lo"), 400),
    "umlaut in the target": (get(target="/h\xe4llo"), 400),
    "relative target": (get(target="hello"), 400),
    "asterisk with GET": (get(target="*"), 400),
    "another scheme": (get(target="ftp://a/hello"), 400),
    "method with a slash": (b"G/T /hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "method with a colon": (b"GET: /hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    # hosts
    "no host": (get(host=""), 400),
    "two hosts": (get("Host: b"), 400),
    "two equal hosts": (get("Host: a"), 400),
    "host with a space": (get(host="Host: a b"), 400),
    "host with a comma list": (get(host="Host: a, b/c"), 400),
    "host with a slash": (get(host="Host: a/hello"), 400),
    "host with a user": (get(host="Host: u@a"), 400),
    "host with a question mark": (get(host="Host: a?b"), 400),
    "host with a port of letters": (get(host="Host: a:http"), 400),
    "host with two ports": (get(host="Host: a:1:2"), 400),
    "host with an open bracket": (get(host="Host: [::1"), 400),
    # limits
    "a target of 20 kB": (get(target="/" + "a" * 20_000), 414),
    "300 fields": (get(*["X: a"] * 300), 431),
    "a field of 100 kB": (get("X: " + "a" * 100_000), 431),
    # expectations
    "another expectation": (post("Expect: a-miracle", "Content-Length: 3", body=b"abc"), 417),
    "two expectations": (post("Expect: 100-continue, x", "Content-Length: 3", body=b"abc"), 417),
}

# request -> status, and the body the handler saw (None: no handler ran)
TAKEN: dict[str, tuple[bytes, int, bytes | None]] = {
    "plain": (get(), 200, b""),
    "a leading line end": (b"\r\n" + get(), 200, b""),
    "absolute form": (get(target="http://a/hello"), 200, b""),
    "absolute form, another case": (get(target="HTTP://a:80/hello"), 200, b""),
    "spaces around a value": (post("Content-Length: \t 3 \t", body=b"abc"), 200, b"abc"),
    "no space before a value": (post("Content-Length:3", body=b"abc"), 200, b"abc"),
    "a length with zeros before it": (post("Content-Length: 0003", body=b"abc"), 200, b"abc"),
    "names in any case": (post("cOnTeNt-LeNgTh: 3", body=b"abc"), 200, b"abc"),
    "an underscore is no hyphen": (get("Transfer_Encoding: chunked", "Content_Length: 7"), 200, b""),
    "chunks": (chunked(ABC), 200, b"abc"),
    "Chunked, in any case": (post("Transfer-Encoding: CHUNKED", body=ABC), 200, b"abc"),
    "chunk sizes in any case": (
        chunked(b"A\r\n0123456789\r\nb\r\n01234567890\r\n0\r\n\r\n"),
        200,
        b"0123456789" * 2 + b"0",
    ),
    "chunk sizes with zeros": (chunked(b"0003\r\nabc\r\n000\r\n\r\n"), 200, b"abc"),
    "extensions": (chunked(b'3;a;b=c;d="e;f"\r\nabc\r\n0;x\r\n\r\n'), 200, b"abc"),
    "trailers": (chunked(b"3\r\nabc\r\n0\r\nX: a\r\nY: b\r\n\r\n"), 200, b"abc"),
    "trailers frame nothing": (chunked(b"3\r\nabc\r\n0\r\nContent-Length: 99\r\nHost: b\r\n\r\n"), 200, b"abc"),
    "chunk data that looks like chunks": (chunked(b"7\r\n0\r\n\r\nab\r\n0\r\n\r\n"), 200, b"0\r\n\r\nab"),
    "a body that looks like a request": (post(f"Content-Length: {len(NEXT)}", body=NEXT), 200, NEXT),
    "a GET with a body that looks like a request": (get(f"Content-Length: {len(NEXT)}") + NEXT, 200, NEXT),
    "a body of a refused request": (
        post(f"Content-Length: {len(NEXT)}", body=NEXT).replace(b"/echo", b"/nope"),
        404,
        None,
    ),
    "DELETE": (b"DELETE /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 204, None),
    "CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 404, None),
    "TRACE": (b"TRACE /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405, None),
    "a lower-case method": (b"get /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405, None),
    "a method of its own": (b"BREW /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405, None),
    "an upgrade nobody wants": (
        get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
        200,
        b"",
    ),
    "an empty host": (get(host="Host: "), 200, b""),
    "a host of brackets": (get(host="Host: [::1]:8080"), 200, b""),
    "latin-1 in a value": (get("X: \xe4\xff"), 200, b""),
    "a tab in a value": (get("X: a\tb"), 200, b""),
    "an empty value": (get("X:"), 200, b""),
    "a target of 9 kB": (get(target="/" + "a" * 9000), 404, None),
    "a field of 9 kB": (get("X: " + "a" * 9000), 200, b""),
    "101 fields": (get(*["X: a"] * 101), 200, b""),
}


def feeds(data: bytes) -> Iterator[list[bytes]]:
    """The same bytes whole, one at a time (where they are few), and at random splits."""
    yield [data]
    if len(data) < 1000:
        yield [data[at : at + 1] for at in range(len(data))]
    random_ = random.Random(zlib.crc32(data))
    cuts = sorted({random_.randrange(1, len(data)) for _ in range(6)})
    yield [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def fed(site: Site, pieces: list[bytes]) -> bytes:
    """What comes back for these writes until the server closes."""
    peer = await site.open()
    reading = asyncio.ensure_future(peer.rest())
    for piece in pieces:
        peer.writer.write(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if reading.done():  # refused already
            break
    data = await reading
    peer.close()
    return data


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_readers_might_read_differently_is_refused(name: str) -> None:
    data, status = REFUSED[name]

    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            for pieces in feeds(data + NEXT):
                (answer,) = read_answers(await fed(site, pieces), ["POST"])
                assert answer.status == status and answer.headers["connection"] == "close"
                assert answer.json()["error"]["message"] and "x-request-id" in answer.headers
        assert world.smuggled == 0 and world.bodies == []

    run(main, LOOP)


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_valid_is_taken_and_the_connection_lives_on(name: str) -> None:
    data, status, body = TAKEN[name]
    method = re.match(rb"(?:\r\n)?(\S+)", data)[1].decode()  # type: ignore[index]

    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            count = 0
            for pieces in feeds(data + data + NEXT):
                first, second, last = read_answers(await fed(site, pieces), [method, method, "GET"])
                assert (first.status, second.status, last.status) == (status, status, 200)
                count += 1
        assert world.smuggled == count
        assert world.bodies == ([] if body is None else [body] * 2 * count)

    run(main, LOOP)


def test_a_refused_body_of_unknown_length_ends_the_connection() -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            data = chunked(b"2\r\nhi\r\n0\r\n\r\n").replace(b"/echo", b"/hello")
            for pieces in feeds(data + NEXT):
                (answer,) = read_answers(await fed(site, pieces), ["POST"])
                assert answer.status == 405 and answer.headers["connection"] == "close"
        assert world.smuggled == 0

    run(main, LOOP)


def test_http_1_0_closes_and_needs_no_host() -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            for pieces in feeds(get(host="", version="HTTP/1.0") + NEXT):
                (answer,) = read_answers(await fed(site, pieces), ["GET"])
                assert answer.status == 200 and answer.headers["connection"] == "close"
            (answer,) = read_answers(
                await fed(site, [post("Content-Length: 3", body=b"abc", version="HTTP/1.0")]), ["POST"]
            )
            assert answer.body == b"abc"
            expecting = post("Expect: 100-continue", "Content-Length: 3", body=b"abc", version="HTTP/1.0")
            (answer,) = read_answers(await fed(site, [expecting]), ["POST"])
            assert answer.status == 200  # RFC 9110 10.1.1: to be ignored
        assert world.smuggled == 0

    run(main, LOOP)


def test_part_of_a_request_waits_without_an_answer() -> None:
    """h1spec: fragments of a head get nothing for half a second."""

    async def main() -> None:
        async with serving(World().routes()) as site:
            peers = [await site.open() for _ in range(4)]
            for peer, part in zip(peers, (b"G", b"GET /hello", b"GET /hello HTTP/1.1\r\nHo", get()[:-2]), strict=True):
                await peer.send(part)
            await asyncio.sleep(0.5)
            assert not any(peer.reader._buffer for peer in peers)  # type: ignore[attr-defined]
            await peers[3].send(b"\r\n")
            assert (await peers[3].answer()).status == 200
            for peer in peers:
                peer.close()

    run(main, LOOP)


def test_a_body_that_stays_short_is_not_answered() -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            for data in (post("Content-Length: 10", body=b"abc"), chunked(b"5\r\nab"), chunked(b"3\r\nabc\r\n")):
                peer = await site.open()
                await peer.send(data)
                peer.writer.write_eof()
                assert await peer.rest() == b""
                peer.close()
        assert world.bodies == []

    run(main, LOOP)


def test_a_head_that_drips_is_ended_and_a_body_that_drips_too() -> None:
    # G10-04: bytes keep coming, the request never does
    async def main() -> None:
        async def drip(peer: Peer, data: bytes) -> None:
            for byte in data:
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0.04)

        async with serving(World().routes(), ServerSettings(read_timeout_s=0.1)) as site:
            head, body, chunks = [await site.open() for _ in range(3)]
            await body.send(post("Content-Length: 1000"))
            await chunks.send(chunked(b"3e8\r\n"))
            peers = {head: b"GET /hello HTTP/1.1\r\nX: " + b"a" * 200, body: b"a" * 200, chunks: b"a" * 200}
            drips = [asyncio.ensure_future(drip(peer, data)) for peer, data in peers.items()]
            for peer in peers:
                (answer,) = read_answers(await peer.rest(), ["POST"])
                assert answer.status == 408 and answer.headers["connection"] == "close"
            for each in drips:
                each.cancel()
            for peer in peers:
                peer.close()

    run(main, LOOP)


def test_pipelined_requests_after_an_error_of_the_handler_are_answered() -> None:
    async def main() -> None:
        world = World()
        async with serving(world.routes()) as site:
            data = (
                get()
                + get(target="/nowhere")
                + post("Content-Length: 3", body=b"abc")
                + get(target="/hello?a=%ff")
                + NEXT
            )
            for pieces in feeds(data):
                answers = read_answers(await fed(site, pieces), ["GET", "GET", "POST", "GET", "GET"])
                assert [answer.status for answer in answers] == [200, 404, 200, 400, 200]

    run(main, LOOP)


def test_many_pipelined_requests_leave_turns_to_others() -> None:
    """One client's 3000 requests in one write; another client's one is answered long before they are all done."""

    async def main() -> None:
        async with serving(World().routes(), ServerSettings(keep_alive_max=0)) as site:
            greedy, modest = await site.open(), await site.open()
            greedy.writer.write(get() * 3000 + NEXT)
            await modest.send(get())
            assert (await modest.answer()).status == 200
            assert site.server.connections
            unread = len(greedy.reader._buffer)  # type: ignore[attr-defined]
            data = await greedy.rest()
            assert unread < len(data) / 2
            assert len(read_answers(data, ["GET"] * 3001)) == 3001
            greedy.close(), modest.close()

    run(main, LOOP)


def test_limits_are_settings() -> None:
    limits = HttpLimits(request_line_bytes=100, head_bytes=300, header_count=5, body_bytes=10)

    async def main() -> None:
        async with serving(World().routes(), ServerSettings(limits=limits)) as site:
            for data, status in (
                (get(target="/" + "a" * 100), 414),
                (get("X: " + "a" * 300), 431),
                (get(*["X: a"] * 6), 431),
                (post("Content-Length: 11", body=b"a" * 11), 413),
                (chunked(b"b\r\n01234567890\r\n0\r\n\r\n"), 413),
            ):
                (answer,) = read_answers(await fed(site, [data]), ["POST"])
                assert answer.status == status
            fitting = post("Content-Length: 10", "Connection: close", body=b"a" * 10)
            assert read_answers(await fed(site, [fitting]), ["POST"])[0].status == 200

    run(main, LOOP)
