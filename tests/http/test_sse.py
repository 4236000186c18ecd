"""Event streams: frames, one chunk a wake-up, pings in silence, and closing at every moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from openai._streaming import SSEDecoder

from imp.http import sse
from tests.http.wire import run


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


def test_frames_are_compact_utf8() -> None:
    assert sse.frame({"a": ["é", 1]}) == 'data: {"a":["é",1]}\n\n'.encode()
    assert sse.frame({}, "ping") == b"event: ping\ndata: {}\n\n"
    with pytest.raises(ValueError):
        sse.frame({"a": float("nan")})


class Queue:
    """A source like the engine's: a queue behind an async generator."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False

    def put(self, *events: Any) -> None:
        for event in events:
            self.queue.put_nowait(event)

    async def events(self) -> AsyncGenerator[Any]:
        try:
            while (event := await self.queue.get()) != "end":
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed = True


def test_all_that_is_queued_becomes_one_chunk() -> None:
    async def main() -> None:
        source = Queue()
        stream = sse.stream(source.events(), text)
        source.put(1, 2, 3)
        assert await anext(stream) == text(1) + text(2) + text(3)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        source.put(4)
        assert await waiting == text(4)
        source.put(5, "end")
        assert await anext(stream) == text(5)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()
        assert source.closed

    run(main)


def test_nothing_is_lost_or_reordered_when_more_is_queued_than_is_taken_ahead() -> None:
    async def main() -> None:
        source = Queue()
        count = 5 * sse.MAX_PENDING + 3
        source.put(*range(1, count + 1), "end")
        stream = sse.stream(source.events(), text)
        joined = b"".join([chunk async for chunk in stream])
        assert joined == b"".join(text(i) for i in range(1, count + 1))

    run(main)


def test_what_is_taken_ahead_of_a_slow_reader_is_bounded() -> None:
    async def main() -> None:
        taken = 0

        async def endless() -> AsyncGenerator[int]:
            nonlocal taken
            while True:
                taken += 1
                yield taken
                await asyncio.sleep(0)

        stream = sse.stream(endless(), text)
        await anext(stream)
        for _ in range(3 * sse.MAX_PENDING):
            await asyncio.sleep(0)
        assert taken <= 2 * sse.MAX_PENDING + 1
        await stream.aclose()

    run(main)


def test_pings_in_silence_and_never_otherwise() -> None:
    # G01-07: before the first event, while text is withheld; a real event is never delayed or split by a ping
    async def main() -> None:
        source = Queue()
        stream = sse.stream(source.events(), text, ping=b": ping\n\n", interval_s=0.02)
        assert await anext(stream) == b": ping\n\n"
        assert await anext(stream) == b": ping\n\n"
        source.put(0)  # withheld: encodes to nothing
        assert await anext(stream) == b": ping\n\n"
        source.put(1)
        assert await anext(stream) == text(1)
        source.put(2, "end")
        rest = [chunk async for chunk in stream]
        assert rest[-1] == text(2)
        await stream.aclose()

    run(main)


def test_no_pings_at_interval_zero() -> None:
    async def main() -> None:
        source = Queue()
        stream = sse.stream(source.events(), text, interval_s=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        await stream.aclose()
        assert source.closed

    run(main)


def test_a_failure_comes_after_the_events_before_it() -> None:
    async def main() -> None:
        for error in (RuntimeError("x"), TimeoutError("own")):
            source = Queue()
            source.put(1, 2, error)
            stream = sse.stream(source.events(), text)
            assert await anext(stream) == text(1) + text(2)
            with pytest.raises(type(error)):
                await anext(stream)
            await stream.aclose()
            assert source.closed

    run(main)


def test_closing_closes_the_source_at_every_moment() -> None:
    async def main() -> None:
        for steps in range(4):
            source = Queue()
            events = source.events()
            source.put(1)
            await anext(events)  # begun, as after an admission
            stream = sse.stream(events, text)
            source.put(*range(1, steps))
            if steps > 1:
                await anext(stream)
            if steps == 3:  # while somebody waits for the next
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
            await stream.aclose()
            assert source.closed

    run(main)


def test_an_iterator_without_aclose_will_do() -> None:
    async def main() -> None:
        class Two(AsyncIterator[int]):
            count = 0

            async def __anext__(self) -> int:
                self.count += 1
                if self.count > 2:
                    raise StopAsyncIteration
                return self.count

        stream = sse.stream(Two(), text)
        assert b"".join([chunk async for chunk in stream]) == text(1) + text(2)
        await stream.aclose()

    run(main)
