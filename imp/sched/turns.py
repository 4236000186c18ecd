"""In which order sequences come to their turn: classes, ageing, and fair shares for those who ask.

A sequence's rank is (priority * AGE + stamp, arrival, index), smallest first, and never changes.

Stamps are start-time fair queueing (Goyal, Vin, Cheng 1996). Virtual time is the latest stamp of anyone who has been
let in. A request is stamped with it, or with the end of the work that its owner has asked for in this class before,
whichever is later. So who sends a hundred requests at once queues behind himself, and who comes meanwhile comes next.

Ageing follows from it: virtual time goes on by the work that is let in, so a request is overtaken by those of a class
above it until AGE units of work have passed it for every class of difference, and by nobody after that. A unit is a
request, or UNIT tokens of a longer one.
"""

from __future__ import annotations

from imp.types import Sequence

AGE = 256.0  # units of work that make up for one class
UNIT = 512  # tokens
REMEMBERED = 4096  # owners and classes whose work may lie ahead

Rank = tuple[float, int, int]


def rank(seq: Sequence) -> Rank:
    """Most urgent first."""
    return seq.rank


def outranks(seq: Sequence, other: Sequence) -> bool:
    """Of a more urgent class, and still so after ageing."""
    return seq.request.priority < other.request.priority and seq.rank < other.rank


class Turns:
    """Belongs to the scheduler."""

    def __init__(self) -> None:
        self.now = 0.0  # virtual time
        self._ends: dict[tuple[str, int], float] = {}  # of the work asked for, by owner and priority

    def stamp(self, owner: str, priority: int, tokens: int) -> float:
        """The stamp of a request that will compute about so many tokens."""
        flow = owner, priority
        start = max(self.now, self._ends.pop(flow, 0.0))
        self._ends[flow] = start + max(1.0, tokens / UNIT)
        if len(self._ends) > REMEMBERED:
            self._ends = {each: end for each, end in self._ends.items() if end > self.now}
        return start

    def let_in(self, seq: Sequence) -> None:
        self.now = max(self.now, seq.stamp)
