"""Memory of the KV cache that is there before it is written: a thread that runs where nobody else wants a core.

The system hands out memory when it is first written, cleared, a huge page at a time. In a virtual machine whose host
takes back what is free, that takes 5 ms for each, as long as a decode step, and the step waits for it. So pages a bit
in front of the blocks in use are touched here. Blocks are used from the first one on (sched/blocks.py), and what never
comes near stays untouched: it costs nothing.

The thread never holds the interpreter lock once it has begun: it is the last to get a core, and whoever waited for the
lock would wait as long.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ..model.inputs import StepInputs
from .cache import CompiledKernels
from .emit import I32, V, call, int64, micro
from .kept import BLOCK
from .simd import atomic_add, atomic_load, atomic_store, word

AHEAD_BYTES = 64 << 20  # of all layers together
PARTS = 8  # it is woken when so great a part of that is missing
PAGE = 4096  # bytes, the smallest there are

# Words of the block that is shared with the thread
_WANTED, _USED, _READY, _STOP, _PLANES = range(5)
_NOTHING = 5  # 0, which the compiler does not know: of what adds nothing it makes a load
_SEMAPHORE = 8  # at most 64 bytes on the systems there are
_TABLE = 16  # of each plane: address, bytes of a block


@micro(int64)
def _sleep(semaphore: V) -> None:
    call("sem_wait", I32, semaphore)


def _work(shared):
    while atomic_load(shared + _STOP * 8) == 0:
        block = max(atomic_load(shared + _READY * 8), atomic_load(shared + _USED * 8))
        if block >= atomic_load(shared + _WANTED * 8):
            _sleep(shared + _SEMAPHORE * 8)
            continue
        for plane in range(word(shared, _PLANES)):
            entry = shared + (_TABLE + 2 * plane) * 8
            first = word(entry, 0) + block * word(entry, 1)
            last = first + word(entry, 1) - 8
            while first <= last:
                atomic_add(first // 8 * 8, word(shared, _NOTHING))  # a write that changes nothing, whoever else writes
                first = (first // PAGE + 1) * PAGE
        atomic_store(shared + _READY * 8, block + 1)


class Ahead:
    """Belongs to the engine thread. memory: of all planes.   planes: of each layer, where its blocks begin and the
    bytes of one, a multiple of 8."""

    def __init__(
        self, memory: np.ndarray, planes: Sequence[tuple[int, int]], blocks: int, kernels: CompiledKernels
    ) -> None:
        self._blocks = blocks
        self._ahead = max(AHEAD_BYTES // max(sum(size for _, size in planes), 1), 1)
        self._used = self._wanted = 0
        self._shared = np.zeros(_TABLE + 2 * len(planes), np.int64)
        self._shared[_PLANES] = len(planes)
        self._shared[_TABLE:] = np.array(planes, np.int64).ravel()
        self._c = ctypes.CDLL(None)
        self._semaphore = ctypes.c_void_p(self._shared.ctypes.data + _SEMAPHORE * 8)
        self._shared[_STOP] = self._c.sem_init(self._semaphore, 0, 0) != 0  # a system without them
        entry = ctypes.CFUNCTYPE(None, ctypes.c_int64)  # calls release the interpreter lock
        work = entry(kernels.address("ahead.work", _work, "void(int64)"))
        self._thread = threading.Thread(target=work, args=(self._shared.ctypes.data,), name="kv-ahead", daemon=True)
        self._thread.memory = (memory, self._shared, kernels)  # type: ignore[attr-defined]
        self._thread.start()
        weakref.finalize(self, _stop, self._shared, self._c, self._semaphore).atexit = False

    @property
    def ready(self) -> int:
        """Blocks from the first one on that have memory, or have been used without."""
        return int(self._shared[_READY])

    def used(self, inputs: StepInputs) -> None:
        """This step writes its blocks."""
        self.reached(max(inputs.slots.tolist(), default=-1) // BLOCK + 1)

    def reached(self, blocks: int) -> None:
        """So many blocks, the first ones, are in use."""
        if blocks <= self._used:
            return
        if not self._used:
            self._come_last()
        self._used = blocks
        self._shared[_USED] = blocks
        wanted = min(blocks + self._ahead, self._blocks)
        if wanted - self._wanted >= self._ahead // PARTS or wanted == self._blocks:
            self._wanted = wanted
            self._shared[_WANTED] = wanted
            self._c.sem_post(self._semaphore)

    def close(self) -> None:
        """End the thread. Idempotent."""
        _stop(self._shared, self._c, self._semaphore)
        self._thread.join()

    def _come_last(self) -> None:
        """From now on the thread has a core where nobody else wants it; it has left Python by then."""
        if hasattr(os, "SCHED_IDLE") and self._thread.native_id:
            with suppress(OSError):
                os.sched_setscheduler(self._thread.native_id, os.SCHED_IDLE, os.sched_param(0))


def _stop(shared: np.ndarray, c: ctypes.CDLL, semaphore: ctypes.c_void_p) -> None:
    shared[_STOP] = 1
    c.sem_post(semaphore)
