"""Responses that are kept, in memory and bounded: by number, by bytes and by age. Knows no dialect and no sockets.

Past a bound the longest unused goes first. What still runs stays; the limit on concurrent requests bounds it. An entry
weighs what its whole conversation does, also where conversations share their beginnings: the bound is an upper one.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from imp.http.message import dumps

Item = Mapping[str, Any]
BLOCK_BYTES = 32 * 1024  # events are packed in blocks of about this size
END = b"\n\n"  # of an event


class EventLog:
    """The events of one response as they were written, to be read again while they come and afterwards."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, bytes]] = []  # (number of its first event, packed events)
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._packed_bytes = 0
        self._count = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def size_bytes(self) -> int:
        return self._packed_bytes + self._tail_bytes

    def add(self, frames: bytes) -> bytes:
        """Keep some whole events; returns them."""
        for each in frames.split(END)[:-1]:
            self._tail.append(each + END)
            self._count += 1
        self._tail_bytes += len(frames)
        if self._tail_bytes > BLOCK_BYTES:
            self._pack()
        self._wake()
        return frames

    def close(self) -> None:
        """No event follows."""
        self._closed = True
        if self._tail:
            self._pack()
        self._wake()

    async def follow(self, number: int) -> AsyncGenerator[bytes]:
        """The events from this number on, until the last one there will be."""
        while True:
            changed = self._changed
            frames = self._since(number)
            number = max(number, self._count)
            if frames:
                yield frames
            elif self._closed:
                return
            else:
                await changed.wait()

    def _since(self, number: int) -> bytes:
        found: list[bytes] = []
        for first, packed in reversed(self._blocks):
            if self._end_of(first) <= number:
                break
            events = zlib.decompress(packed).split(END)[:-1]
            found.append(b"".join(each + END for each in events[max(0, number - first) :]))
        tail = self._tail[max(0, number - (self._count - len(self._tail))) :]
        return b"".join(reversed(found)) + b"".join(tail)

    def _end_of(self, first: int) -> int:
        later = [other for other, _ in self._blocks if other > first]
        return min(later, default=self._count - len(self._tail))

    def _pack(self) -> None:
        packed = zlib.compress(b"".join(self._tail), 1)
        self._blocks.append((self._count - len(self._tail), packed))
        self._packed_bytes += len(packed)
        self._tail, self._tail_bytes = [], 0

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@dataclass(eq=False, slots=True)
class Stored:
    """One response and the conversation it stands in. Belongs to the event loop."""

    id: str
    owner: str  # whose key may see it; "" where there are no keys
    response: Mapping[str, Any]  # as last known; its "output" are items
    input: tuple[Item, ...]  # what this turn added
    history: tuple[Item, ...]  # what came before
    history_bytes: int = 0
    log: EventLog | None = None  # its events, where it was streamed or runs in the background
    over: asyncio.Event = field(default_factory=asyncio.Event)
    forgotten: bool = False  # by its owner, while it ran
    conversation_bytes: int = 0
    size_bytes: int = 0
    expires: float = 0.0

    @property
    def conversation(self) -> tuple[Item, ...]:
        """Everything up to the end of this response."""
        return (*self.history, *self.input, *self.response["output"])


class Latest:
    """The newest response of one connection, kept there whatever the store does, for the next turn to go on from."""

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def get(self, id: str) -> Stored | None:
        return self.stored if self.stored is not None and self.stored.id == id else None

    def item(self, id: str) -> Item | None:
        items = self.stored.conversation if self.stored is not None else ()
        return next((item for item in items if item["id"] == id), None)

    def forget(self, id: object) -> None:
        if self.stored is not None and self.stored.id == id:
            self.stored = None


class ResponseStore:
    """Kept responses by id. Belongs to the event loop.

    entries, size_bytes: how much is kept; 0: nothing.  ttl_s: for how long; 0: no limit.
    """

    def __init__(
        self,
        entries: int = 1000,
        size_bytes: int = 64 << 20,
        ttl_s: float = 86_400.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entries, self.limit_bytes, self.ttl_s, self._clock = entries, size_bytes, ttl_s, clock
        self.size_bytes = 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()  # the longest unused first
        self._items: dict[str, tuple[str, Item]] = {}  # item id -> (response id, item)
        self._next_sweep = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps(self) -> bool:
        return self.entries > 0 and self.limit_bytes > 0

    def put(self, stored: Stored) -> None:
        """Keep a response, or what has become of it; others may go for it. One bigger than the bound is not kept."""
        self._drop(stored.id)
        stored.conversation_bytes = stored.history_bytes + len(dumps([stored.input, stored.response]))
        stored.size_bytes = stored.conversation_bytes + (stored.log.size_bytes if stored.log else 0)
        if stored.forgotten or not self.entries or stored.size_bytes > self.limit_bytes:
            return
        stored.expires = self._clock() + self.ttl_s if self.ttl_s else float("inf")
        self._kept[stored.id] = stored
        self.size_bytes += stored.size_bytes
        for item in (*stored.input, *stored.response["output"]):
            self._items[item["id"]] = (stored.id, item)
        self._sweep()
        self._evict()

    def get(self, id: str, owner: str) -> Stored | None:
        """The response, if it is kept and this owner's."""
        self._sweep()
        stored = self._kept.get(id)
        if stored is None or stored.owner != owner or stored.expires <= self._clock():
            return None
        self._kept.move_to_end(id)
        return stored

    def remove(self, id: str, owner: str) -> Stored | None:
        """Forget a response; what it was."""
        stored = self.get(id, owner)
        if stored is not None:
            stored.forgotten = True
            self._drop(id)
        return stored

    def item(self, id: str, owner: str) -> Item | None:
        """An input or output item of a kept response."""
        response, item = self._items.get(id, ("", None))
        return item if item is not None and self.get(response, owner) is not None else None

    def _drop(self, id: str) -> None:
        stored = self._kept.pop(id, None)
        if stored is None:
            return
        self.size_bytes -= stored.size_bytes
        for item in (*stored.input, *stored.response["output"]):
            if self._items.get(item["id"], ("",))[0] == id:
                del self._items[item["id"]]

    def _evict(self) -> None:
        if len(self._kept) <= self.entries and self.size_bytes <= self.limit_bytes:
            return
        for stored in [each for each in self._kept.values() if each.over.is_set()]:
            self._drop(stored.id)
            if len(self._kept) <= self.entries and self.size_bytes <= self.limit_bytes:
                return

    def _sweep(self) -> None:
        """Free what has expired, not more often than it is worth."""
        now = self._clock()
        if not self.ttl_s or now < self._next_sweep:
            return
        self._next_sweep = now + self.ttl_s / 100
        for stored in [each for each in self._kept.values() if each.expires <= now and each.over.is_set()]:
            self._drop(stored.id)
