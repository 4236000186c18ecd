"""Who owns which KV block, and what lies in it. Knows numbers, hashes and tokens, never arrays.

A block is in exactly one of three states:

    held     refs > 0, in no queue
    cached   refs == 0, its content is known, waits in `idle` until it is evicted or revived
    blank    refs == 0, without content, lies in `blank`

A pool may grow: then there are fewer blocks at first than there may be, and more are asked for before any is evicted.

Known blocks form trees: each goes on from the block before it, the first ones from their salt. Whoever holds a known
block holds the one before it too, because equal blocks become one as soon as they are full (`publish`). So a block is
never idle before those behind it are, and since blocks are handed back last one first, `idle`, oldest first, always has
a leaf of the trees at its front: what is evicted is what was used least recently, and never what something hangs on.

A hash only finds a block; what is taken from the cache was compared token by token, up to the salt.

Positions may have other numbers where they were read, as a prompt's, than where they were written, as an output's. What
is read may be taken as either, but what a sequence has written itself it never exchanges for what others have read.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

SIBLINGS = 16  # continuations of one block that are looked at for a common beginning, latest first


def chain(tokens: list[int], size: int, salt: bytes, known: list[bytes]) -> list[bytes]:
    """Hash every full block of `tokens`, each over its tokens and all that came before. Extends and returns `known`.

    The salt is hashed in a domain of its own, so no choice of salt equals the hash of some block.
    """
    full = len(tokens) // size
    if len(known) >= full:
        return known
    parent = known[-1] if known else blake2b(salt, person=b"imp salt").digest()
    for i in range(len(known), full):
        body = array("i", tokens[i * size : (i + 1) * size]).tobytes()
        parent = blake2b(parent + body, digest_size=32, person=b"imp block").digest()
        known.append(parent)
    return known


def common(first: list[int], second: list[int]) -> int:
    """How many leading tokens two lists share."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


@dataclass(slots=True)
class Content:
    """What is known of a block."""

    tokens: list[int]  # of its computed positions
    before: int | bytes  # the block it goes on from; of a first block the salt
    read: int  # so many of its positions, the first ones, were a prompt's; the others were an output's
    hash: bytes | None = None  # None: it is not full
    lasting: bool = False  # full, and others may want it: worth being kept elsewhere
    behind: dict[int, None] = field(default_factory=dict)  # known blocks that go on from it, latest last


class BlockPool:
    """`count` blocks of `size` positions each. Belongs to the engine thread.

    most: what `count` may grow to.   grant: how many more there may be, asked for so many: 0 where memory is short.
    tells_apart: what was read is not quite what was written; else all positions count as read.
    """

    def __init__(
        self,
        count: int,
        size: int,
        most: int = 0,
        grant: Callable[[int], int] | None = None,
        tells_apart: bool = False,
    ) -> None:
        self.count = count
        self.size = size
        self.most = max(count, most)
        self.grant = grant or _all_of
        self.tells_apart = tells_apart
        self.refs = [0] * count
        self.content: list[Content | None] = [None] * count
        self.by_hash: dict[bytes, int] = {}
        # not a dict: taking from the front must be O(1)
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.blank = list(reversed(range(count)))
        self.pins: OrderedDict[int, list[int]] = OrderedDict()  # by their last block, oldest first
        self._pin_refs: Counter[int] = Counter()
        self.known = 0  # blocks whose content is known, whoever holds them
        self.evictions = 0
        # told of lasting blocks, with their hashes: that one was filled, and that one is about to be evicted
        self.on_filled: Callable[[int, bytes], None] = _unwatched
        self.on_leaving: Callable[[int, bytes], None] = _unwatched

    @property
    def available(self) -> int:
        """Blocks that take() could hand out now."""
        return len(self.idle) + len(self.blank)

    @property
    def reclaimable(self) -> int:
        """Blocks in the cached state."""
        return len(self.idle)

    @property
    def pinned(self) -> int:
        """Distinct blocks under any pin."""
        return len(self._pin_refs)

    @property
    def live(self) -> int:
        """Blocks held by a sequence, those that are pinned as well included."""
        refs = self.refs
        return self.count - self.available - sum(refs[b] == pins for b, pins in self._pin_refs.items())

    # -- the prefix cache -------------------------------------------------------------------------

    def match(self, hashes: list[bytes], tokens: list[int], salt: bytes) -> list[int]:
        """The longest run of leading blocks still known. Holds nothing; share() keeps them.

        hashes: of the blocks wanted.   tokens: theirs, and any that follow.
        """
        found, size = [], self.size
        before: int | bytes = salt
        for i, h in enumerate(hashes):
            block = self.by_hash.get(h)
            if block is None or not self._holds(block, tokens[i * size : (i + 1) * size], before):
                break
            found.append(block)
            before = block
        return found

    def beginning(self, before: int, tokens: list[int], read: int) -> tuple[int, int] | None:
        """(block, rows): the known block behind `before` that shares most leading tokens, and how many; None: none.

        read: as many of the tokens are a prompt's; those behind them must have been written in the block as well."""
        there = self.content[before]
        best = None
        for block in islice(reversed(there.behind), SIBLINGS) if there else ():
            content = self.content[block]
            assert content is not None
            rows = common(content.tokens, tokens)
            if rows > read != content.read:
                rows = read
            if rows > (best[1] if best else 0):
                best = block, rows
        return best

    def publish(
        self,
        block: int,
        h: bytes,
        tokens: list[int],
        before: int | bytes,
        read: int,
        lasting: bool = False,
    ) -> int:
        """Offer a full block to later requests. Returns the block to hold from now on: this one, or an equal one that
        was known already and is held in its place. One that is known with other positions `read` is not, unless all
        of this one's are; nobody finds this one then, nor what goes on from it."""
        if not self._reaches(before):
            return block
        known, own = self.by_hash.get(h), self.content[block]
        if known == block:
            return block
        if known is None:
            if own is None:
                self._know(block, Content(tokens, before, read, h, lasting))
            else:  # it was offered while it filled
                own.tokens, own.hash, own.lasting = tokens, h, lasting
            self.by_hash[h] = block
            if lasting:
                self.on_filled(block, h)
            return block
        if not self._holds(known, tokens, before) or not self.serves(known, read):
            return block
        self.share([known])
        self._forget(block)
        self.release([block])
        return known

    def serves(self, block: int, read: int) -> bool:
        """Whether a sequence may hold this known block where so many of its positions are its prompt's."""
        content = self.content[block]
        return content is not None and (read == self.size or content.read == read)

    def offer(self, block: int, tokens: list[int], before: int, read: int) -> None:
        """Offer the first positions of a held block that is not full; they may be copied, never shared."""
        own = self.content[block]
        if own is not None:
            own.tokens = tokens
        elif self._reaches(before):
            there = self.beginning(before, tokens, read)
            if there is None or there[1] < len(tokens):
                self._know(block, Content(tokens, before, read))

    def reset(self) -> None:
        """Forget all content and every pin; blocks held by sequences stay theirs."""
        while self.unpin_oldest():
            pass
        for block in range(self.count):
            self._forget(block)

    def _holds(self, block: int, tokens: list[int], before: int | bytes) -> bool:
        content = self.content[block]
        return content is not None and content.before == before and content.tokens == tokens

    def _reaches(self, before: int | bytes) -> bool:
        """Whether what goes on from there could ever be found."""
        if isinstance(before, bytes):
            return True
        content = self.content[before]
        return content is not None and content.hash is not None

    def _know(self, block: int, content: Content) -> None:
        self.content[block] = content
        self.known += 1
        before = content.before
        if isinstance(before, int):
            there = self.content[before]
            assert there is not None
            there.behind[block] = None

    def _forget(self, block: int) -> None:
        """Take a block's content out of the cache, and with it what hangs on it."""
        content = self.content[block]
        if content is None:
            return
        if isinstance(content.before, int) and (there := self.content[content.before]):
            del there.behind[block]
        lost = [block]
        while lost:
            block = lost.pop()
            content = self.content[block]
            assert content is not None
            lost += content.behind
            if content.hash is not None:
                del self.by_hash[content.hash]
            self.content[block] = None
            self.known -= 1
            if block in self.idle:
                del self.idle[block]
                self.blank.append(block)

    # -- holding and releasing --------------------------------------------------------------------

    def idle_among(self, blocks: list[int]) -> int:
        """How many of `blocks` share() would take out of the idle queue."""
        refs = self.refs
        return sum(refs[b] == 0 for b in blocks)

    def share(self, blocks: list[int]) -> None:
        """One more holder for each of these known or held blocks."""
        for b in blocks:
            if self.refs[b] == 0:
                del self.idle[b]
            self.refs[b] += 1

    def take(self, count: int) -> list[int] | None:
        """`count` blocks with one holder and no content, or None (and nothing changed) where there are too few."""
        if count > len(self.blank):
            self._grow(count - len(self.blank))
        if count > self.available:
            return None
        while len(self.blank) < count:
            self._evict(next(iter(self.idle)))
        taken = [self.blank.pop() for _ in range(count)]
        for b in taken:
            self.refs[b] = 1
        return taken

    def make_available(self, count: int) -> bool:
        """Whether take() could hand out so many, for which the pool grows if it must."""
        if count > self.available:
            self._grow(count - self.available)
        return count <= self.available

    def _grow(self, wanted: int) -> None:
        """By a quarter where that is more, so that it is rare."""
        most = self.most - self.count
        if most <= 0:
            return
        more = self.grant(min(max(wanted, self.count // 4), most))
        self.blank[:0] = reversed(range(self.count, self.count + more))
        self.refs += [0] * more
        self.content += [None] * more
        self.count += more

    def _evict(self, block: int) -> None:
        content = self.content[block]
        if content is not None and content.lasting and content.hash is not None:
            self.on_leaving(block, content.hash)
        self._forget(block)
        self.evictions += 1

    def release(self, blocks: list[int]) -> None:
        """One holder less, last block first: a prefix must outlive its continuations."""
        for b in reversed(blocks):
            self.refs[b] -= 1
            if self.refs[b] == 0:
                if self.content[b] is None:
                    self.blank.append(b)
                else:
                    self.idle[b] = None

    # -- pins -------------------------------------------------------------------------------------

    def pin(self, blocks: list[int], budget: int) -> None:
        """Keep leading blocks of a prompt, `budget` of them at most; the oldest pins go where all together are more.

        A pin that is a part of this one is spent with it.
        """
        blocks = blocks[:budget]
        if not blocks:
            return
        self.share(blocks)
        for block in blocks:
            self._unpin(block)
        self.pins[blocks[-1]] = blocks
        self._pin_refs.update(blocks)
        while len(self._pin_refs) > budget:
            self.unpin_oldest()

    def unpin_oldest(self) -> bool:
        """Let go of the oldest pin; False: there is none."""
        if not self.pins:
            return False
        self._unpin(next(iter(self.pins)))
        return True

    def _unpin(self, last: int) -> None:
        blocks = self.pins.pop(last, [])
        for b in blocks:
            self._pin_refs[b] -= 1
            if not self._pin_refs[b]:
                del self._pin_refs[b]
        self.release(blocks)

    # -- for tests and after failures -------------------------------------------------------------

    def check(self, holders: Iterable[list[int]]) -> None:
        """Assert every invariant above. holders: the block lists of all sequences."""
        held = [0] * self.count
        for blocks in [*holders, *self.pins.values()]:
            for b in blocks:
                held[b] += 1
        assert held == self.refs, "a block is leaked or was freed twice"
        known = {b: content for b, content in enumerate(self.content) if content is not None}
        assert set(self.idle) == {b for b in known if not held[b]}, "idle queue, refs and contents disagree"
        free = {b for b in range(self.count) if not held[b] and b not in known}
        assert len(self.blank) == len(free) and set(self.blank) == free, "blank blocks are miscounted"
        full = {content.hash: b for b, content in known.items() if content.hash is not None}
        assert self.by_hash == full and self.known == len(known), "a hash points to a block of other content"
        for b, content in known.items():
            assert (len(content.tokens) == self.size) == (content.hash is not None), "a block is full, or it is not"
            if isinstance(content.before, int):
                assert b in known[content.before].behind, "a block hangs on one that does not know it"
            assert all(known[c].before == b for c in content.behind), "a block knows one that does not hang on it"
            assert content.hash is not None or not content.behind, "something hangs on a block that is not full"
        assert self._pin_refs == Counter(b for blocks in self.pins.values() for b in blocks), "pins are miscounted"
        seen: set[int] = set()
        for b in self.idle:
            assert seen.issuperset(known[b].behind), "a block would be evicted before those behind it"
            seen.add(b)


def _all_of(wanted: int) -> int:
    return wanted


def _unwatched(block: int, h: bytes) -> None: ...
