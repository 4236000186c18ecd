"""Blocks that went down come up again: after a restart, after an eviction, and whatever happens on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import Empty

import pytest

from imp.tiers import below as tiers
from imp.types import Limits, Reason, Request, Sampling
from tests.sched.test_schedules import judge, play
from tests.tiers.test_folder import files, until
from tests.tiers.toys import kept
from tests.toys import Stage, reference

PROMPT = tuple(range(40))  # ten blocks of four
FIVE = Limits(5)


def request(name: str, prompt: tuple[int, ...] = PROMPT, limits: Limits = FIVE, **changes) -> Request:
    return Request(name, prompt, Sampling(), limits, **changes)


def stage(folder: Path | None, blocks: int = 64, shelf: int = 0, **changes) -> Stage:
    return Stage(blocks, below=kept(folder, shelf, **changes))


def said(stage: Stage, asked: Request, written: range = range(0)) -> int:
    """Answer it; how many of its prompt's tokens were found.   written: as for `reference`."""
    stage.submit(asked)
    out = stage.run()[asked.id]
    assert out.essence == reference(asked, written=written).essence and out.finished
    return out.finished.usage.cached


def tier(stage: Stage, name: str = "disk"):
    return next(each for each in stage.sched.snapshot().tiers if each.name == name)


def test_a_prompt_is_found_after_a_restart(tmp_path):
    first = stage(tmp_path)
    assert said(first, request("a")) == 0
    first.sched.below.close()
    assert tier(first).stored == 11 and len(files(tmp_path)) == 11  # ten of the prompt, one of prompt and answer
    second = stage(tmp_path)
    assert said(second, request("b")) == 36 and said(second, request("c", (*PROMPT[:12], 1, 1, 1, 1))) == 12
    assert tier(second).restored == 9 and tier(second).rejected == 0
    second.sched.below.close()
    assert tier(second).stored == 0 or tier(second).blocks > 11


def test_the_next_turn_of_a_conversation_goes_on_after_a_restart(tmp_path):
    first = stage(tmp_path)
    said(first, request("a"))
    spoken = first.transcript["a"].tokens
    first.sched.below.close()
    second = stage(tmp_path)
    assert said(second, request("b", (*PROMPT, *spoken, *range(20))), range(40, 44)) == 44
    second.sched.below.close()


def test_a_salt_keeps_prompts_apart_on_disk_too(tmp_path):
    first = stage(tmp_path)
    said(first, request("a", salt=b"one"))
    first.sched.below.close()
    second = stage(tmp_path)
    assert said(second, request("b", salt=b"two")) == said(second, request("c")) == 0
    assert said(second, request("d", salt=b"one")) == 36
    second.sched.below.close()


def test_what_nobody_can_share_is_not_written(tmp_path):
    first = stage(tmp_path, shelf=50, blocks=12)
    said(first, request("a", salt=b"secret", shares=False))
    said(first, request("b", tuple(range(100, 140)), salt=b"other", shares=False))
    first.sched.below.close()
    assert not files(tmp_path) and tier(first, "memory").stored == 0


def test_evicted_blocks_come_back_from_memory():
    small = stage(None, blocks=12, shelf=50)
    assert said(small, request("a")) == 0
    said(small, request("b", tuple(range(100, 140))))
    before = tier(small, "memory")
    assert before.blocks > 0 and before.used_bytes == before.blocks * 32
    assert said(small, request("c")) == 36
    assert tier(small, "memory").restored >= 8
    small.sched.below.close()


def test_memory_below_is_bounded():
    small = stage(None, blocks=12, shelf=5)
    for i in range(6):
        said(small, request(f"r{i}", tuple(range(100 * i, 100 * i + 40))))
        assert tier(small, "memory").used_bytes <= 5 * 32
    assert tier(small, "memory").evicted > 0
    small.sched.below.close()


def test_a_damaged_block_ends_the_hit_and_is_written_again(tmp_path):
    first = stage(tmp_path)
    said(first, request("a"))
    chain = [h.hex() for h in first.sched.pool.by_hash]
    first.sched.below.close()
    path = next(path for path in files(tmp_path) if path.stem == chain[5])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    second = stage(tmp_path)
    assert said(second, request("b")) == 20 and tier(second).rejected == 1
    second.sched.below.close()
    third = stage(tmp_path)
    assert said(third, request("c")) == 36 and tier(third).rejected == 0
    third.sched.below.close()


def test_forgetting_is_for_good(tmp_path):
    first = stage(tmp_path, shelf=50)
    said(first, request("a"))
    assert first.sched.reset_prefix_cache()
    assert said(first, request("b")) == 0
    assert first.sched.reset_prefix_cache()
    first.sched.below.close()
    assert not files(tmp_path)
    second = stage(tmp_path)
    assert said(second, request("c")) == 0
    second.sched.below.close()


class SlowFolder:
    """Lets blocks be read one by one."""

    def __init__(self, stage: Stage) -> None:
        self.permits = threading.Semaphore(0)
        self.read = stage.sched.below.folder.read
        stage.sched.below.folder.read = self

    def __call__(self, label):
        assert self.permits.acquire(timeout=10)
        return self.read(label)


def restarted(tmp_path: Path, monkeypatch, **changes) -> tuple[Stage, SlowFolder]:
    """A stage whose prompt lies on disk, and comes up a block at a time."""
    first = stage(tmp_path)
    said(first, request("a"))
    first.sched.below.close()
    monkeypatch.setattr(tiers, "PORTION_BYTES", 1)
    second = stage(tmp_path, **changes)
    return second, SlowFolder(second)


def test_others_are_answered_while_blocks_come_up(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    second.submit(request("b"), request("other", (7, 8, 9)))
    while ("other", 0) not in second.transcript.outputs or not second.transcript["other"].finished:
        assert second.step() is not None
    assert ("b", 0) not in second.transcript.outputs and second.sched.below.busy
    folder.permits.release(100)
    out = second.run()["b"]
    assert out.finished and out.finished.usage.cached == 36
    second.sched.below.close()


def test_few_blocks_come_up_between_two_steps_however_fast_they_are_read(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    folder.permits.release(100)
    second.submit(request("b"), request("other", (7, 8, 9), limits=Limits(60)))
    came, pool = [0], second.sched.pool
    while second.sched.below.busy or not sum(came):
        known = len(pool.by_hash)
        assert second.step() is not None
        said = len(pool.by_hash) - known  # of what is answered meanwhile
        while second.sched.below.busy:
            try:
                second.letters.get(timeout=0.05)()
            except Empty:
                break
        came.append(len(pool.by_hash) - known - said)
    assert 0 < max(came) <= tiers.AHEAD
    assert second.run()["b"].finished.usage.cached == 36
    second.sched.below.close()


def test_a_request_may_leave_while_its_blocks_come_up(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    second.submit(request("b"), request("other", (7, 8, 9)))
    second.step()
    folder.permits.release(3)
    until(lambda: second.letters.qsize() > 0)
    second.step()
    second.abort("b")
    folder.permits.release(100)
    transcript = second.run()
    assert transcript["b"].finished.reason is Reason.ABORT and not second.sched.below.busy
    until(lambda: second.step() is None and second.letters.empty())
    assert second.sched.snapshot().blocks_used == 0
    assert said(second, request("c")) == 36
    second.sched.below.close()


def test_the_cache_may_be_forgotten_while_blocks_come_up(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    second.submit(request("b"))
    assert second.sched.plan(1.0) is None and second.sched.below.busy
    assert second.sched.reset_prefix_cache()
    folder.permits.release(100)
    out = second.run()["b"]
    assert out.finished.usage.cached == 0 and out.essence == reference(request("b")).essence
    second.sched.below.close()


def test_two_that_want_the_same_blocks_fetch_them_once(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    folder.permits.release(100)
    second.submit(request("b"), request("c"))
    transcript = second.run()
    assert [transcript[name].finished.usage.cached for name in "bc"] == [36, 36] and tier(second).restored == 9
    second.sched.below.close()


def test_a_pool_without_room_for_them_computes_them(tmp_path):
    first = stage(tmp_path)
    said(first, request("a"))
    first.sched.below.close()
    tight = stage(tmp_path, blocks=12)
    tight.submit(request("b"), request("c", tuple(range(100, 140))), request("d"))
    transcript = tight.run()
    for name, prompt in (("b", PROMPT), ("c", tuple(range(100, 140))), ("d", PROMPT)):
        assert transcript[name].essence == reference(request(name, prompt)).essence
    tight.sched.below.close()


def test_a_reader_that_waits_for_the_engine_ends_with_it(tmp_path, monkeypatch):
    second, folder = restarted(tmp_path, monkeypatch)
    folder.permits.release(100)
    second.submit(request("b"))
    assert second.sched.plan(1.0) is None
    until(lambda: second.letters.qsize() == tiers.AHEAD)
    reader = second.sched.below._reader
    second.sched.below.close()
    reader.join(10)
    assert not reader.is_alive()


def test_what_waits_for_the_writer_is_copied_when_it_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr("imp.tiers.folder.PENDING_BYTES", 32)
    first = stage(tmp_path)
    said(first, request("a"))

    def all_are_written() -> bool:
        if not first.letters.empty():  # without one the engine would sleep
            first.letters.get()()
            assert first.sched.plan(1.0) is None
        return tier(first).stored == 11

    until(all_are_written)
    assert tier(first).lost == 0
    first.sched.below.close()


@pytest.mark.parametrize("first", range(3000, 3120, 40))
def test_any_schedule_with_blocks_below_gives_the_reference_output(first, kernel_folder, tmp_path):
    """Later seeds find on disk what earlier ones, whose pools had blocks of the same size, left there."""
    restored = {"disk": 0, "memory": 0}
    for seed in range(first, first + 40):
        make = kept(tmp_path if seed % 4 else None, shelf_blocks=20 if seed % 3 or not seed % 4 else 0, disk_blocks=300)
        try:
            played, requests, aborted = play(seed, kernel_folder, make)
            judge(played, requests, aborted)
            while not played.letters.empty():
                played.letters.get()()
            while played.sched.pool.unpin_oldest():
                pass
            played.sched.check()
            stats = played.sched.snapshot()
            assert (stats.waiting, stats.running, stats.blocks_used, stats.blocks_live) == (0, 0, 0, 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            if "played" in locals():
                played.sched.below.close()
        for each in played.sched.snapshot().tiers:  # what waited is written now, and what was too much is gone
            restored[each.name] += each.restored
            assert each.rejected == 0 and each.used_bytes <= each.most_bytes
    assert all(restored.values()), f"these schedules were too easy: {restored}"
