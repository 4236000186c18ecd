"""Who of those that wait comes in: what the cache has of them, and what below the pool should come up first, is asked
here; whether there is room, places.py knows."""

from __future__ import annotations

from bisect import insort

from imp.sched.blocks import BlockPool
from imp.sched.places import Places
from imp.sched.room import Found, find, hashes_of, read_only, shareable
from imp.sched.shares import shares
from imp.sched.tiers import Below
from imp.sched.turns import Turns, rank
from imp.types import Sequence

LOOKAHEAD = 8  # waiting sequences that are considered in one step


class Admission:
    """Belongs to the scheduler."""

    def __init__(self, pool: BlockPool, places: Places, turns: Turns, below: Below | None) -> None:
        self.pool, self.places, self.turns, self.below = pool, places, turns, below

    def admit(self, prompts: list[Sequence], budget: int) -> None:
        """Let waiting sequences in, and among `prompts`, while there are places, blocks and positions for them.

        A sequence that would get no positions in this step is passed over for those behind it (a short prompt beside
        a long one), and so is one whose next block another prompt is computing: it will find it in the cache. One for
        which there is no room is not, or large ones would wait for ever; but others may come in for whom those go who
        would not go for it.
        """
        places = self.places
        coming = self._blocks_to_come(prompts)
        blocked: set[str] = set()  # owners of those for whom there is no room
        for_blocks = False  # that is what the first of them waits for, else for a place
        for seq in places.waiting[:LOOKAHEAD]:
            if seq.request.owner in blocked:
                continue
            wanted = shareable(self.pool, seq)
            found = find(self.pool, seq, wanted)
            cached = len(found.blocks)
            if not coming.isdisjoint(wanted[cached : cached + 1]) or self._awaited(seq, wanted, found):
                continue
            with_it = prompts.copy()
            insort(with_it, seq, key=rank)
            seq.computed = cached * self.pool.size + found.rows
            granted = shares([s.pending for s in with_it], budget)[with_it.index(seq)]
            seq.computed = 0
            if not granted:
                continue
            if not blocked:
                entered = places.enter(seq, found)
                for_blocks = len(places.running) < places.max_rows
            else:
                entered = places.enter_for_others(seq, found, 0 if for_blocks else self.pool.available)
            if not entered:
                blocked.add(seq.request.owner)
                continue
            self.turns.let_in(seq)
            prompts[:] = [each for each in with_it if each.blocks]  # some may have had to go for it
            coming |= self._blocks_to_come([seq])

    def _awaited(self, seq: Sequence, wanted: list[bytes], found: Found) -> bool:
        """Whether it is better for it to wait for blocks from below. One for which there is no room yet is not helped
        by them, and while some that come hold blocks, nobody's pins go for one that nothing else keeps out."""
        if self.below is None:
            return False
        if self.places.fits(seq, found):
            return self.below.awaited(seq, read_only(self.pool, seq, wanted), found.blocks)
        return self.below.busy and not self.places.running

    def _blocks_to_come(self, prompts: list[Sequence]) -> set[bytes]:
        """Hashes of the blocks that these will publish next."""
        return {h for seq in prompts for h in hashes_of(self.pool, seq)[seq.published : seq.published + 1]}
