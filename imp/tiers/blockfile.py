"""One KV block in a file. Knows bytes, and nothing of models, pools or folders.

    "imp KV 1" | owner, 32 bytes | hash, 32 bytes | tokens, int32 each | content | BLAKE2b-256 of all before

A reader knows beforehand what a file has to be, to the last byte but for the content and its checksum: whose KV it is
(`owner`), what the block is called (`hash`), of which tokens it is, and how long. So nothing in a file is ever
interpreted, and one that was cut off, altered, or made by somebody else is not the file that was looked for.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

MAGIC = b"imp KV 1"
DIGEST = 32  # bytes of an owner, a hash and the checksum

_SAFE = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class Unusable(Exception):
    """The file is not what was asked for: one sentence, for the log."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a block is asked for by.   owner, hash: 32 bytes each.   tokens: of its positions."""

    owner: bytes
    hash: bytes
    tokens: tuple[int, ...]

    def head(self) -> bytes:
        return MAGIC + self.owner + self.hash + struct.pack(f"<{len(self.tokens)}i", *self.tokens)


def file_bytes(positions: int, content_bytes: int) -> int:
    """Size of the file of a block with so many positions."""
    return len(MAGIC) + 2 * DIGEST + 4 * positions + content_bytes + DIGEST


def write(path: Path, label: Label, content: memoryview) -> None:
    """The file appears whole or not at all; only its owner may read it, for prompts can be told from KV. OSError."""
    head = label.head()
    digest = blake2b(head, digest_size=DIGEST)
    digest.update(content)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE, 0o600), "wb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(head), content, memoryview(digest.digest()))
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _write_all(file: int, *parts: memoryview) -> None:
    for part in parts:
        while part:
            part = part[os.write(file, part) :]


def read(path: Path, label: Label, content_bytes: int) -> memoryview:
    """The content of the block's file. Raises Unusable for any other file, FileNotFoundError where there is none, and
    OSError where it cannot be read."""
    head = label.head()
    size = file_bytes(len(label.tokens), content_bytes)
    # NONBLOCK: a pipe under this name must not stop us
    with open(os.open(path, os.O_RDONLY | _SAFE | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise Unusable(f"{path.name} is no file of {size} bytes")
        whole = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = file.readinto(whole[at:])
            if not count:
                raise Unusable(f"{path.name} ends early")
            at += count
    if whole[: len(head)] != head:
        raise Unusable(f"{path.name} is of another block")
    if blake2b(whole[:-DIGEST], digest_size=DIGEST).digest() != whole[-DIGEST:]:
        raise Unusable(f"{path.name} is damaged")
    return whole[len(head) : -DIGEST].toreadonly()
