"""Server-sent events: frames, and the driver that turns an event stream into writes. Knows no dialect.

The format is the WHATWG HTML standard's section "Server-sent events": fields end with a newline, an event ends with a
blank line, a line starting with a colon is a comment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from imp.http.message import Chunks, Stream, dumps

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
MAX_PENDING = 256  # events taken from the source ahead of the client


def frame(value: Any, event: str | None = None) -> bytes:
    """One event with `value` as compact JSON, which holds no raw newline. `event` must be a single line."""
    data = b"data: " + dumps(value) + b"\n\n"
    return data if event is None else f"event: {event}\n".encode() + data


def response(chunks: Chunks, headers: dict[str, str] | None = None) -> Stream:
    """A 200 with the headers of an event stream."""
    return Stream(200, HEADERS | (headers or {}), chunks)


def stream[E](
    events: AsyncIterator[E],
    encode: Callable[[E], bytes],
    ping: bytes = KEEPALIVE,
    interval_s: float = 15.0,
) -> EventStream[E]:
    """Encode events as they come: everything queued becomes one chunk, so whole events arrive in one write.

    `encode` may return b"" for an event that shows nothing. When no chunk was due for `interval_s` seconds `ping` is
    sent (0: never); never inside an event and never after the last. What `events` raises is raised here, after the
    events before it. Closing the stream closes `events`, also when the stream was never begun.
    """
    return EventStream(events, encode, ping, interval_s)


class EventStream[E]:
    """See `stream`. Reads `events` ahead in its own task, so that a wait for the next can end without losing it."""

    def __init__(self, events: AsyncIterator[E], encode: Callable[[E], bytes], ping: bytes, interval_s: float) -> None:
        self._events = events
        self._encode = encode
        self._ping = ping
        self._interval_s = interval_s if interval_s > 0 else None
        self._pending: deque[E] = deque()
        self._changed = asyncio.Event()  # something to take, or the end
        self._room = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> EventStream[E]:
        return self

    async def __anext__(self) -> bytes:
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
        try:
            async with asyncio.timeout(self._interval_s):
                return await self._next_chunk()
        except TimeoutError:
            if self._failure is not None and not self._pending:  # not our clock, the source's own error
                raise
            return self._ping

    async def aclose(self) -> None:
        """Stop reading and close `events`; raises what closing them raises."""
        if self._task is None:
            await self._close_events()
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    async def _next_chunk(self) -> bytes:
        while True:
            while not self._pending:
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    raise StopAsyncIteration
                self._changed.clear()
                await self._changed.wait()
            events = list(self._pending)
            self._pending.clear()
            self._room.set()
            if chunk := b"".join(map(self._encode, events)):
                return chunk

    async def _read(self) -> None:
        try:
            async for event in self._events:
                self._pending.append(event)
                self._changed.set()
                while len(self._pending) >= MAX_PENDING:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # handed to the reader, who raises it
            self._failure = error
        finally:
            self._ended = True
            self._changed.set()
            await self._close_events()

    async def _close_events(self) -> None:
        if isinstance(self._events, AsyncGenerator):
            await self._events.aclose()
