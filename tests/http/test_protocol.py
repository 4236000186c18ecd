"""HTTP/1.1 without sockets: what is taken, what is refused, and that no bytes at all can break it."""

from __future__ import annotations

import random

import pytest

from imp.http.errors import ApiError
from imp.http.protocol import Complete, Head, HttpConnection, HttpLimits, Refused
from tests.http.wire import read_answers

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def answer(connection: HttpConnection, body: bytes, status: int = 200) -> bytes:
    head = connection.start(status, [("Content-Length", str(len(body)))])
    return head + connection.data(body) + connection.end()


def converse(data: bytes, pieces: list[int] | None = None, limits: HttpLimits | None = None) -> tuple[list, bytes]:
    """Feed bytes in pieces of these sizes (default: all at once); answer every request with its own body."""
    connection = HttpConnection(limits)
    events: list = []
    out = b""
    cuts = pieces or [len(data)]
    at = 0
    for size in cuts:
        connection.receive(data[at : at + size])
        at += size
        while (event := connection.next_event()) is not None:
            events.append(event)
            if isinstance(event, Head):
                connection.want_body()
                status = 404 if event.method == "CONNECT" else 200  # there are no tunnels here
            elif isinstance(event, Complete):
                out += answer(connection, event.body, status)
                if not connection.reusable:
                    return events, out
                connection.next_cycle()
            else:
                body = event.error.message.encode()
                out += connection.start(event.error.status, [("Content-Length", str(len(body)))], close=True)
                out += connection.data(body) + connection.end()
                return events, out
    assert at >= len(data)
    return events, out


def refusal(data: bytes, limits: HttpLimits | None = None) -> ApiError:
    events, out = converse(data, limits=limits)
    assert events, f"no decision about {data!r}"
    assert isinstance(events[-1], Refused), events[-1]
    answered = sum(isinstance(event, Complete) for event in events)
    refused = read_answers(out, ["GET"] * (answered + 1))[-1]
    assert refused.headers["connection"] == "close"
    assert refused.status == events[-1].error.status
    return events[-1].error


ACCEPTED = {
    "plain": (GET, "GET", "/", b""),
    "one leading line end": (b"\r\n" + GET, "GET", "/", b""),
    "http/1.0 without host": (b"GET /x HTTP/1.0\r\n\r\n", "GET", "/x", b""),
    "absolute form": (b"GET http://h:80/p?q=1 HTTP/1.1\r\nHost: h\r\n\r\n", "GET", "/p?q=1", b""),
    "absolute form without path": (b"OPTIONS http://h HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS", "/", b""),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS", "*", b""),
    "connect": (b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", "CONNECT", "h:443", b""),
    "unknown method": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", "get", "/", b""),
    "ipv6 host": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "GET", "/", b""),
    "empty host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET", "/", b""),
    "length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "POST", "/", b"abc"),
    "no length": (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", "POST", "/", b""),
    "chunked": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n",
        "POST",
        "/",
        b"abcde",
    ),
    "9 kB request line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "GET", "/" + "a" * 9000, b""),
    "9 kB field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000 + b"\r\n\r\n", "GET", "/", b""),
    "101 fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 100 + b"\r\n", "GET", "/", b""),
    "tab and latin-1 in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\tb\xe9\r\n\r\n", "GET", "/", b""),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_requests_are_taken_whole_and_byte_by_byte(name: str) -> None:
    data, method, target, body = ACCEPTED[name]
    for pieces in (None, [1] * len(data)):
        events, out = converse(data, pieces)
        assert [type(event) for event in events] == [Head, Complete]
        assert (events[0].method, events[0].target, events[1].body) == (method, target, body)
        assert read_answers(out, [method])[0].status == (404 if method == "CONNECT" else 200)


REFUSED = {  # WIRE.md section 9 and RFC 9112
    "version 2.0": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "version 9.9": (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "lower-case protocol": (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
    "no version": (b"GET /\r\nHost: a\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two leading line ends": (b"\r\n\r\n" + GET, 400),
    "tls": (b"\x16\x03\x01\x02\x00\x01", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "host with a space": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "host with a slash": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "host with userinfo": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "folded field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    "folded first field": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "space before colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400),
    "empty name": (b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400),
    "bell in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x07b\r\n\r\n", 400),
    "nul in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
    "del in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", 400),
    "bare lf": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare lf in a field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n", 400),
    "bare cr in a field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rY: b\r\n\r\n", 400),
    "control character in the target": (b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "raw utf-8 in the target": ("GET /é HTTP/1.1\r\nHost: a\r\n\r\n".encode(), 400),
    "relative target": (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "asterisk with get": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "transfer-encoding on 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "both framings": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "two equal lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "length list": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
    "signed length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", 400),
    "hexadecimal length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc", 400),
    "unicode digits": ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ٣\r\n\r\nabc".encode(), 400),
    "10 GB length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n", 413),
    "no length on 1.0": (b"POST / HTTP/1.0\r\n\r\n", 411),
    "unknown coding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    "coding list": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunked twice": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 501),
    "two codings": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        501,
    ),
    "vertical tab coding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", 400),
    "expectation": (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: a-miracle\r\nContent-Length: 1\r\n\r\n", 417),
    "long target": (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "endless target": (b"GET /" + b"a" * 20000, 414),
    "5000 fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 5000 + b"\r\n", 431),
    "1 MB field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 1_000_000, 431),
}


@pytest.mark.parametrize("name", REFUSED)
def test_smuggling_and_malformed_heads_are_refused(name: str) -> None:
    data, status = REFUSED[name]
    assert refusal(data).status == status


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
BAD_CHUNKS = {
    "2^63": (b"8000000000000000\r\n", 413),
    "2^64": (b"10000000000000000\r\n", 400),
    "many digits": (b"0" * 30 + b"3\r\nabc\r\n0\r\n\r\n", 400),
    "not hexadecimal": (b"xyz\r\n", 400),
    "negative": (b"-1\r\n", 400),
    "0x": (b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "empty size": (b"\r\nabc\r\n", 400),
    "bare lf": (b"3\nabc\n0\n\n", 400),
    "longer than its size": (b"3\r\nabcd\r\n0\r\n\r\n", 400),
    "lf in place of cr lf": (b"3\r\nabc\nX0\r\n\r\n", 400),
    "bare lf in an extension": (b"3;a\nb\r\nabc\r\n0\r\n\r\n", 400),
    "endless extension": (b"3;" + b"a" * 10000, 400),
    "trailer without a name": (b"0\r\n: x\r\n\r\n", 400),
    "folded trailer": (b"0\r\nA: x\r\n b\r\n\r\n", 400),
    "endless trailers": (b"0\r\n" + b"A: x\r\n" * 1000, 400),
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_bad_chunks_are_refused(name: str) -> None:
    data, status = BAD_CHUNKS[name]
    assert refusal(CHUNKED + data).status == status


def test_a_chunked_body_without_end_is_refused_at_the_limit() -> None:
    # G10-04: POST 2 GB chunked
    limits = HttpLimits(body_bytes=1000)
    assert refusal(CHUNKED + b"64\r\n" + b"a" * 100 + b"\r\n" + b"3e8\r\n", limits).status == 413
    events, _ = converse(CHUNKED + b"3e8\r\n" + b"a" * 1000 + b"\r\n0\r\n\r\n", limits=limits)
    assert len(events[-1].body) == 1000


def test_a_body_at_the_limit_is_taken_and_one_past_it_is_not() -> None:
    limits = HttpLimits(body_bytes=10)
    events, _ = converse(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n" + b"x" * 10, limits=limits)
    assert events[-1] == Complete(b"x" * 10)
    assert refusal(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", limits).status == 413


def test_an_incomplete_head_waits() -> None:
    for end in range(1, len(GET)):
        connection = HttpConnection()
        connection.receive(GET[:end])
        assert connection.next_event() is None


def test_pipelined_requests_are_answered_in_order_at_every_split() -> None:
    bodies = [b"one", b"", b"three", b"four"]
    data = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (i, len(body), body)
        for i, body in enumerate(bodies)
    )
    data += CHUNKED + b"4\r\nfive\r\n0\r\n\r\n"
    expected = [*bodies, b"five"]
    random_splits = random.Random(1)
    for round_ in range(200):
        pieces = [1] * len(data) if round_ == 0 else []
        while sum(pieces) < len(data):
            pieces.append(random_splits.randint(1, 40))
        events, out = converse(data, pieces)
        assert [event.body for event in events if isinstance(event, Complete)] == expected
        assert [each.body for each in read_answers(out, ["POST"] * 5)] == expected


def test_nothing_is_read_ahead_of_an_unanswered_request() -> None:
    connection = HttpConnection()
    connection.receive(GET + GET)
    assert isinstance(connection.next_event(), Head)
    assert isinstance(connection.next_event(), Complete)
    assert connection.next_event() is None
    assert connection.buffered == len(GET)


def test_nothing_is_read_after_a_refusal() -> None:
    connection = HttpConnection()
    connection.receive(b"bad\r\n\r\n")
    assert isinstance(connection.next_event(), Refused)
    connection.receive(GET)
    assert connection.next_event() is None and connection.buffered == 0


def expecting(body: bytes = b"") -> HttpConnection:
    connection = HttpConnection()
    connection.receive(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n" + body)
    head = connection.next_event()
    assert isinstance(head, Head) and head.expects_continue
    return connection


def test_100_continue_is_sent_only_when_the_body_is_wanted() -> None:
    connection = expecting()
    assert connection.want_body().startswith(b"HTTP/1.1 100 ")
    assert expecting(b"abc").want_body() == b""  # RFC 9110 10.1.1: may be left out when the body is there
    refused = expecting()
    out = answer(refused, b"no")
    assert not refused.reusable  # whether the body will still come is unknown
    assert out.startswith(b"HTTP/1.1 200")


def test_a_head_answer_has_the_fields_of_get_and_no_body() -> None:
    for framing in ([("Content-Length", "5")], []):
        connection = HttpConnection()
        connection.receive(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.next_event(), connection.next_event()
        out = connection.start(200, framing) + connection.data(b"hello") + connection.end()
        assert read_answers(out, ["HEAD"])[0].body == b""
        assert out.endswith(b"\r\n\r\n") and connection.reusable


def test_http_1_0_gets_no_chunks_and_a_closed_connection() -> None:
    connection = HttpConnection()
    connection.receive(b"GET / HTTP/1.0\r\n\r\n")
    connection.next_event(), connection.next_event()
    out = connection.start(200, []) + connection.data(b"hello") + connection.end()
    assert b"chunked" not in out.lower() and out.endswith(b"\r\n\r\nhello")
    assert read_answers(out, ["GET"])[0].headers["connection"] == "close"
    assert not connection.reusable


def test_each_chunk_of_a_stream_is_one_http_chunk() -> None:
    connection = HttpConnection()
    connection.receive(GET)
    connection.next_event(), connection.next_event()
    out = connection.start(200, [])
    for chunk in (b"data: 1\n\n", b"", b"data: 2\n\n"):
        out += connection.data(chunk)
    out += connection.end()
    assert read_answers(out, ["GET"])[0].chunks == [b"data: 1\n\n", b"data: 2\n\n"]


def test_connection_close_of_the_client_is_honoured() -> None:
    connection = HttpConnection()
    connection.receive(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    connection.next_event(), connection.next_event()
    assert b"connection: close" in answer(connection, b"x").lower()
    assert not connection.reusable


def check(data: bytes, pieces: list[int]) -> None:
    """No exception but a clean refusal, no endless loop, and every answer is well-framed."""
    events, out = converse(data, pieces)
    assert len(events) <= 2 * len(data) + 2
    heads = [event for event in events if isinstance(event, Head)]
    completes = sum(isinstance(event, Complete) for event in events)
    assert completes <= len(heads) <= completes + 1
    if out and not isinstance(events[-1], Refused):
        read_answers(out, [head.method for head in heads[:completes]])


def pieces_of(length: int, random_: random.Random) -> list[int]:
    pieces = []
    while sum(pieces) < length:
        pieces.append(random_.randint(1, max(1, length // 3)))
    return pieces


def test_random_bytes_never_break_it_seed_7() -> None:
    random_ = random.Random(7)
    alphabet = b"GETPOS /HTTP1.0\r\n\r\n\r\n:;, \t\0\x7f\xffabcXchunked0123456789"
    for _ in range(8000):
        data = bytes(random_.choice(alphabet) for _ in range(random_.randint(0, 60)))
        check(data, pieces_of(len(data), random_))


def test_mutated_requests_never_break_it_seed_8() -> None:
    random_ = random.Random(8)
    seeds = [data for data, *_ in ACCEPTED.values() if len(data) < 500]
    seeds += [data for data, _ in REFUSED.values() if len(data) < 500]
    seeds += [CHUNKED + data for data, _ in BAD_CHUNKS.values() if len(data) < 500]
    for _ in range(14000):
        data = bytearray(random_.choice(seeds) + random_.choice(seeds))
        for _ in range(random_.randint(1, 4)):
            at = random_.randrange(len(data))
            kind = random_.randrange(4)
            if kind == 0:
                data[at] = random_.randrange(256)
            elif kind == 1:
                del data[at : at + random_.randint(1, 8)]
            elif kind == 2:
                data[at:at] = random_.choice((b"\r\n", b"\n", b"\0", b" ", b"0", b"Content-Length: 5\r\n", b"ff"))
            else:
                end = random_.randrange(len(data))
                data[at:at] = data[min(at, end) : max(at, end)][:50]
            if not data:
                break
        check(bytes(data), pieces_of(len(data), random_))
