"""Who is prepared next, where several wait: whoever is more urgent, and who has waited for long. Belongs to the loop.

Preparing takes a core and the interpreter's lock from those whose tokens are computed. So while somebody more urgent
waits for a first token, nothing is prepared for others; a crowd that comes at once is prepared behind his back. What
has begun is not waited for: one place more is there for whoever is more urgent than all within.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush

AGE_S = 0.5  # of waiting make up for one class, and are the longest that anybody waits for others' first tokens
LOOK_S = 0.01  # how soon is it noticed that a first token has come


@dataclass(order=True, slots=True)
class _Waiting:
    """Sorted by whose turn it is."""

    due: float
    number: int
    priority: int = field(compare=False)
    since: float = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Precedence:
    """places: how many are prepared at once, but for a more urgent one.   awaited: whether a request more urgent than
    this priority waits for its first token."""

    def __init__(self, places: int, awaited: Callable[[int], bool]) -> None:
        self._places, self._awaited = places, awaited
        self._within: list[int] = []  # the priorities of those who have a place
        self._waiting: list[_Waiting] = []  # a heap
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many wait for a place."""
        return sum(not each.turn.done() for each in self._waiting)

    @asynccontextmanager
    async def place(self, priority: int) -> AsyncIterator[None]:
        """Inside, one of the places is the caller's, whose request has this priority (lower is earlier)."""
        await self._turn_of(priority)
        try:
            yield
        finally:
            self._leave(priority)

    def _leave(self, priority: int) -> None:
        self._within.remove(priority)
        self._go_on()

    async def _turn_of(self, priority: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        own = _Waiting(now + priority * AGE_S, self._count, priority, now, loop.create_future())
        self._count += 1
        heappush(self._waiting, own)
        self._go_on()
        try:
            await own.turn
        except asyncio.CancelledError:
            if not own.turn.cancelled():  # it had its turn already, and does not take it
                self._leave(priority)
            raise

    def _go_on(self) -> None:
        """Give free places to those whose turn it is."""
        waiting = self._waiting
        while waiting and (waiting[0].turn.done() or self._has_place(waiting[0].priority)):
            first = waiting[0]
            if not first.turn.done():
                if self._is_held(first):
                    self._look_later(first.turn.get_loop())
                    return
                self._within.append(first.priority)
                first.turn.set_result(None)
            heappop(waiting)

    def _has_place(self, priority: int) -> bool:
        more = len(self._within) - self._places
        return more < 0 or (more == 0 and priority < min(self._within))

    def _is_held(self, first: _Waiting) -> bool:
        return first.turn.get_loop().time() < first.since + AGE_S and self._awaited(first.priority)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._go_on()
