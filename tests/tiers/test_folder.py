"""Blocks in a folder: found again, bounded, and nothing else's business."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imp.tiers import folder as tiers
from imp.tiers.blockfile import file_bytes
from imp.tiers.folder import BlockFolder, FolderError
from tests.tiers.toys import OWNER, content, label

ONE = file_bytes(4, 64)


def opened(path: Path, blocks: int = 100, owner: bytes = OWNER) -> BlockFolder:
    return BlockFolder(path, owner, 4, 64, blocks * ONE)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def filled(path: Path, count: int, blocks: int = 100, owner: bytes = OWNER) -> None:
    kept = opened(path, blocks, owner)
    for i in range(count):
        kept.put(label(i, owner=owner), content(i))
    kept.close(10)


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file())


def test_a_block_is_found_by_the_next_process(tmp_path):
    filled(tmp_path, 3)
    kept = opened(tmp_path)
    assert len(kept) == 3 and kept.used_bytes == 3 * ONE
    assert all(kept.knows(label(i).hash) for i in range(3)) and not kept.knows(label(3).hash)
    assert kept.read(label(2)) == content(2) and kept.counts.restored == 1
    assert kept.read(label(3)) is None
    kept.close(10)


def test_blocks_of_another_owner_are_not_seen_but_count(tmp_path):
    filled(tmp_path, 2, owner=b"x" * 32)
    kept = opened(tmp_path)
    assert len(kept) == 0 and kept.used_bytes == 2 * ONE and not kept.knows(label(0).hash)
    kept.close(10)


def test_the_least_recently_used_go_whoever_owns_them(tmp_path):
    filled(tmp_path, 2, owner=b"x" * 32)
    kept = opened(tmp_path, blocks=4)
    for i in range(3):
        kept.put(label(i), content(i))
    until(lambda: kept.counts.stored == 3)
    assert kept.used_bytes == 4 * ONE and kept.counts.evicted == 1 and len(files(tmp_path)) == 4
    kept.touch([label(0).hash, label(1).hash])
    for i in range(3, 5):
        kept.put(label(i), content(i))
    until(lambda: kept.counts.stored == 5)
    assert [i for i in range(5) if kept.knows(label(i).hash)] == [0, 1, 3, 4]
    kept.close(10)


def test_what_a_prompt_begins_with_goes_last_also_in_the_next_process(tmp_path):
    kept = opened(tmp_path)
    for i in range(4):
        kept.put(label(i), content(i))
    kept.touch([label(i).hash for i in range(4)])
    kept.close(10)
    kept = opened(tmp_path, blocks=2)
    until(lambda: kept.counts.evicted == 2)
    assert [i for i in range(4) if kept.knows(label(i).hash)] == [0, 1]
    kept.close(10)


def test_a_damaged_file_is_counted_and_written_over_by_the_next_of_its_block(tmp_path):
    filled(tmp_path, 2)
    for path in files(tmp_path):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    kept = opened(tmp_path)
    assert kept.read(label(0)) is None and kept.counts.rejected == 1
    assert not kept.knows(label(0).hash) and kept.knows(label(1).hash)
    for i in range(2):  # of the second one nobody knows yet that it is damaged
        assert not kept.keeps(label(i).hash)
        kept.put(label(i), content(i))
    until(lambda: kept.counts.stored == 2)
    assert [bytes(kept.read(label(i)) or b"") for i in range(2)] == [bytes(content(i)) for i in range(2)]
    assert kept.used_bytes == 2 * ONE
    kept.close(10)


def test_files_of_others_are_counted_and_stay(tmp_path):
    filled(tmp_path, 1)
    own = tmp_path / OWNER.hex()[:16]
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "0123456789abcdef").symlink_to(tmp_path)
    (own / "notes.txt").write_text("mine")
    (own / f"{'a' * 64}.kv").mkdir()
    (own / f"{'b' * 64}.kv").write_bytes(b"short")
    (own / f"{'c' * 64}.kv").symlink_to(own / "notes.txt")
    os.mkfifo(own / f"{'d' * 64}.kv")
    kept = opened(tmp_path)
    assert kept.counts.rejected == 7 and len(kept) == 1
    assert not any(kept.knows(bytes.fromhex(letter * 64)) for letter in "abcd")
    kept.close(10)
    assert (tmp_path / "notes.txt").read_text() == (own / "notes.txt").read_text() == "mine"


def test_half_written_files_go_when_they_are_old(tmp_path):
    filled(tmp_path, 1)
    own = tmp_path / OWNER.hex()[:16]
    old, young = own / "x.kv.1.part", own / "y.kv.2.part"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    opened(tmp_path).close(10)
    assert not old.exists() and young.exists()


def test_forgetting_takes_the_files_and_what_waits(tmp_path):
    filled(tmp_path, 2)
    kept = opened(tmp_path)
    kept.put(label(2), content(2))
    kept.forget()
    assert len(kept) == 0 and not kept.knows(label(0).hash)
    kept.put(label(3), content(3))
    kept.close(10)
    assert [path.name for path in files(tmp_path)] == [f"{label(3).hash.hex()}.kv"]


def test_a_full_disk_is_counted_and_rested_from(tmp_path, monkeypatch):
    kept = opened(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tiers, "write", full)
    assert kept.has_room
    kept.put(label(0), content(0))
    until(lambda: kept.counts.lost == 1)
    assert not kept.has_room and not kept.knows(label(0).hash)
    monkeypatch.undo()
    monkeypatch.setattr(kept, "_resting_until", 0.0)
    kept.put(label(0), content(0))
    until(lambda: kept.counts.stored == 1)
    kept.close(10)


def test_a_folder_in_a_blocks_place_costs_that_block_alone(tmp_path):
    kept = opened(tmp_path)
    (tmp_path / OWNER.hex()[:16] / f"{label(0).hash.hex()}.kv").mkdir()
    for i in range(2):
        kept.put(label(i), content(i))
    until(lambda: kept.counts.stored + kept.counts.lost == 2)
    assert kept.counts.lost == 1 and kept.knows(label(1).hash) and kept.has_room
    kept.close(10)


def test_a_file_that_another_process_took_away_is_no_fault(tmp_path):
    filled(tmp_path, 1)
    kept = opened(tmp_path)
    files(tmp_path)[0].unlink()
    assert kept.read(label(0)) is None and kept.counts.rejected == 0 and not kept.knows(label(0).hash)
    kept.close(10)


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be used"):
        opened(tmp_path / "file")
    with pytest.raises(FolderError, match="one block takes"):
        opened(tmp_path, blocks=0)
