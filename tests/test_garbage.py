"""Full collections of garbage happen when we choose to, and then they do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from imp import garbage


class Knot:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def ways_of_old() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def made_and_kept(collections: int) -> list[list[int]]:
    """So many objects that about that many collections of young ones happen."""
    young, middle, _ = gc.get_threshold()
    return [[] for _ in range((young + 2) * (middle + 2) * (collections + 2))]


def test_making_many_objects_begins_no_full_collection():
    garbage.begin()
    gc.collect()
    knot = weakref.ref(Knot())
    kept = made_and_kept(12)
    assert knot() is None, "it was young"
    old = Knot()
    gc.collect(1)
    knot, full = weakref.ref(old), gc.get_stats()[2]["collections"]
    del old
    kept += made_and_kept(20)
    assert gc.get_stats()[2]["collections"] == full and knot() is not None
    gc.collect()
    assert knot() is None and kept


def test_what_was_imported_is_walked_by_none():
    garbage.begin()
    assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < 1000


def test_it_is_due_sooner_where_nothing_streams():
    garbage.begin()
    gc.set_threshold(10, 2, garbage.NEVER)
    gc.collect()
    assert not garbage.is_due(busy=False)
    kept = made_and_kept(garbage.DUE)
    assert garbage.is_due(busy=False) and not garbage.is_due(busy=True)
    kept += made_and_kept(garbage.OVERDUE)
    assert garbage.is_due(busy=True) and kept


def test_it_is_collected_once_it_is_due(monkeypatch):
    garbage.begin()
    gc.set_threshold(10, 2, garbage.NEVER)
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)

    async def found() -> bool:
        old = Knot()
        gc.collect(1)
        gone = asyncio.Event()
        weakref.finalize(old, gone.set)
        del old
        collecting = asyncio.create_task(garbage.collect_in_time(lambda: False))
        kept = made_and_kept(garbage.DUE)
        async with asyncio.timeout(20):
            await gone.wait()
        collecting.cancel()
        return bool(kept)

    assert asyncio.run(found())
