"""The toy model's KV, put away: what lies below a pool of readable cells."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

from imp.sched.blocks import BlockPool
from imp.tiers.below import Below
from imp.tiers.blockfile import Label
from imp.tiers.folder import BlockFolder
from imp.tiers.shelf import BlockShelf
from tests.toys import ToyRunner

OWNER = b"o" * 32
CELL = 8  # bytes


def kept(
    folder: Path | None, shelf_blocks: int = 0, disk_blocks: int = 1000
) -> Callable[[BlockPool, ToyRunner], Below]:
    """Makes what lies below a toy's pool."""

    def make(pool: BlockPool, runner: ToyRunner) -> Below:
        content = CELL * pool.size
        disk, shelf = None, BlockShelf(shelf_blocks * content) if shelf_blocks else None
        if folder is not None:
            owner = bytes([pool.size]) * 32
            disk = BlockFolder(folder, owner, pool.size, content, disk_blocks * (content + 200))

        def read(block: int) -> memoryview:
            cells = [cell for cell in runner.kv[block] if cell is not None]
            assert len(cells) == pool.size, "a block is kept that was never filled"
            return memoryview(array("q", cells).tobytes())

        def write(block: int, content: memoryview) -> None:
            runner.kv[block] = array("q", bytes(content)).tolist()

        return Below(pool, OWNER if disk is None else disk.owner, content, read, write, disk, shelf)

    return make


def label(i: int, positions: int = 4, owner: bytes = OWNER) -> Label:
    return Label(owner, bytes([i % 256, i // 256]) * 16, tuple(range(i, i + positions)))


def content(i: int, size: int = 64) -> memoryview:
    return memoryview(bytes((i * 7 + k) % 256 for k in range(size)))
