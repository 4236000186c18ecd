"""How much memory the model gets: a plan made before anything is allocated. Knows sizes, never arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BLOCK_SIZE = 16  # positions in one block of the KV cache
_KV_SHARE = 0.25  # of the free memory
_TOKENS_A_ROW = 1024  # typical length of a sequence, when the cache is sized without being told


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

    @property
    def kv_bytes(self) -> int:
        return self.block_bytes * self.blocks

    @property
    def kv_tokens(self) -> int:
        return self.blocks * BLOCK_SIZE


class OutOfMemory(Exception):
    """The machine cannot hold the model: one sentence. Exit code 2."""


def available_bytes() -> int:
    """Memory that can be taken without swapping: the kernel's estimate, bounded by the control group's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        free = min(free, max(0, int(text) - int(used.read_text())))
    return free


def plan(
    weights_bytes: int, block_bytes: int, *, context: int, rows: int, blocks: int, free_bytes: int, kv_format: str = ""
) -> MemoryPlan:
    """Blocks for the KV cache: the number asked for, else a share of what is free, else what `rows` usually need.

    rows, blocks: 0 lets the plan choose. Raises OutOfMemory when weights and one sequence do not fit.
    """
    rows = rows or 64
    left = free_bytes - weights_bytes
    if left < block_bytes * 4:
        raise OutOfMemory(
            f"the weights need {weights_bytes / 2**20:.0f} MiB and the cache {block_bytes * 4 / 2**20:.0f} more; "
            f"{free_bytes / 2**20:.0f} MiB are free"
        )
    if blocks and blocks * block_bytes > left:
        raise OutOfMemory(
            f"{blocks} blocks of the cache need {blocks * block_bytes / 2**20:.0f} MiB; {left / 2**20:.0f} are free"
        )
    if not blocks:
        enough = max(-(-context // BLOCK_SIZE) + 1, rows * _TOKENS_A_ROW // BLOCK_SIZE)
        blocks = max(4, min(enough, int(left * _KV_SHARE) // block_bytes))
    context = min(context, blocks * BLOCK_SIZE)
    return MemoryPlan(weights_bytes, block_bytes, blocks, rows, context, kv_format=kv_format)
