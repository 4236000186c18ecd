"""Memory for arrays that are written soon: in huge pages where the system has them, and touched before it is needed.

A page that is touched first costs a fault: a microsecond in a virtual machine, ten where the host has to find memory
for it too. A row of masks has five pages; a hundred rows have one huge page.
"""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

from .. import huge_pages

PAGE = 1 << 12  # bytes


def zeros(size: int) -> np.ndarray:
    """uint8 [size], all pages there; where that is much, from the beginning of a huge page on."""
    if size < huge_pages.HUGE // 4:
        return np.zeros(size, np.uint8)
    memory = huge_pages.reserve(size)
    memory[::PAGE] = 0
    return memory


class Stock:
    """Zeros that a thread of its own has ready before they are asked for. May be used by all threads."""

    def __init__(self) -> None:
        self._ready: dict[int, list[np.ndarray]] = {}  # by size, of those that are kept
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._lock, self._begun = Lock(), False

    def keep(self, size: int, count: int) -> None:
        """From now on have `count` of that size ready."""
        with self._lock:
            if size in self._ready:
                return
            self._ready[size] = []
            for _ in range(count):
                self._asked.put(size)
            if not self._begun:
                Thread(target=_fill, args=(weakref.ref(self), self._asked), name="memory", daemon=True).start()
                self._begun = True

    def take(self, size: int) -> np.ndarray:
        """uint8 [size]. Where none is ready, pages come as they are touched."""
        with self._lock:
            ready = self._ready.get(size)
            memory = ready.pop() if ready else None
            if memory is not None:
                self._asked.put(size)
        return np.zeros(size, np.uint8) if memory is None else memory

    def add(self, memory: np.ndarray) -> None:
        with self._lock:
            self._ready[len(memory)].append(memory)

    def __del__(self) -> None:
        self._asked.put(None)


def _fill(stock: weakref.ref[Stock], asked: SimpleQueue[int | None]) -> None:
    """Until the stock is nobody's any more."""
    while (size := asked.get()) is not None:
        memory, keeper = zeros(size), stock()
        if keeper is not None:
            keeper.add(memory)
        del keeper, memory
