"""KV blocks in a folder: which there are, how many there may be, and the thread that writes them.

    FOLDER / first 16 digits of the owner / hash .kv

An owner is all that KV depends on besides its tokens: the model, the format, the code that computed it. Blocks of other
owners are left alone but counted, since the bound on the folder's size is for all; the least recently used go first.
Files that bear no such name are nobody's business: they are counted, and stay.

`knows`, `put`, `touch` and `forget` belong to the engine thread and never wait. `read` is for another thread. What
these share with the writer is under one lock, which is held for no file operation.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from .blockfile import Label, Unusable, file_bytes, read, write

log = logging.getLogger("imp.tiers")

NAME = "disk"
PENDING_BYTES = 64 << 20  # contents that wait to be written
REST_S = 60.0  # nothing is written for so long after a write failed
STALE_S = 3600.0  # age of what a process that died left half written
OWNER = re.compile(r"[0-9a-f]{16}")
BLOCK = re.compile(r"[0-9a-f]{64}\.kv")


class FolderError(Exception):
    """The folder cannot be used: one sentence."""


@dataclass(slots=True)
class Counts:
    """Blocks, since the folder was opened."""

    stored: int = 0
    restored: int = 0
    rejected: int = 0  # files that are not what their name says, and files of others in the folder
    lost: int = 0  # not written: too many waited, or the disk failed
    evicted: int = 0


class BlockFolder:
    """owner: 32 bytes.   positions, content_bytes: of a block.   most_bytes: of all files together."""

    def __init__(self, folder: Path, owner: bytes, positions: int, content_bytes: int, most_bytes: int) -> None:
        """Raises FolderError."""
        self.folder, self.owner, self.content_bytes, self.most_bytes = folder, owner, content_bytes, most_bytes
        self.counts = Counts()
        self.on_room: Callable[[], None] = _nobody  # called by the writer when there is room again
        self._size = file_bytes(positions, content_bytes)
        self._own = owner.hex()[:16]
        self._lock = Lock()
        self._files: OrderedDict[str, int] = OrderedDict()  # owner/hash.kv -> bytes, least recently used first
        self._sound: set[str] = set()  # those of them that this process has written or read
        self._bytes = self._own_blocks = self._pending = 0
        self._epoch = 0  # goes up when everything is forgotten
        self._resting_until = 0.0
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: the end
        if self._size > most_bytes:
            raise FolderError(f"one block takes {self._size} bytes on disk, and no more than {most_bytes} are allowed")
        try:
            (folder / self._own).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._look_around()
        except OSError as error:
            raise FolderError(f"{folder} cannot be used: {error.strerror or error}") from None
        self._jobs.put(lambda: self._make_room(0))
        self._writer = Thread(target=self._work, name="kv writer", daemon=True)
        self._writer.start()

    # -- what there is ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Blocks of this owner."""
        return self._own_blocks

    @property
    def used_bytes(self) -> int:
        """Of all owners."""
        return self._bytes

    @property
    def has_room(self) -> bool:
        """Whether more can be put now."""
        return self._pending < PENDING_BYTES and time.monotonic() >= self._resting_until

    def knows(self, hash: bytes) -> bool:
        """Whether there is a file of this block, as far as one can tell without opening it."""
        return self._name(hash) in self._files

    def keeps(self, hash: bytes) -> bool:
        """Whether there is a sound file of this block: this process has written or read it."""
        return self._name(hash) in self._sound

    def _name(self, hash: bytes) -> str:
        return f"{self._own}/{hash.hex()}.kv"

    def _look_around(self) -> None:
        found: list[tuple[float, str, int]] = []
        for owner in os.scandir(self.folder):
            if not OWNER.fullmatch(owner.name) or not owner.is_dir(follow_symlinks=False):
                self.counts.rejected += 1
                continue
            try:
                found += self._blocks_in(owner)
            except OSError:
                if owner.name == self._own:
                    raise
                self.counts.rejected += 1
        for _, name, size in sorted(found):
            self._add(name, size)

    def _blocks_in(self, owner: os.DirEntry[str]) -> Iterator[tuple[float, str, int]]:
        """(time of last use, name, bytes) of each."""
        for entry in os.scandir(owner):
            known = entry.stat(follow_symlinks=False)
            wrong_size = owner.name == self._own and known.st_size != self._size
            if entry.name.endswith(".part"):
                if time.time() - known.st_mtime > STALE_S:
                    os.unlink(entry.path)
            elif not BLOCK.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False) or wrong_size:
                self.counts.rejected += 1
            else:
                yield known.st_mtime, f"{owner.name}/{entry.name}", known.st_size

    def _add(self, name: str, size: int) -> None:
        self._remove(name)
        self._files[name] = size
        self._bytes += size
        self._own_blocks += name.startswith(self._own)

    def _remove(self, name: str) -> None:
        size = self._files.pop(name, None)
        self._sound.discard(name)
        if size is not None:
            self._bytes -= size
            self._own_blocks -= name.startswith(self._own)

    # -- called by the engine thread --------------------------------------------------------------

    def put(self, label: Label, content: memoryview) -> None:
        """Keep a block, some time; `content` is not changed any more."""
        if not self.has_room:
            self.lose()
            return
        with self._lock:
            self._pending += len(content)
        epoch = self._epoch
        self._jobs.put(lambda: self._write(label, content, epoch))

    def lose(self) -> None:
        """Count a block that could not be kept."""
        with self._lock:
            self.counts.lost += 1

    def touch(self, hashes: Sequence[bytes]) -> None:
        """These blocks, each behind the one before, are in use: what they begin with is the last to go."""
        self._jobs.put(lambda: self._touch(hashes))

    def forget(self) -> None:
        """Delete all blocks of this owner, those included that wait to be written."""
        with self._lock:
            self._epoch += 1
            names = [name for name in self._files if name.startswith(self._own)]
            for name in names:
                self._remove(name)
        self._jobs.put(lambda: self._delete(names))

    def close(self, timeout_s: float) -> None:
        """Write what waits, for so long at most, and end the thread."""
        self._jobs.put(None)
        self._writer.join(timeout_s)

    # -- the writer's -----------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                log.exception("a KV block on disk could not be handled")
            if self._pending <= PENDING_BYTES // 2:
                self.on_room()

    def _write(self, label: Label, content: memoryview, epoch: int) -> None:
        name = self._name(label.hash)
        try:
            if time.monotonic() < self._resting_until:
                self.lose()
            elif epoch == self._epoch and name not in self._sound:
                self._make_room(self._size)
                write(self.folder / name, label, content)
                self._written(name, epoch)
        except IsADirectoryError:  # somebody made a folder of this name
            self.lose()
        except OSError as error:
            self.lose()
            with suppress(OSError):  # it may be that somebody removed it
                (self.folder / self._own).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._resting_until = time.monotonic() + REST_S
            log.error("KV blocks cannot be written to %s (%s); trying again in %g s", self.folder, error, REST_S)
        finally:
            with self._lock:
                self._pending -= len(content)

    def _written(self, name: str, epoch: int) -> None:
        with self._lock:
            if epoch == self._epoch:
                self._add(name, self._size)
                self._sound.add(name)
                self.counts.stored += 1
                return
        (self.folder / name).unlink(missing_ok=True)  # it was to be forgotten while it was written

    def _make_room(self, wanted: int) -> None:
        while self._bytes + wanted > self.most_bytes:
            with self._lock:
                name = next(iter(self._files), None)
                if name is None:  # all were forgotten meanwhile
                    return
                self._remove(name)
                self.counts.evicted += 1
            self._delete([name])

    def _touch(self, hashes: Sequence[bytes]) -> None:
        """The files' times tell the next process who was used last."""
        now = time.time()
        names = [self._name(hash) for hash in hashes]
        with self._lock:
            names = [name for name in names if name in self._files]
            for name in reversed(names):
                self._files.move_to_end(name)
        for i, name in enumerate(names):
            try:
                os.utime(self.folder / name, (now, now - i * 1e-4))
            except OSError:  # another process made room, or it is not ours to change
                continue

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:  # not ours to delete: it is not looked for any more
                log.warning("a KV block on disk stays: %s", error)

    # -- the reader's -----------------------------------------------------------------------------

    def read(self, label: Label) -> memoryview | None:
        """The content of a block; None where there is no sound file of it."""
        name = self._name(label.hash)
        if name not in self._files:
            return None
        try:
            content = read(self.folder / name, label, self.content_bytes)
        except FileNotFoundError:  # another process made room
            self._lose_sight(name, rejected=0)
            return None
        except (Unusable, OSError) as error:
            log.warning("a KV block on disk is not used: %s", error)
            self._lose_sight(name, rejected=1)
            return None
        with self._lock:
            self.counts.restored += 1
            if name in self._files:
                self._sound.add(name)
        return content

    def _lose_sight(self, name: str, rejected: int) -> None:
        """The file is as good as not there; when its block is computed again it is written over."""
        with self._lock:
            self._remove(name)
            self.counts.rejected += rejected


def _nobody() -> None: ...
