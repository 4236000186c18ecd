"""How long a step takes by its positions, as measured: what a guess costs, in steps. Knows no clock: times are given.

What is wanted is a ratio, the time of a step of more positions to that of one of fewer, and both change together as
contexts grow and as others use the machine. So the times are kept as a common scale, which follows every step quickly,
and a shape over the positions, which changes slowly.
"""

from __future__ import annotations

from bisect import bisect_right, insort

SLOPE = 0.45  # of the shape before anything is known: what a position more costs a CPU that computes, beside one alone
FOLLOW = 0.2  # share of a deviation that is the scale's
LEARN = 0.15  # and the shape's, once it is known
WILDEST = 2.0  # a step that is off by more was held up by something else, and counts as off by so much


class StepCosts:
    """Of steps that hold decode rows only."""

    def __init__(self, slope: float = SLOPE) -> None:
        self.slope = slope
        self._scale = 0.0  # 0.0: unknown
        self._shape: dict[int, float] = {1: 1.0}
        self._seen: dict[int, int] = {}
        self._known = [1]  # positions in `_shape`, ascending

    @property
    def scale(self) -> float:
        """Seconds of a step of one position; 0.0: unknown."""
        return self._scale * self._shape[1]

    def of(self, positions: int) -> float:
        """Steps of one position that take as long. Between what was measured, it rises by the slope."""
        return max(self._at(positions) / self._shape[1], 1.0)

    def is_known(self, positions: int) -> bool:
        """Whether a step of so many was measured."""
        return positions in self._seen

    def _at(self, positions: int) -> float:
        found = self._shape.get(positions)
        if found is not None:
            return found
        below = self._known[bisect_right(self._known, positions) - 1]
        return self._shape[below] * (1 + self.slope * (positions - 1)) / (1 + self.slope * (below - 1))

    def learn(self, positions: int, seconds: float) -> None:
        """A step of so many positions took so long."""
        if seconds <= 0:
            return
        shape = self._at(positions)
        if not self._scale:
            self._scale = seconds / shape
        off = min(max(seconds / (self._scale * shape), 1 / WILDEST), WILDEST)
        self._scale *= off**FOLLOW
        seen = self._seen[positions] = self._seen.get(positions, 0) + 1
        if positions not in self._shape:
            insort(self._known, positions)
        self._shape[positions] = shape * off ** max(LEARN, 1 / (seen + 1))
