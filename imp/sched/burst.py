"""Prompts where nothing decodes: chosen as for one large step, and computed in several short ones.

So whoever comes meanwhile waits for a short step, and not for the large one. Prompts that end in a burst end in its
last step, all together, and then decode together, as they would after the large step. If some ended earlier, the
others had to be computed beside rows that decode, which takes far longer. For the same reason those that come while it
goes on get what is left of the large step's positions: requests that are sent together come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from imp.sched.shares import shares
from imp.types import Sequence

OVER = 4  # a quarter more than is computed soon is still one step


@dataclass(frozen=True, slots=True)
class _Part:
    """What a burst computes of a prompt: its positions before `until`, in the blocks it had when the burst began."""

    seq: Sequence
    blocks: list[int]
    until: int

    @property
    def is_whole(self) -> bool:
        return self.seq.blocks is self.blocks

    @property
    def left(self) -> int:
        return max(self.until - self.seq.computed, 0)

    @property
    def ends(self) -> bool:
        """Whether the prompt's last position is still to come, and is one of them."""
        return self.is_whole and self.until == len(self.seq.tokens)


class Burst:
    """Belongs to the scheduler."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}  # by id of the sequence
        self._spare = 0  # positions that are nobody's yet

    def decoding(self, running: list[Sequence]) -> list[Sequence]:
        """Those that decode. Prompts of which just the end is left are none while they wait for others of a burst,
        which is over as soon as anything decodes."""
        last = [seq for seq in running if seq.computed + 1 == len(seq.tokens)]
        if not self._parts:
            return last
        if all(id(seq) in self._parts and self._parts[id(seq)].ends for seq in last):
            return []
        self.give_up()
        return last

    def give_up(self) -> None:
        """Nothing waits any more for what was chosen."""
        self._parts = {}

    def choose(self, prompts: list[Sequence], budget: int) -> None:
        """Begin one of so many positions of these, sorted by rank, unless one goes on that has none but these: then the
        others join it."""
        mine = {id(seq) for seq in prompts}
        parts = self._parts
        if any(part.left for part in parts.values()) and all(i in mine and parts[i].is_whole for i in parts):
            self._join([seq for seq in prompts if id(seq) not in parts])
            return
        self._parts, self._spare = {}, budget
        self._join(prompts)

    def _join(self, prompts: list[Sequence]) -> None:
        granted = shares([seq.pending for seq in prompts], self._spare)
        for seq, count in zip(prompts, granted, strict=True):
            if count:
                self._parts[id(seq)] = _Part(seq, seq.blocks, seq.computed + count)
        self._spare -= sum(granted)

    def counts(self, prompts: list[Sequence], soon: int) -> list[int]:
        """Positions that each of `prompts` gets in this step.  soon: positions that are computed in a short step."""
        parts = [self._parts.get(id(seq)) for seq in prompts]
        left = [0 if part is None else part.left for part in parts]
        rest = [count - (part is not None and part.ends) for count, part in zip(left, parts, strict=True)]
        if rest == left:
            self.give_up()  # nothing waits for anything: whoever comes has a share of the next step
        if sum(left) <= soon + soon // OVER or not any(rest):
            return left
        return shares(rest, soon)
