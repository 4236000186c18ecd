"""Server-sent events: how one is written, and the response that carries them. Knows no dialect.

The format is the WHATWG HTML standard's section "Server-sent events": fields end with a newline, an event ends with a
blank line, a line starting with a colon is a comment. What comes together is one chunk, so whole events arrive in one
write, and pings come between chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp.http.message import Chunks, Stream, dumps

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


# What JSON leaves as it is and the standard does not take for the end of a line, but many a client's splitlines does
_SEPARATORS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029")


def line(value: Any) -> bytes:
    """Compact JSON that is a single line for whoever reads it."""
    data = dumps(value)
    for raw, escaped in _SEPARATORS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def frame(value: Any, event: str | None = None) -> bytes:
    """One event with `value` as compact JSON. `event` must be a single line."""
    data = b"data: " + line(value) + b"\n\n"
    return data if event is None else f"event: {event}\n".encode() + data


SLOT = "\0slot\0"  # where a Template has its text; no header of an answer holds it


class Template:
    """Events that differ in one text alone: everything else is encoded once, which is most of what an event costs."""

    __slots__ = ("_after", "_before")

    def __init__(self, value: Any, event: str | None = None) -> None:
        """value: has SLOT in it, once, as a value."""
        self._before, slot, self._after = frame(value, event).partition(dumps(SLOT))
        assert slot and dumps(SLOT) not in self._after

    def frame(self, text: str) -> bytes:
        """What `sse.frame` makes of the value with `text` in SLOT's place."""
        return self._before + line(text) + self._after


def response(
    chunks: Chunks, ping_s: float, ping: bytes = KEEPALIVE, headers: Mapping[str, str] | None = None
) -> Stream:
    """A 200 with the headers of an event stream. chunks: whole events.

    ping: sent when nothing else was for `ping_s` seconds (0: never); never inside an event and never after the last.
    """
    return Stream(200, HEADERS | dict(headers or {}), chunks, ping, ping_s)
