"""Who runs and who waits, who holds which blocks, and who has to go when there are too few places or blocks for all.

Admission counts on outputs as long as those that ended lately (lengths.py), never on `max_tokens`: whoever comes in
leaves the others blocks for what they are expected to say still. When they say more, the least urgent sequence gives
its blocks back and waits again; it keeps its tokens, and finds of their KV what nobody has needed since.

A sequence that cannot come in may take the place of others: of those of a less urgent class, and of those whose owner
has then still no less than its own.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from imp.sched.blocks import BlockPool
from imp.sched.lengths import Lengths
from imp.sched.room import Found, offer_rest
from imp.sched.stats import Counters
from imp.sched.turns import outranks, rank
from imp.types import Copy, Sequence


class Places:
    """Belongs to the scheduler. max_rows: sequences that may run at once."""

    def __init__(self, pool: BlockPool, max_rows: int, counters: Counters) -> None:
        self.pool = pool
        self.max_rows = max_rows
        self.waiting: list[Sequence] = []  # both sorted by rank
        self.running: list[Sequence] = []
        self.lengths = Lengths()
        self.copied: list[tuple[Sequence, Copy]] = []  # blocks to be copied in the step in progress, and for whom
        self._counters = counters

    def everyone(self) -> Iterator[Sequence]:
        for queue in (self.running, self.waiting):
            for seq in queue:
                yield seq
                yield from seq.followers

    # -- coming and going -------------------------------------------------------------------------

    def wait(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=rank)

    def enter(self, seq: Sequence, found: Found) -> bool:
        """From `waiting` to `running`, with blocks for all its tokens, where there is room, or others have to make it.

        found: what of it the cache has.   False: it has to wait."""
        while not self._fits(seq, found):
            if self.enter_for_others(seq, found, self.pool.available):
                return True
            if self.running or not self.pool.unpin_oldest():
                return False
        self._come_in(seq, found)
        return True

    def enter_for_others(self, seq: Sequence, found: Found, spare: int) -> bool:
        """The same, but only if others have to go for it.  spare: blocks that it may take beside theirs."""
        victims = self._victims(seq, found, spare)
        for victim in victims:
            self.preempt(victim)
        if victims:
            self._come_in(seq, found)
        return bool(victims)

    def _come_in(self, seq: Sequence, found: Found) -> None:
        self._hold_blocks(seq, found)
        self.waiting.remove(seq)
        insort(self.running, seq, key=rank)

    def preempt(self, seq: Sequence) -> None:
        """From `running` to `waiting`."""
        self.running.remove(seq)
        self._counters.preemptions += 1
        self.drop(seq)
        self.wait(seq)

    def leave(self, seq: Sequence) -> None:
        for queue in (self.running, self.waiting):
            if seq in queue:
                queue.remove(seq)
        self.drop(seq)

    def drop(self, seq: Sequence) -> None:
        """Give the blocks back; the tokens stay."""
        self._forgo_copies([seq])
        offer_rest(self.pool, seq)
        self.pool.release(seq.blocks)
        seq.blocks, seq.computed, seq.published, seq.draft, seq.pooled = [], 0, 0, [], None
        if len(seq.prompt_logprobs) < len(seq.request.prompt):
            seq.prompt_logprobs = []

    def forgo_copies(self) -> None:
        """The step's copies may not have been made: nobody has what was to be copied."""
        self._forgo_copies([seq for seq, _ in self.copied])

    def _forgo_copies(self, seqs: list[Sequence]) -> None:
        for seq in [each for each, _ in self.copied if each in seqs]:
            seq.computed = min(seq.computed, seq.published * self.pool.size)
        self.copied = [(seq, copy) for seq, copy in self.copied if seq not in seqs]

    # -- blocks -----------------------------------------------------------------------------------

    def make_room(self, seq: Sequence) -> bool:
        """Blocks for a decode row. Nobody is preempted for a guess. False: `seq` itself had to go."""
        if self.grow(seq, 1 + len(seq.draft)):
            return True
        seq.draft.clear()
        while not self.grow(seq, 1):
            if len(self.running) == 1 and self.pool.unpin_oldest():
                continue
            victim = self.running[-1]
            self.preempt(victim)
            if victim is seq:
                return False
        return True

    def grow(self, seq: Sequence, count: int) -> bool:
        """Blocks for `count` positions behind those computed. False: there are too few, and none is taken."""
        need = -(-(seq.computed + count) // self.pool.size) - len(seq.blocks)
        taken = self.pool.take(max(need, 0))
        if taken is None:
            return False
        seq.blocks += taken
        return True

    def _hold_blocks(self, seq: Sequence, found: Found) -> None:
        """The block that is copied may be evicted here: nobody writes it before the copy is made."""
        pool, cached = self.pool, found.blocks
        pool.share(cached)
        taken = pool.take(-(-len(seq.tokens) // pool.size) - len(cached))
        assert taken is not None
        if found.rows:
            self.copied.append((seq, (found.source, taken[0])))
            self._counters.copies += 1
        seq.blocks = cached + taken
        seq.published = len(cached)
        seq.computed = len(cached) * pool.size + found.rows

    def growth(self, seq: Sequence) -> int:
        """Blocks it is expected to need beside those for its tokens."""
        tokens, size = len(seq.tokens), self.pool.size
        more = max(min(self.lengths.expected, seq.request.limits.max_tokens) - seq.generated, 1)
        return -(-(tokens + more) // size) - (len(seq.blocks) or -(-tokens // size))

    @property
    def reserved(self) -> int:
        """Blocks that are kept back, when somebody is let in, for what those who run are expected to say still."""
        return min(sum([max(self.growth(seq), 0) for seq in self.running]), self.pool.available)

    def _fits(self, seq: Sequence, found: Found) -> bool:
        return len(self.running) < self.max_rows and self._need(seq, found, self.running) <= self.pool.available

    def _need(self, seq: Sequence, found: Found, beside: list[Sequence]) -> int:
        """Blocks it needs to run beside these. Alone it does with those for its tokens."""
        pool = self.pool
        need = -(-len(seq.tokens) // pool.size) - len(found.blocks) + pool.idle_among(found.blocks)
        if beside:
            need += self.growth(seq) + sum([max(self.growth(each), 0) for each in beside])
        return need

    # -- who has to go ----------------------------------------------------------------------------

    def _victims(self, seq: Sequence, found: Found, spare: int) -> list[Sequence]:
        """Those who run that have to go for it, the least urgent first; none where it would not do.

        spare: blocks that it may take beside theirs."""
        gone: list[Sequence] = []
        beside, wanted = list(self.running), set(found.blocks)
        for victim in self._displaceable(seq):
            gone.append(victim)
            beside.remove(victim)
            spare += sum([self.pool.refs[b] == 1 and b not in wanted for b in victim.blocks])
            if len(beside) < self.max_rows and self._need(seq, found, beside) <= spare:
                return gone
        return []

    def _displaceable(self, seq: Sequence) -> Iterator[Sequence]:
        """Those who run that may have to go for it, the least urgent first."""
        fair = _Shares(self, seq)
        for victim in reversed(self.running):
            if outranks(seq, victim) or fair.gives(victim):
                yield victim


class _Shares:
    """What of places and blocks each owner has, while somebody looks for those who have more than he."""

    def __init__(self, places: Places, seq: Sequence) -> None:
        self.places, self.seq = places, seq
        self.used: dict[str, float] = {}
        if any(each.request.owner != seq.request.owner for each in places.running):
            for each in places.running:
                self.used[each.request.owner] = self.used.get(each.request.owner, 0.0) + self._of(each)
        self.own = self.used.pop(seq.request.owner, 0.0) + self._of(seq)

    def _of(self, seq: Sequence) -> float:
        places = self.places
        blocks = len(seq.blocks) or -(-len(seq.tokens) // places.pool.size)
        return max(1.0 / places.max_rows, blocks / places.pool.count)

    def gives(self, victim: Sequence) -> bool:
        """Its owner has no less than the other one when it is gone, and it is in no more urgent class."""
        owner = victim.request.owner
        left = self.used.get(owner, 0.0) - self._of(victim)
        if left < self.own or victim.request.priority < self.seq.request.priority:
            return False
        self.used[owner] = left
        return True
