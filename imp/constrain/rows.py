"""Memory for masks: rows of a vocabulary's length, handed out and taken back one by one, at addresses that never move.

Rows of all grammars of a vocabulary have one numbering, so that a copy of them may be kept elsewhere (on a GPU).
"""

from __future__ import annotations

from threading import Lock

import numpy as np

CHUNK = 256  # rows that are allocated together
CHUNKS = 1 << 12


class RowPool:
    """May be used by all threads."""

    def __init__(self, words: int) -> None:
        """words: uint32 words of a row."""
        self.words = words
        self.addresses = np.zeros(CHUNKS, np.int64)  # of every chunk, for machine code
        self._chunks: list[np.ndarray] = []
        self._free: list[int] = []
        self._lock = Lock()

    def take(self, count: int) -> list[int]:
        """`count` rows that are nobody's; what is in them is undefined."""
        with self._lock:
            while len(self._free) < count:
                self._allocate()
            taken = self._free[-count:]
            del self._free[-count:]
            return taken

    def reserve(self, count: int) -> None:
        """See to it that `count` rows are free, their memory touched: in a worker, so that no mask waits for it."""
        with self._lock:
            while len(self._free) < count:
                self._allocate()

    def give_back(self, rows: list[int]) -> None:
        with self._lock:
            self._free += rows

    def __getitem__(self, row: int) -> np.ndarray:
        """uint32 [words], a view."""
        return self._chunks[row // CHUNK][row % CHUNK]

    def address(self, row: int) -> int:
        """Where row `row` begins."""
        return int(self.addresses[row // CHUNK]) + row % CHUNK * self.words * 4

    @property
    def size_bytes(self) -> int:
        return len(self._chunks) * CHUNK * self.words * 4

    def _allocate(self) -> None:
        number = len(self._chunks)
        if number == CHUNKS:
            raise MemoryError(f"more than {CHUNKS * CHUNK} masks are in use")
        chunk = np.empty((CHUNK, self.words), np.uint32)
        chunk.fill(0)  # its pages are there from now on
        self._chunks.append(chunk)
        self.addresses[number] = chunk.ctypes.data
        self._free += range((number + 1) * CHUNK - 1, number * CHUNK - 1, -1)
