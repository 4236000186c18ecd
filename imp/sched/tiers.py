"""What the scheduler asks of blocks that are kept below the pool, wherever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from imp.sched.stats import TierStats
from imp.types import Sequence


class Below(Protocol):
    """Belongs to the engine thread."""

    def connect(self, post: Callable[[Callable[[], object]], object]) -> None:
        """From now on things may happen; what they are for the engine thread is posted, and run between two steps."""

    def turn(self) -> None:
        """Between two steps: what was filled may be copied."""

    @property
    def busy(self) -> bool:
        """Whether a letter will come after which `awaited` has another answer."""

    def awaited(self, seq: Sequence, wanted: list[bytes], found: list[int]) -> bool:
        """Whether a waiting sequence should wait for blocks from below.   wanted: hashes of those that it could share.
        found: those of them, the first ones, that the pool has."""

    def ended(self, seq: Sequence) -> None:
        """It leaves, its blocks being its own still."""

    def forget(self) -> None:
        """Everything, for good."""

    def distrust(self) -> None:
        """The scheduler is broken: nothing that the pool says is kept any more."""

    def held(self) -> list[list[int]]:
        """Lists of blocks that it holds."""

    def stats(self) -> tuple[TierStats, ...]: ...
