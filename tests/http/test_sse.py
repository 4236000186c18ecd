"""Event streams: frames, pings in silence, and closing at every moment, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from imp.http import sse
from imp.http.message import HttpRequest, Response
from imp.http.router import Route
from imp.http.server import ServerSettings
from tests.http.wire import Peer, Site, read_answers, run, serving


def text(event: Any) -> bytes:
    return sse.frame({"t": event}) if event else b""


def test_frames_are_read_back_by_the_openai_sdk() -> None:
    values = [{"text": "a\nb\r\nc\u2028d\u0085e"}, {"text": "é😀\x00"}, {"text": "data: x\n\n"}]
    stream = b"".join(sse.frame(value, f"e{i}") + sse.KEEPALIVE for i, value in enumerate(values)) + sse.DONE
    events = list(SSEDecoder().iter_bytes(iter([stream])))
    assert [event.event for event in events] == ["e0", "e1", "e2", None]
    assert [json.loads(event.data) for event in events[:3]] == values
    assert events[3].data == "[DONE]"
    for value in values:
        assert sse.frame(value).count(b"\n") == 2 and b"\r" not in sse.frame(value)


def test_a_frame_is_a_line_for_clients_that_know_more_kinds_of_them() -> None:
    words = {"text": "a\u2028b\u2029c\u0085d\x1ce\x0bf \\u2028"}
    for data in (sse.frame(words), sse.Template({"text": sse.SLOT}).frame(words["text"])):
        assert [len(line) > 0 for line in data.decode().splitlines()] == [True, False]
        assert json.loads(data.removeprefix(b"data: ")) == words


def test_frames_are_compact_utf8() -> None:
    assert sse.frame({"a": ["é", 1]}) == 'data: {"a":["é",1]}\n\n'.encode()
    assert sse.frame({}, "ping") == b"event: ping\ndata: {}\n\n"
    with pytest.raises(ValueError):
        sse.frame({"a": float("nan")})


class Queue:
    """A source like the engine's, behind an async generator; served at POST /."""

    def __init__(self, ping_s: float = 0.0) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.ping_s = ping_s
        self.closed = asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            while (event := await self.queue.get()) != "end":
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed.set()

    async def handler(self, request: HttpRequest) -> Response:
        return sse.response(self.events(), self.ping_s, PING)

    def serving(self, **settings: Any) -> Any:
        return serving([Route(("POST", "GET"), "/", self.handler)], ServerSettings(**settings))


PING = b": ping\n\n"
ASK = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
LAST = b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def asked(site: Site) -> Peer:
    """A client whose stream has begun."""
    peer = await site.open()
    await peer.send(ASK)
    head = await peer.reader.readuntil(b"\r\n\r\n")
    assert b"text/event-stream" in head and b"chunked" in head
    return peer


def test_pings_in_silence_and_never_otherwise() -> None:
    # G01-07: comment lines while nothing else is sent, between events, never after the end
    async def main() -> None:
        source = Queue(ping_s=0.05)
        async with source.serving() as site:
            peer = await asked(site)
            await asyncio.sleep(0.18)
            source.queue.put_nowait(text(1))
            await asyncio.sleep(0.12)
            for _ in range(12):  # busy for longer than the interval: no ping
                await asyncio.sleep(0.01)
                source.queue.put_nowait(text(2))
            source.queue.put_nowait("end")
            await asyncio.sleep(0.15)
            await peer.send(LAST)
            answers = read_answers(HEAD + await peer.rest(), ["POST", "GET"])
            chunks = answers[0].chunks
            assert set(chunks) == {PING, text(1), text(2)}  # whole, every one
            first, busy = chunks.index(text(1)), chunks.index(text(2))
            assert 1 <= chunks[:first].count(PING) <= 3 and 1 <= chunks[first:busy].count(PING) <= 2
            assert chunks[-1] == text(2)
            peer.close()

    run(main)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"  # the test has read it already


def test_no_pings_at_interval_zero() -> None:
    async def main() -> None:
        source = Queue()
        async with source.serving() as site:
            peer = await asked(site)
            await asyncio.sleep(0.1)
            source.queue.put_nowait("end")
            await peer.send(LAST)
            assert read_answers(HEAD + await peer.rest(), ["POST", "GET"])[0].chunks == []
            peer.close()

    run(main)


def test_a_reader_that_is_behind_is_not_pinged() -> None:
    async def main() -> None:
        source = Queue(ping_s=0.01)
        async with source.serving() as site:
            peer = Peer(*await asyncio.open_connection("127.0.0.1", site.port, limit=1024))
            await peer.send(ASK)
            source.queue.put_nowait(b"x" * 8_000_000)
            while not any(connection.unsent_bytes for connection in site.server.connections):
                await asyncio.sleep(0.01)
            (connection,) = site.server.connections
            before = connection.unsent_bytes
            await asyncio.sleep(0.1)
            assert connection.unsent_bytes == before
            peer.abort()
            await asyncio.wait_for(source.closed.wait(), 5)

    run(main)


def test_a_failure_comes_after_the_events_before_it(caplog: Any) -> None:
    async def main() -> None:
        source = Queue(ping_s=5)
        async with source.serving() as site:
            peer = await asked(site)
            for event in (text(1), text(2), RuntimeError("boom")):
                source.queue.put_nowait(event)
            try:
                raw = await peer.rest()
            except ConnectionResetError:
                raw = b""
            assert not raw.endswith(b"0\r\n\r\n")  # cut, and to be seen as that
            assert source.closed.is_set()

    run(main)
    assert "boom" in caplog.text


@pytest.mark.parametrize("after", range(4))
def test_leaving_closes_the_source_at_every_moment(after: int) -> None:
    async def main() -> None:
        source = Queue(ping_s=0.02)
        async with source.serving() as site:
            peer = await asked(site)
            for event in range(after):
                source.queue.put_nowait(text(event + 1))
                await asyncio.sleep(0.005)
            peer.abort()
            await asyncio.wait_for(source.closed.wait(), 5)
            await asyncio.sleep(0.05)  # a ping into the closed connection would raise in the loop

    run(main)


def test_no_ping_timer_outlives_its_stream() -> None:
    async def main() -> None:
        source = Queue(ping_s=0.02)
        async with source.serving() as site:
            peer = await asked(site)
            source.queue.put_nowait("end")
            await asyncio.wait_for(source.closed.wait(), 5)
            await asyncio.sleep(0.1)
            await peer.send(LAST)
            answers = read_answers(HEAD + await peer.rest(), ["POST", "GET"])
            assert PING not in answers[0].chunks and answers[1].status == 404
            peer.close()

    run(main)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_template_makes_what_a_frame_makes(words: str) -> None:
    shape = {"id": 'a"b', "choices": [{"delta": {"content": sse.SLOT}, "n": [1, None]}]}
    made = sse.Template(shape, "delta").frame(words)
    assert made == sse.frame({"id": 'a"b', "choices": [{"delta": {"content": words}, "n": [1, None]}]}, "delta")
