"""What lies below the pool: full blocks go down, and come up again when a prompt that is let in goes on with them.

Down: a block that was filled is copied for the folder's writer, as soon as the writer has room; one that the pool gives
up for another goes on the shelf. Up: a waiting sequence whose next blocks lie below is passed over (`awaited`) while
a thread reads them, portion by portion; each portion is put into blocks of the pool between two steps, where they are
published as if they had been computed. So whoever is let in finds them there, steps go on meanwhile, and nothing that
is damaged or missing is more than a shorter hit.

Everything here belongs to the engine thread but `_fetch` and `close`. Blocks that have come up are held until all have.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore, Thread

from imp.sched.blocks import BlockPool
from imp.sched.stats import TierStats
from imp.types import Sequence

from . import folder as disk
from . import shelf as memory
from .blockfile import Label
from .folder import BlockFolder
from .shelf import BlockShelf

log = logging.getLogger("imp.tiers")

PORTION_BYTES = 1 << 20  # handed over at once, about
AHEAD = 1  # portions that are taken in between two steps: more is felt by those who decode
COPIED_BYTES = 4 << 20  # at most, for the writer between two steps
CLOSE_S = 10.0

Letter = Callable[[], object]


@dataclass(eq=False, slots=True)
class Ascent:
    """Blocks on their way up.   labels: in the order of the prompt, from its block `first` on.   held: the blocks
    before that, and what has come."""

    seq: Sequence
    labels: list[Label]
    first: int
    held: list[int]
    over: bool = False


class Below:
    """read(block) -> its content, a copy.   write(block, content): for a block that nobody reads.   owner: 32 bytes.

    At least one of `folder` and `shelf` is there.
    """

    def __init__(
        self,
        pool: BlockPool,
        owner: bytes,
        content_bytes: int,
        read: Callable[[int], memoryview],
        write: Callable[[int, memoryview], None],
        folder: BlockFolder | None,
        shelf: BlockShelf | None,
    ) -> None:
        self.pool, self.owner, self.folder, self.shelf = pool, owner, folder, shelf
        self._read, self._write = read, write
        self._portion = max(1, PORTION_BYTES // content_bytes)
        self._copied = max(1, COPIED_BYTES // content_bytes)
        self._filled: OrderedDict[bytes, int] = OrderedDict()  # hash -> block: to be copied for the writer
        self._ascent: Ascent | None = None
        self._post: Callable[[Letter], object] = _undelivered
        self._permits = Semaphore(AHEAD)  # for portions; what is taken in gives its own back with the next step
        self._taken_in = 0
        self._wants: SimpleQueue[Ascent | None] = SimpleQueue()  # None: the end
        self._reader: Thread | None = None
        self._closed = False
        if folder is not None:
            pool.on_filled = self._on_filled
            folder.on_room = self._on_room
        pool.on_leaving = self._on_leaving

    def connect(self, post: Callable[[Letter], object]) -> None:
        """From now on letters are run by the engine thread between two steps, followed by `turn`."""
        self._post = post
        self._reader = Thread(target=self._fetch, name="kv reader", daemon=True)
        self._reader.start()

    # -- down -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Between two steps: let more portions come, and copy what was filled, as far as the writer has room."""
        if self._taken_in:
            self._permits.release(self._taken_in)
            self._taken_in = 0
        folder = self.folder
        if folder is None:
            return
        for _ in range(self._copied):
            if not self._filled or not folder.has_room:
                return
            hash, block = self._filled.popitem(last=False)
            if not folder.keeps(hash):
                folder.put(self._label(block), self._read(block))
        if self._filled:
            self._post(_look_again)

    def _on_room(self) -> None:
        """The writer's thread tells."""
        if self._filled:
            self._post(_look_again)

    def _on_filled(self, block: int, hash: bytes) -> None:
        self._filled[hash] = block

    def _on_leaving(self, block: int, hash: bytes) -> None:
        """The block is about to be taken for something else, and has its content still."""
        waits = self._filled.pop(hash, None) is not None
        label, content = self._label(block), None
        if waits and self.folder is not None and not self.folder.keeps(hash):
            if self.folder.has_room:
                content = self._read(block)
                self.folder.put(label, content)
            else:
                self.folder.lose()
        if self.shelf is not None:
            self.shelf.put(label, content or self._read(block))

    def _label(self, block: int) -> Label:
        content = self.pool.content[block]
        assert content is not None and content.hash is not None
        return Label(self.owner, content.hash, tuple(content.tokens))

    # -- up ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether something is on its way up: `awaited` will have another answer after some letter."""
        return self._ascent is not None

    def awaited(self, seq: Sequence, wanted: list[bytes], found: list[int]) -> bool:
        """Whether a waiting sequence should wait for blocks from below.   wanted: hashes of those that it could share.
        found: those of them, the first ones, that the pool has."""
        if seq.looked_below or self._reader is None or not self._known(wanted[len(found) : len(found) + 1]):
            return False
        if self._ascent is None:
            self._begin(seq, wanted, found)
        return True

    def _begin(self, seq: Sequence, wanted: list[bytes], found: list[int]) -> None:
        size, first = self.pool.size, len(found)
        there = self._known(wanted[first:])
        tokens = [tuple(seq.tokens[i * size : (i + 1) * size]) for i in range(first, first + len(there))]
        labels = [Label(self.owner, hash, own) for hash, own in zip(there, tokens, strict=True)]
        self.pool.share(found)
        self._ascent = Ascent(seq, labels, first, list(found))
        self._wants.put(self._ascent)

    def _known(self, hashes: list[bytes]) -> list[bytes]:
        """The first of these that lie below, up to one that does not."""
        known: list[bytes] = []
        for hash in hashes:
            if not (self.shelf and self.shelf.knows(hash)) and not (self.folder and self.folder.knows(hash)):
                break
            known.append(hash)
        return known

    def _arrived(self, ascent: Ascent, contents: list[memoryview]) -> None:
        self._taken_in += 1
        for content in contents:
            if ascent.over:
                return
            ascent.over = not self._take_in(ascent, content)

    def _take_in(self, ascent: Ascent, content: memoryview) -> bool:
        """Put one block into the pool. False: there is no room for it."""
        taken = self.pool.take(1)
        if taken is None:
            return False
        held = ascent.held
        label = ascent.labels[len(held) - ascent.first]
        before = held[-1] if held else ascent.seq.request.salt
        self._write(taken[0], content)
        held.append(self.pool.publish(taken[0], label.hash, list(label.tokens), before, self.pool.size, lasting=True))
        return True

    def _finished(self, ascent: Ascent) -> None:
        if ascent is self._ascent:
            ascent.seq.looked_below = True
            self._let_go()

    def _let_go(self) -> None:
        ascent, self._ascent = self._ascent, None
        if ascent is not None:
            ascent.over = True
            self.pool.release(ascent.held)

    # -- the rest of the scheduler's --------------------------------------------------------------

    def ended(self, seq: Sequence) -> None:
        """It leaves. What it used is what will be wanted again."""
        if self._ascent is not None and self._ascent.seq is seq:
            self._let_go()
        used = seq.hashes[: seq.published]
        for tier in (self.folder, self.shelf):
            if tier is not None and used:
                tier.touch(used)

    def forget(self) -> None:
        """Everything, for good."""
        self._let_go()
        self._filled.clear()
        for tier in (self.folder, self.shelf):
            if tier is not None:
                tier.forget()

    def held(self) -> list[list[int]]:
        """Blocks it holds, a list for each that is on its way."""
        return [self._ascent.held] if self._ascent else []

    def stats(self) -> tuple[TierStats, ...]:
        return tuple(self._stats())

    def _stats(self) -> Iterator[TierStats]:
        if (shelf := self.shelf) is not None:
            size = shelf.used_bytes, shelf.most_bytes
            yield TierStats(memory.NAME, len(shelf), *size, shelf.stored, shelf.restored, shelf.evicted)
        if (folder := self.folder) is not None:
            size, c = (folder.used_bytes, folder.most_bytes), folder.counts
            yield TierStats(disk.NAME, len(folder), *size, c.stored, c.restored, c.evicted, c.rejected, c.lost)

    # -- threads ----------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """The reader: gets blocks one after the other, and sends them in portions as the engine takes them in."""
        while (ascent := self._wants.get()) is not None:
            try:
                self._fetch_all(ascent)
            except Exception:
                log.exception("KV blocks could not be read")
            self._post(lambda ascent=ascent: self._finished(ascent))  # type: ignore[misc]

    def _fetch_all(self, ascent: Ascent) -> None:
        portion: list[memoryview] = []
        for label in ascent.labels:
            content = None if ascent.over or self._closed else self._fetch_one(label)
            if content is None:
                break
            portion.append(content)
            if len(portion) == self._portion:
                self._send(ascent, portion)
                portion = []
        if portion:
            self._send(ascent, portion)

    def _fetch_one(self, label: Label) -> memoryview | None:
        content = self.shelf.get(label) if self.shelf is not None else None
        return self.folder.read(label) if content is None and self.folder is not None else content

    def _send(self, ascent: Ascent, portion: list[memoryview]) -> None:
        self._permits.acquire()
        self._post(lambda: self._arrived(ascent, portion))

    def distrust(self) -> None:
        """The scheduler is broken: nothing that the pool says is written down any more."""
        self._filled.clear()

    def close(self) -> None:
        """Write what waits, for some seconds at most, and end the threads. The engine thread has ended before."""
        self._closed, self._reader = True, None
        self._wants.put(None)
        self._permits.release(AHEAD)
        until = time.monotonic() + CLOSE_S
        if self.folder is not None:
            self.folder.on_room = _look_again
            while self._filled and time.monotonic() < until:
                self.turn()
                time.sleep(0.005)
            for _ in self._filled:
                self.folder.lose()
            self.folder.close(max(0.0, until - time.monotonic()))


def _look_again() -> None: ...


def _undelivered(letter: Letter) -> None: ...
