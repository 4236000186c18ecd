"""How much memory the model gets: a plan made before anything is allocated. Knows sizes, never arrays."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import control_groups

BLOCK_SIZE = 16  # positions in one block of the KV cache
_KV_SHARE = 0.25  # of the free memory
ROWS = 64  # sequences of a step, unless said otherwise
_TOKENS_A_ROW = 1024  # typical length of a sequence, when the cache is sized without being told
_MOST_SHARE = 0.75  # of the free memory, for a cache that grows
_REST_S = 1.0
MARGIN = 192 << 20  # left for the buffers of a step, compiled kernels, the tokenizer's process
_DEVICE_SHARE = 0.9  # of what is free on a device: nobody else is expected there
HOST, DEVICE = "host", "device"  # tiers: the machine's memory, and that of a device of its own


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model will occupy. Sizes in bytes."""

    weights_bytes: int
    block_bytes: int
    blocks: int
    rows: int
    context: int
    block_size: int = BLOCK_SIZE
    kv_format: str = ""  # of keys and values
    host_bytes: int = 0  # for blocks that were given up for others
    most_blocks: int = 0  # what `blocks` may grow to; 0: they do not
    tier: str = HOST  # where it is
    work_bytes: int = MARGIN  # beside weights and KV cache

    @property
    def reserved_blocks(self) -> int:
        """Blocks that there must be addresses for."""
        return max(self.blocks, self.most_blocks)

    @property
    def kv_bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def kv_tokens(self) -> int:
        return self.blocks * BLOCK_SIZE


class OutOfMemory(Exception):
    """The machine cannot hold the model: one sentence. Exit code 2."""


class DeviceOutOfMemory(OutOfMemory):
    """The device cannot. Exit code 3."""


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken without swapping: the kernel's estimate, bounded by what the process's control groups
    leave it.  root: where /proc lies."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    granted = control_groups.free_bytes(root)
    return free if granted is None else min(free, granted)


def plan(
    weights_bytes: int,
    block_bytes: int,
    *,
    context: int,
    rows: int,
    blocks: int,
    free_bytes: int,
    kv_format: str = "",
    whole_context: bool = False,
    host_bytes: int = 0,
    growable: bool = False,
    tier: str = HOST,
    work_bytes: int = MARGIN,
) -> MemoryPlan:
    """Blocks for the KV cache: the number asked for, else a share of what is free, else what `rows` usually need.

    rows, blocks: 0 lets the plan choose.   whole_context: the blocks it chooses hold all of it, however few are free.
    host_bytes: for what is kept below the cache, in the machine's memory.   growable: begin with what one sequence
    needs; what the cache may grow to is the number asked for, or what `rows` may need at most, or most of what is free.
    tier, free_bytes: which memory it is for, and what of it is free.   work_bytes: what else is needed of it.
    Raises OutOfMemory when weights, margin and one sequence do not fit, or the blocks asked for are too few for
    whole_context.
    """
    rows = rows or ROWS
    if whole_context:
        check_blocks(blocks, context)
    left = free_bytes - weights_bytes - work_bytes - (host_bytes if tier == HOST else 0)
    least = blocks or max(4, -(-context // BLOCK_SIZE) if whole_context else 0)
    own = MemoryPlan(
        weights_bytes,
        block_bytes,
        max(least, 4),
        rows,
        context,
        BLOCK_SIZE,
        kv_format,
        host_bytes,
        tier=tier,
        work_bytes=work_bytes,
    )
    if left < block_bytes * max(least, 4):
        needs = f"{_told(own)}, and {_mib(work_bytes)} to work with"
        kind, where = (OutOfMemory, "") if tier == HOST else (DeviceOutOfMemory, " on the device")
        raise kind(f"there is too little memory{where} for {needs}: {_mib(free_bytes)} are free")
    if not blocks:
        typical, share = (_TOKENS_A_ROW, _KV_SHARE) if tier == HOST else (context, _DEVICE_SHARE)
        enough = max(-(-context // BLOCK_SIZE) + 1, rows * typical // BLOCK_SIZE)
        blocks = max(least, min(enough, int(left * share) // block_bytes))
        if growable:
            wanted = rows * -(-context // BLOCK_SIZE)
            blocks = max(blocks, min(wanted, int(left * _MOST_SHARE) // block_bytes))
    context = min(context, blocks * BLOCK_SIZE)
    made = replace(own, blocks=blocks, context=context)
    if not growable:
        return made
    return replace(made, blocks=min(blocks, -(-context // BLOCK_SIZE) + 1), most_blocks=blocks)


def check_blocks(blocks: int, context: int) -> None:
    """Raises OutOfMemory where so many blocks, 0: any number, cannot hold a context that was asked for."""
    if 0 < blocks * BLOCK_SIZE < context:
        raise OutOfMemory(f"a context of {context} tokens was asked for, and {blocks} blocks of {BLOCK_SIZE} tokens")


class Growth:
    """How many more blocks there is memory for. When there was too little it does not look again for a while."""

    def __init__(self, block_bytes: int, free: Callable[[], int] = available_bytes) -> None:
        self.block_bytes, self._free, self._resting_until = block_bytes, free, 0.0

    def grant(self, wanted: int) -> int:
        """At most so many."""
        now = time.monotonic()
        if now < self._resting_until:
            return 0
        granted = max(0, min(wanted, (self._free() - MARGIN) // self.block_bytes))
        if granted < wanted:
            self._resting_until = now + _REST_S
        return granted


@contextmanager
def allocating(memory: MemoryPlan) -> Iterator[None]:
    """What is planned is allocated inside. Raises OutOfMemory, with the plan, where the system does not grant it."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        told = f"memory cannot be allocated ({error}): {_told(memory)}"
        if memory.tier == DEVICE:
            raise DeviceOutOfMemory(f"{told}, and {_mib(memory.work_bytes)} to work with, on the device") from None
        raise OutOfMemory(f"{told}; {_mib(available_bytes())} are free") from None


def _told(memory: MemoryPlan) -> str:
    cache = f"{memory.blocks} blocks of {memory.block_size} tokens in {memory.kv_format or 'no memory'}"
    beside = f", {_mib(memory.host_bytes)} below it" if memory.host_bytes else ""
    return f"weights of {_mib(memory.weights_bytes)} and a KV cache of {_mib(memory.kv_bytes)} ({cache}){beside}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
