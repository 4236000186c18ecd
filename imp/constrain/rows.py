"""Memory for masks: rows of a vocabulary's length, handed out and taken back one by one, at addresses that never move.

Rows of all grammars of a vocabulary have one numbering, so that a copy of them may be kept elsewhere (on a GPU).
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from .pages import Stock

CHUNK_BYTES, CHUNK_ROWS = 1 << 22, 256  # that are allocated together, at most
CHUNKS = 1 << 12
STOCKED = 1 << 20  # bytes of a chunk from which on some are kept ready


class RowPool:
    """May be used by all threads."""

    def __init__(self, words: int) -> None:
        """words: uint32 words of a row."""
        self.words, self.stock = words, Stock()
        self.chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // (4 * words)))
        self.addresses = np.zeros(CHUNKS, np.int64)  # of every chunk, for machine code
        self._chunks: list[np.ndarray] = []
        self._free: list[int] = []  # zeros
        self._returned: list[int] = []  # to be made zeros again
        self._lock = Lock()

    def take(self, count: int) -> list[int]:
        """`count` rows that are nobody's, all zeros."""
        with self._lock:
            self._provide(count)
            taken = self._free[-count:]
            del self._free[-count:]
            return taken

    def reserve(self, count: int) -> None:
        """See to it that `count` rows are free: in a worker, so that no mask waits for it."""
        with self._lock:
            self._provide(count)

    def give_back(self, rows: list[int]) -> None:
        with self._lock:
            self._returned += rows

    def __getitem__(self, row: int) -> np.ndarray:
        """uint32 [words], a view."""
        return self._chunks[row // self.chunk_rows][row % self.chunk_rows]

    def address(self, row: int) -> int:
        """Where row `row` begins."""
        return int(self.addresses[row // self.chunk_rows]) + row % self.chunk_rows * self.words * 4

    @property
    def size_bytes(self) -> int:
        return len(self._chunks) * self.chunk_rows * self.words * 4

    def _provide(self, count: int) -> None:
        while len(self._free) < count:
            if self._returned:
                self._free.append(self._returned.pop())
                self[self._free[-1]].fill(0)
            else:
                self._allocate()

    def _allocate(self) -> None:
        number = len(self._chunks)
        if number == CHUNKS:
            raise MemoryError(f"more than {CHUNKS * self.chunk_rows} masks are in use")
        size = self.chunk_rows * self.words * 4
        if size >= STOCKED:
            self.stock.keep(size, 2)
        chunk = self.stock.take(size).view(np.uint32).reshape(self.chunk_rows, self.words)
        self._chunks.append(chunk)
        self.addresses[number] = chunk.ctypes.data
        first = number * self.chunk_rows
        self._free += range(first + self.chunk_rows - 1, first - 1, -1)
