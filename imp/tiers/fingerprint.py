"""Whose KV it is: a digest of all that a block's content depends on besides its tokens."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

PACKAGES = ("model", "cpu", "cuda", "weights")  # whose code decides what the numbers are
PIECE = 1 << 22


def of_files(paths: Iterable[Path]) -> bytes:
    """32 bytes, of their contents in this order. OSError where one cannot be read."""
    digest = blake2b(digest_size=32)
    for path in paths:
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    return digest.digest()


def of_code() -> bytes:
    """32 bytes, of the sources of this server that numbers come from."""
    root = Path(__file__).resolve().parents[1]
    return of_files(path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))


def owner(*parts: bytes) -> bytes:
    """32 bytes: equal only where all parts are."""
    return blake2b(b"".join(map(_framed, parts)), digest_size=32, person=b"imp KV owner").digest()


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part
