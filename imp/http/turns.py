"""How long requests that begin may keep the loop from everything else. Belongs to the loop; knows no connections.

Where hundreds come at once, the loop would read them all before it sends another token, or goes on with whoever is more
urgent. So those that begin get some milliseconds of each of its turns, in the order they came.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.002


class Turns:
    """turn_s: what they get of each turn."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._later: deque[Callable[[], None]] = deque()
        self._counting = False  # the turn's end is scheduled
        self._until = 0.0  # time.perf_counter()

    def has_time(self) -> bool:
        """Whether there is time left for one more in this turn of the loop; where not, give it to `later`."""
        if not self._counting:
            self._counting = True
            self._until = time.perf_counter() + self._turn_s
            asyncio.get_running_loop().call_soon(self._go_on)
        return not self._later and time.perf_counter() < self._until

    def later(self, begin: Callable[[], None]) -> None:
        """Called in one of the next turns, after `has_time` was False."""
        self._later.append(begin)

    def _go_on(self) -> None:
        """The next turn has come."""
        until = time.perf_counter() + self._turn_s
        try:
            while self._later:
                self._later.popleft()()
                if time.perf_counter() >= until:
                    break
        finally:
            self._counting = bool(self._later)
            if self._counting:
                asyncio.get_running_loop().call_soon(self._go_on)
