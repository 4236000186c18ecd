"""How much Python code may run beside streams: code that nobody's next token waits for, such as compiling a schema.

Python code of one thread holds up all others, and takes a core from the kernels. So whoever has much to do does it in
pieces of a millisecond, and says after each how long it took. While something streams, all of it together gets a share
of the time; whoever has used least goes first, so that small work passes large work by.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count
from threading import Condition

SHARE = 0.15  # of one core
BURST_S = 0.02  # at once, after a quiet while
PIECE_S = 0.001
LEAST_S = 0.0002
LOOK_S = 0.05  # how soon is it noticed that nothing streams any more


class SpareTime:
    """For all threads."""

    def __init__(self, busy: Callable[[], bool], share: float = SHARE, burst_s: float = BURST_S) -> None:
        """busy: whether anything streams."""
        self._busy, self._share, self._burst_s = busy, share, burst_s
        self._left_s, self._read_at = burst_s, time.monotonic()
        self._waiting: list[tuple[float, int]] = []  # a heap of what those who wait have used, and when they came
        self._numbers = count()
        self._changed = Condition()

    def job(self, stop: Callable[[], bool] = lambda: False) -> Job:
        """stop: whether it is not wanted any more; then it does not wait."""
        return Job(self, stop)

    def _wait(self, took_s: float, used_s: float, stop: Callable[[], bool]) -> None:
        with self._changed:
            self._refill()
            self._left_s -= took_s
            if (self._left_s > 0 and not self._waiting) or not self._busy():
                return
            entry = (used_s, next(self._numbers))
            heapq.heappush(self._waiting, entry)
            while self._busy() and not stop():
                self._refill()
                first = self._waiting[0] == entry
                if first and self._left_s >= PIECE_S:
                    break
                missing_s = (PIECE_S - self._left_s) / self._share if first else LOOK_S
                self._changed.wait(min(max(missing_s, LEAST_S), LOOK_S))
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
            self._changed.notify_all()

    def _refill(self) -> None:
        now = time.monotonic()
        self._left_s = min(self._burst_s, self._left_s + (now - self._read_at) * self._share)
        self._read_at = now


class Job:
    """One piece of work after the other, by one thread at a time."""

    def __init__(self, spare_time: SpareTime, stop: Callable[[], bool]) -> None:
        self._spare_time, self._stop, self._used_s, self._owed_s = spare_time, stop, 0.0, 0.0

    def rest(self, took_s: float) -> None:
        """So much processor time was used since the last call: wait until there may be more."""
        self._used_s += took_s
        self._owed_s += took_s
        if self._owed_s >= PIECE_S:
            owed_s, self._owed_s = self._owed_s, 0.0
            self._spare_time._wait(owed_s, self._used_s, self._stop)
