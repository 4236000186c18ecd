"""How long outputs are, by those that have ended lately. Admission counts on it; nobody counts on `max_tokens`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 256  # outputs
SHARE = 0.9  # of outputs that are not longer
UNKNOWN = 128  # tokens, before anything has ended


class Lengths:
    """Belongs to the scheduler."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, tokens: int) -> None:
        """An output has ended."""
        self._recent.append(tokens)
        insort(self._sorted, tokens)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def expected(self) -> int:
        """Tokens that nine of ten outputs do not exceed."""
        if not self._sorted:
            return UNKNOWN
        return self._sorted[int(SHARE * (len(self._sorted) - 1))]
