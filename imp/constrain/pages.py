"""Memory for arrays that are written soon: in huge pages where the system has them, and touched before it is needed.

A page that is touched first costs a fault: a microsecond in a virtual machine, ten where the host has to find memory
for it too. A row of masks has five pages; a hundred rows have one huge page.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

HUGE = 1 << 21  # bytes of a huge page (x86-64, and AArch64 with pages of 4 KiB)
ASKED = 1 << 22  # NumPy asks for huge pages for allocations from this size on


def zeros(size: int) -> np.ndarray:
    """uint8 [size], all pages there; where that is much, from the beginning of a huge page on."""
    memory = _spacious(size)
    memory.fill(0)
    return memory


def _spacious(size: int) -> np.ndarray:
    if size < HUGE // 4:
        return np.empty(size, np.uint8)
    memory = np.empty(max(size + HUGE, ASKED), np.uint8)  # what is not touched costs nothing
    start = -memory.__array_interface__["data"][0] % HUGE
    return memory[start : start + size]


class Stock:
    """Zeros that a thread of its own has ready before they are asked for. May be used by all threads."""

    def __init__(self) -> None:
        self._ready: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._lock, self._begun = Lock(), False

    def take(self, size: int, keep: int = 1) -> np.ndarray | None:
        """uint8 [size]; None if none are ready. From now on `keep` of that size will be."""
        with self._lock:
            ready = self._ready[size]
            memory = ready.pop() if ready else None
            for _ in range(1 if memory is not None else keep):
                self._asked.put(size)
            if not self._begun:
                Thread(target=_fill, args=(weakref.ref(self), self._asked), name="memory", daemon=True).start()
                self._begun = True
        return memory

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
