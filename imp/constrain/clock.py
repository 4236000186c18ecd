"""The time of what a thread compiles: how much it may take, whether anybody still wants it, and that others get on.

Compiling is Python code beside the event loop and the engine. Its loops that may be long call `tick`. The clock is the
thread's and no argument, since operators and cached functions between the loops take none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import Code, ConstraintError

Stop = Callable[[], bool]  # whether the result is not wanted any more
Rest = Callable[[float], None]  # told the seconds used since it was called last; waits until there may be more
SECONDS = 2.0
TICKS = 256  # of work between two looks at the clock, some quarter of a millisecond


class TimeOver(ConstraintError):
    """The time is over, or nobody wants the result."""


class Clock:
    """Raises TimeOver when the time is over or nobody wants the result. The time is the thread's own, so that
    nothing is refused because others are busy."""

    def __init__(self, seconds: float = SECONDS, stop: Stop = lambda: False, rest: Rest = lambda took_s: None) -> None:
        self.left = TICKS
        self._seconds, self._stop, self._rest = seconds, stop, rest
        self._looked_at = time.thread_time()
        self._deadline = self._looked_at + seconds

    def look(self) -> None:
        now, self.left = time.thread_time(), TICKS
        self._rest(now - self._looked_at)
        self._looked_at = now
        if self._stop():
            raise TimeOver(Code.TOO_LARGE, "", "compiling it was cancelled")
        if now > self._deadline:
            reason = f"too large: compiling it takes more than {self._seconds:g} s"
            raise TimeOver(Code.TOO_LARGE, "", reason, "make it simpler")


class _Thread(threading.local):
    clock: Clock | None = None


_thread = _Thread()


def tick(work: int = 1) -> None:
    """Some work was done, in microseconds or so. ConstraintError where it was the last that could be."""
    clock = _thread.clock
    if clock is not None:
        clock.left -= work
        if clock.left < 0:
            clock.look()


@contextmanager
def timed(seconds: float = SECONDS, stop: Stop = lambda: False, rest: Rest = lambda took_s: None) -> Iterator[None]:
    """What this thread does inside has that long; less where it is part of something that is timed already."""
    if _thread.clock is not None:
        yield
        return
    _thread.clock = Clock(seconds, stop, rest)
    try:
        _thread.clock.look()
        yield
        _thread.clock.look()
    finally:
        _thread.clock = None
