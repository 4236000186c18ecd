"""Who owns which KV block. Knows numbers and hashes, never arrays.

A block is in exactly one of three states:

    held     refs > 0, in no queue
    cached   refs == 0, has a hash, waits in `idle` until it is evicted or revived
    blank    refs == 0, no hash, waits in `idle`

`idle` is ordered oldest first, so taking from its front evicts the least recently used. A sequence hands its blocks
back last block first, so a continuation is always evicted before the prefix it hangs on.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b


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


class BlockPool:
    """`count` blocks of `size` positions each. Belongs to the engine thread."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.refs = [0] * count
        self.hash: list[bytes | None] = [None] * count
        self.by_hash: dict[bytes, int] = {}
        # not a dict: taking from the front must be O(1)
        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self.pins: dict[str, list[int]] = {}
        self._pin_refs: Counter[int] = Counter()
        self.reclaimable = 0  # blocks in the cached state
        self.evictions = 0

    @property
    def available(self) -> int:
        """Blocks that take() could hand out now."""
        return len(self.idle)

    @property
    def pinned(self) -> int:
        """Distinct blocks under any pin."""
        return len(self._pin_refs)

    @property
    def live(self) -> int:
        """Blocks held by a sequence, those that are pinned as well included."""
        refs = self.refs
        return self.count - len(self.idle) - sum(refs[b] == pins for b, pins in self._pin_refs.items())

    # -- the prefix cache -------------------------------------------------------------------------

    def match(self, hashes: list[bytes]) -> list[int]:
        """The longest run of leading blocks still known. Holds nothing; share() keeps them."""
        found, by_hash = [], self.by_hash
        for h in hashes:
            block = by_hash.get(h)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: int, h: bytes) -> None:
        """Offer a held block's content to later requests. An equal block that is known already stays the known one."""
        if h not in self.by_hash:
            self.by_hash[h] = block
            self.hash[block] = h

    def reset(self) -> None:
        """Forget every hash and every pin; blocks held by sequences stay theirs."""
        for name in list(self.pins):
            self.unpin(name)
        for block in self.by_hash.values():
            self.hash[block] = None
        self.by_hash.clear()
        self.reclaimable = 0

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
                self.reclaimable -= self.hash[b] is not None
            self.refs[b] += 1

    def take(self, count: int) -> list[int] | None:
        """`count` blocks with one holder and no content, or None (and nothing changed) where there are too few."""
        if count > len(self.idle):
            return None
        taken = []
        for _ in range(count):
            b, _ = self.idle.popitem(last=False)
            h = self.hash[b]
            if h is not None:
                del self.by_hash[h]
                self.hash[b] = None
                self.reclaimable -= 1
                self.evictions += 1
            self.refs[b] = 1
            taken.append(b)
        return taken

    def release(self, blocks: list[int]) -> None:
        """One holder less, last block first: a prefix must outlive its continuations."""
        for b in reversed(blocks):
            self.refs[b] -= 1
            if self.refs[b] == 0:
                self.idle[b] = None
                self.reclaimable += self.hash[b] is not None

    # -- pins -------------------------------------------------------------------------------------

    def pin(self, name: str, blocks: list[int]) -> None:
        """Keep known blocks under a name; what the name held before is let go."""
        self.share(blocks)
        self.unpin(name)
        self.pins[name] = list(blocks)
        self._pin_refs.update(blocks)

    def unpin(self, name: str) -> None:
        """Let go of a name's blocks. A name nobody pinned is none of anyone's business."""
        blocks = self.pins.pop(name, [])
        for b in blocks:
            self._pin_refs[b] -= 1
            if not self._pin_refs[b]:
                del self._pin_refs[b]
        self.release(blocks)

    def pinned_prefix(self, hashes: list[bytes]) -> int:
        """How many leading blocks of this chain are pinned, and so can be shared at any time."""
        length = 0
        for b in self.match(hashes):
            if b not in self._pin_refs:
                break
            length += 1
        return length

    # -- for tests and after failures -------------------------------------------------------------

    def check(self, holders: Iterable[list[int]]) -> None:
        """Assert every invariant above. holders: the block lists of all sequences."""
        held = [0] * self.count
        for blocks in [*holders, *self.pins.values()]:
            for b in blocks:
                held[b] += 1
        assert held == self.refs, "a block is leaked or was freed twice"
        assert len(self.idle) == held.count(0) and not any(held[b] for b in self.idle), "idle queue and refs disagree"
        assert all(self.hash[b] == h for h, b in self.by_hash.items()), "a hash points to a block of other content"
        assert len(self.by_hash) == self.count - self.hash.count(None), "a block has a hash nobody can find"
        assert self.reclaimable == sum(held[b] == 0 for b in self.by_hash.values()), "reclaimable blocks are miscounted"
        assert self._pin_refs == Counter(b for blocks in self.pins.values() for b in blocks), "pins are miscounted"
