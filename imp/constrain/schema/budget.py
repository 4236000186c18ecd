"""How much a schema may cost before it is refused. How long it may take, clock.py says."""

from __future__ import annotations

from ..clock import tick
from ..errors import Code, ConstraintError

SCHEMA_BYTES = 1 << 20
NESTING = 256
NODES = 200_000  # of the automaton, once what is long in it is written
COMBINATIONS = 4096  # conjunctions that one formula may expand to
FORMULAS = 20_000  # values that a schema may tell apart
WORK = 400_000  # pairs of alternatives looked at


class Budget:
    """Counts the work of one compilation; `spend` raises ConstraintError when it is used up."""

    def __init__(self) -> None:
        self._work = 0

    def spend(self, work: int = 1) -> None:
        self._work += work
        if self._work > WORK:
            raise too_large(f"the schema needs more than {WORK} combinations")
        tick(4 * work)


def too_large(reason: str, where: str = "") -> ConstraintError:
    return ConstraintError(Code.TOO_LARGE, where, f"too large: {reason}", "make the schema simpler")
