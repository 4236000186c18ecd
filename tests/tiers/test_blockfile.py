"""A file is the block that was asked for, to the last byte, or it is refused."""

from __future__ import annotations

import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from imp.tiers import blockfile
from imp.tiers.blockfile import Unusable, file_bytes, read, write
from tests.tiers.toys import content, label

SIZE = file_bytes(4, 64)


def written(path: Path, i: int = 1) -> Path:
    write(path, label(i), content(i))
    return path


def test_what_was_written_is_read(tmp_path):
    path = written(tmp_path / "a")
    assert read(path, label(1), 64) == content(1) and path.stat().st_size == SIZE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = written(tmp_path / "a", 1)
    written(path, 2)
    assert read(path, label(2), 64) == content(2)


@pytest.mark.parametrize(
    "asked",
    [
        replace(label(1), owner=b"p" * 32),
        replace(label(1), hash=b"h" * 32),
        replace(label(1), tokens=(1, 2, 3, 5)),
        replace(label(1), tokens=(1, 2, 3)),
    ],
    ids=["another model's", "another block's", "of other tokens", "of fewer tokens"],
)
def test_a_sound_file_that_is_not_the_block_asked_for_is_refused(tmp_path, asked):
    path = written(tmp_path / "a")
    with pytest.raises(Unusable):
        read(path, asked, 64)


def test_every_single_flipped_bit_is_noticed(tmp_path):
    path = written(tmp_path / "a")
    whole = path.read_bytes()
    for at in range(SIZE):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(Unusable):
                read(path, label(1), 64)


def test_every_length_but_the_right_one_is_refused(tmp_path):
    path = written(tmp_path / "a")
    whole = path.read_bytes()
    for length in [*range(SIZE), SIZE + 1, 2 * SIZE]:
        path.write_bytes((whole + whole)[:length])
        with pytest.raises(Unusable):
            read(path, label(1), 64)


def mangled(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    """Something of the same length, mostly, that looks much like the file."""
    data = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        at, length = rng.randrange(SIZE), rng.randrange(1, 40)
        match rng.randrange(5):
            case 0:
                data[at : at + length] = rng.randbytes(len(data[at : at + length]))
            case 1:
                data[at:] = other[at:]
            case 2:
                data[:at] = other[:at]
            case 3:
                del data[at : at + length]
                data += rng.randbytes(length) if rng.random() < 0.8 else b""
            case 4:
                data[at : at + length] = bytes(len(data[at : at + length]))
    return bytes(data)


def test_nothing_that_differs_is_taken_for_the_block_4000_mangled_files_seed_5(tmp_path):
    rng = random.Random(5)
    path = written(tmp_path / "a", 1)
    whole, other = path.read_bytes(), written(tmp_path / "b", 2).read_bytes()
    refused = 0
    for _ in range(4000):
        data = mangled(rng, whole, other)
        path.write_bytes(data)
        try:
            assert read(path, label(1), 64) == content(1) and data == whole
        except Unusable:
            refused += 1
            assert data != whole
    assert refused > 3000


def test_what_is_no_file_is_refused_and_nobody_waits_for_it(tmp_path):
    target = written(tmp_path / "a")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises((Unusable, OSError)):
            read(tmp_path / name, label(1), 64)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", label(1), 64)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blockfile.os, "replace", full)
    with pytest.raises(OSError):
        written(tmp_path / "a")
    assert not list(tmp_path.iterdir())
