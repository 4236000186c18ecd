"""KV blocks in main memory: those that the pool gave up for others, the least recently used going first.

What is on the shelf is in the pool no more, mostly, so the two together hold as much as both. `put` and `forget` are
the engine thread's; `get` may come from another at the same time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from .blockfile import Label

NAME = "memory"


class BlockShelf:
    """most_bytes: of all contents together."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = self.stored = self.restored = self.evicted = 0
        self._lock = Lock()
        self._blocks: OrderedDict[bytes, tuple[tuple[int, ...], memoryview]] = OrderedDict()  # least recent first

    def __len__(self) -> int:
        return len(self._blocks)

    def knows(self, hash: bytes) -> bool:
        return hash in self._blocks

    def put(self, label: Label, content: memoryview) -> None:
        """Keep a block; `content` is not changed any more."""
        with self._lock:
            self._drop(label.hash)
            self._blocks[label.hash] = label.tokens, content
            self.used_bytes += len(content)
            self.stored += 1
            while self.used_bytes > self.most_bytes:
                self._drop(next(iter(self._blocks)))
                self.evicted += 1

    def get(self, label: Label) -> memoryview | None:
        """The content of a block, where it is here and of these tokens."""
        with self._lock:
            tokens, content = self._blocks.get(label.hash, ((), memoryview(b"")))
            if tokens != label.tokens:
                return None
            self.restored += 1
            return content

    def touch(self, hashes: Sequence[bytes]) -> None:
        """These blocks, each behind the one before, are in use: what they begin with is the last to go."""
        with self._lock:
            for hash in reversed(hashes):
                if hash in self._blocks:
                    self._blocks.move_to_end(hash)

    def forget(self) -> None:
        with self._lock:
            self._blocks.clear()
            self.used_bytes = 0

    def _drop(self, hash: bytes) -> None:
        known = self._blocks.pop(hash, None)
        if known is not None:
            self.used_bytes -= len(known[1])
