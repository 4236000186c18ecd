"""How much a schema may cost before it is refused: work, and time."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import Code, ConstraintError

SCHEMA_BYTES = 1 << 20
NESTING = 256
SECONDS = 2.0
COMBINATIONS = 4096  # conjunctions that one formula may expand to
FORMULAS = 20_000  # values that a schema may tell apart
WORK = 400_000  # pairs of alternatives looked at


class Budget:
    """Counts the work of one compilation, made by one thread; `spend` raises ConstraintError when it is used up.

    The time is the thread's own, so that nothing is refused because others are busy.
    """

    def __init__(self, seconds: float = SECONDS, cancelled: Callable[[], bool] | None = None) -> None:
        self._deadline = time.thread_time() + seconds
        self._cancelled = cancelled
        self._work = self._until_look = 0

    def spend(self, work: int = 1) -> None:
        self._work += work
        if self._work < self._until_look:
            return
        self._until_look = self._work + 64
        if self._work > WORK:
            raise too_large(f"the schema needs more than {WORK} combinations")
        if time.thread_time() > self._deadline:
            raise too_large("compiling the schema takes too long")
        if self._cancelled and self._cancelled():
            raise too_large("compiling the schema was cancelled")


def too_large(reason: str, where: str = "") -> ConstraintError:
    return ConstraintError(Code.TOO_LARGE, where, f"too large: {reason}", "make the schema simpler")
