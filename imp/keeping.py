"""What of a model's KV is kept below the pool, by the settings: in files, in memory, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .memory import BLOCK_SIZE
from .model.ops import Backend
from .sched.blocks import BlockPool
from .settings import Settings
from .tiers import fingerprint
from .tiers.below import Below
from .tiers.folder import BlockFolder, FolderError
from .tiers.shelf import BlockShelf


def digest_aside(files: Iterable[Path], settings: Settings) -> Future[bytes] | None:
    """The digest of the model's files, which another thread makes; None where nothing is kept on disk. Raises
    FolderError."""
    if not _keeps_on_disk(settings):
        return None
    reader = ThreadPoolExecutor(1, "digest")
    digest = reader.submit(fingerprint.of_files, files)
    reader.shutdown(wait=False)  # the thread ends with its work
    return digest


def _keeps_on_disk(settings: Settings) -> bool:
    """Whether KV is to be kept in a folder. Raises FolderError where the settings contradict each other."""
    if settings.kv_cache.disk_dir is None:
        return False
    if not settings.server.prefix_cache:
        raise FolderError("--prefix-cache has nothing to do where server.prefix_cache is false")
    return True


def below(
    pool: BlockPool, backend: Backend, block_bytes: int, model_files: bytes | None, settings: Settings
) -> Below | None:
    """What is kept below the pool, by the settings.   block_bytes: of the backend's.   model_files: a digest of them,
    where a folder is to be kept. Raises FolderError."""
    own, shelf, folder, owner = settings.kv_cache, None, None, b""
    if own.host_mb and settings.server.prefix_cache:
        shelf = BlockShelf(own.host_mb << 20)
    if own.disk_dir is not None and model_files is not None:
        shape = b"%d positions, %d bytes" % (BLOCK_SIZE, block_bytes)
        given = repr(settings.rope).encode()
        owner = fingerprint.owner(model_files, fingerprint.of_code(), backend.fingerprint(), shape, given)
        folder = BlockFolder(own.disk_dir, owner, BLOCK_SIZE, block_bytes, own.disk_mb << 20)
    if shelf is None and folder is None:
        return None

    def read(block: int) -> memoryview:
        return backend.read_block(block).data

    def write(block: int, content: memoryview) -> None:
        backend.write_block(block, np.frombuffer(content, np.uint8))

    return Below(pool, owner, block_bytes, read, write, folder, shelf)
