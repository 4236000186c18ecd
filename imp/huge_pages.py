"""Memory that begins on a huge page, for arrays that are read or written as a whole."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

HUGE = 1 << 21  # bytes (x86-64, and AArch64 with pages of 4 KiB)


def reserve(size: int) -> np.ndarray:
    """uint8 [size], zeros, in huge pages where the system has them. What is not touched costs nothing."""
    # private, because shared anonymous memory is a file in memory, which rarely gets huge pages
    mapped = mmap.mmap(-1, max(size, 1) + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % HUGE
    return memory[start : start + size]
