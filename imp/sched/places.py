"""Who runs and who waits, who holds which blocks, and who has to go when there are too few places or blocks for all.

Admission counts on outputs as long as those that ended lately (lengths.py), never on `max_tokens`: whoever comes in
leaves the others blocks for what they are expected to say still. When they say more, the least urgent sequence gives
its blocks back and waits again; it keeps its tokens, and finds of their KV what nobody has needed since.

A sequence that cannot come in may take the place of others: of those of a less urgent class, and of those whose owner
has then still no less than its own.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator

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
        self._holdings: _Holdings | None = None
        self._growth: int | None = None  # of all that run, in a step

    def everyone(self) -> Iterator[Sequence]:
        for queue in (self.running, self.waiting):
            for seq in queue:
                yield seq
                yield from seq.followers

    def begin_step(self) -> None:
        self.copied, self._holdings, self._growth = [], None, None

    # -- coming and going -------------------------------------------------------------------------

    def wait(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=rank)

    def enter(self, seq: Sequence, found: Found) -> bool:
        """From `waiting` to `running`, with blocks for all its tokens, where there is room, or others have to make it.

        found: what of it the cache has.   False: it has to wait."""
        while not self.fits(seq, found):
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
        self._holdings = None
        self._hold_blocks(seq, found)
        if self._growth is not None:
            self._growth += self.growth([seq])
        self.waiting.remove(seq)
        insort(self.running, seq, key=rank)

    def preempt(self, seq: Sequence) -> None:
        """From `running` to `waiting`."""
        self._holdings = self._growth = None
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
        seq.looked_below = False
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

    def growth(self, seqs: Iterable[Sequence]) -> int:
        """Blocks that these are expected to need beside those they have, or those for their tokens."""
        expected, size, blocks = self.lengths.expected, self.pool.size, 0
        for seq in seqs:
            request, tokens = seq.request, len(seq.tokens)
            most = request.limits.max_tokens
            length = len(request.prompt) + (most if most < expected else expected)
            more = -(-(length if length > tokens else tokens + 1) // size) - (len(seq.blocks) or -(-tokens // size))
            if more > 0:
                blocks += more
        return blocks

    @property
    def reserved(self) -> int:
        """Blocks that are kept back, when somebody is let in, for what those who run are expected to say still."""
        return min(self.growth(self.running), self.pool.available)

    def fits(self, seq: Sequence, found: Found) -> bool:
        """Whether there is a place and there are blocks, with nobody going for it."""
        if len(self.running) == self.max_rows:
            return False
        if self._growth is None:
            self._growth = self.growth(self.running)
        need = self._need(seq, found)
        if self.running:
            need += self._growth + self.growth([seq])
        return self.pool.make_available(need)

    def _need(self, seq: Sequence, found: Found) -> int:
        """Blocks it takes from those that are available. Alone it does with these, whatever it may say."""
        return -(-len(seq.tokens) // self.pool.size) - len(found.blocks) + self.pool.idle_among(found.blocks)

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
            need = self._need(seq, found) + (self.growth([seq, *beside]) if beside else 0)
            if len(beside) < self.max_rows and need <= spare:
                return gone
        return []

    def _displaceable(self, seq: Sequence) -> Iterator[Sequence]:
        """Those who run that may have to go for it, the least urgent first."""
        if self._holdings is None:
            self._holdings = _Holdings(self)
        may_go = self._holdings.claimed_by(seq)
        if may_go is not None:
            yield from filter(may_go, reversed(self.running))


class _Holdings:
    """What of places and blocks the owners of those who run have, as it is in one step until somebody comes or goes."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.used: dict[str, float] = {}
        self.last_class = 0
        for seq in places.running:
            request = seq.request
            self.used[request.owner] = self.used.get(request.owner, 0.0) + self._of(seq)
            self.last_class = max(self.last_class, request.priority)

    def _of(self, seq: Sequence) -> float:
        places = self.places
        blocks = len(seq.blocks) or -(-len(seq.tokens) // places.pool.size)
        return max(1.0 / places.max_rows, blocks / places.pool.count)

    def claimed_by(self, seq: Sequence) -> Callable[[Sequence], bool] | None:
        """Who has to go for it, asked of one after the other; None: nobody.

        Those of less urgent classes, and those whose owner has no less than its owner when they are gone, if they are
        in no more urgent class.
        """
        request, left = seq.request, dict(self.used)
        own = left.pop(request.owner, 0.0) + self._of(seq)
        if request.priority >= self.last_class and own >= max(left.values(), default=0.0):
            return None

        def goes(victim: Sequence) -> bool:
            owner = victim.request.owner
            rest = left.get(owner, 0.0) - self._of(victim)
            if not outranks(seq, victim) and (rest < own or victim.request.priority < request.priority):
                return False
            left[owner] = rest
            return True

        return goes
