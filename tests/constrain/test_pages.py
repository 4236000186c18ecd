"""Memory that is ready before it is asked for."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest

from imp.constrain.pages import Stock, zeros
from imp.constrain.rows import RowPool
from imp.huge_pages import HUGE


def soon(condition, seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(condition())


@pytest.mark.parametrize("size", [1, 4096, HUGE // 2, HUGE, 5 * HUGE + 7])
def test_zeros_are_zeros_and_large_ones_begin_a_huge_page(size):
    memory = zeros(size)
    assert memory.shape == (size,) and not memory.any()
    assert size < HUGE // 4 or memory.ctypes.data % HUGE == 0


def test_so_many_are_ready_and_what_is_taken_is_made_up_for():
    stock, size = Stock(), 1 << 20
    stock.keep(size, 2)
    stock.keep(size, 2)
    for _ in range(3):
        assert soon(lambda: len(stock._ready[size]) == 2)
        ready = stock._ready[size].copy()
        taken = [stock.take(size) for _ in range(6)]
        assert all(any(each is memory for memory in taken) for each in ready)
        assert not any(memory.any() for memory in taken)
        assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(taken, 2))


def test_other_sizes_are_made_when_they_are_asked_for():
    stock = Stock()
    assert not stock.take(100).any() and not stock._begun


def test_the_thread_ends_with_its_stock():
    stock = Stock()
    before = {thread for thread in threading.enumerate() if thread.name == "memory"}
    stock.keep(100, 1)
    (thread,) = {thread for thread in threading.enumerate() if thread.name == "memory"} - before
    gone = weakref.ref(stock)
    del stock
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


def test_rows_come_back_as_zeros():
    pool = RowPool(words=3)
    rows = pool.take(5)
    for row in rows:
        pool[row][:] = 7
    pool.give_back(rows)
    again = pool.take(pool.chunk_rows)
    assert set(rows) <= set(again) and not any(pool[row].any() for row in again)
    assert len({pool.address(row) for row in again}) == len(again)
