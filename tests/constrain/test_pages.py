"""Memory that is ready before it is asked for."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from imp.constrain.pages import HUGE, Stock, zeros
from imp.constrain.rows import RowPool


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


def test_what_was_taken_once_is_ready_the_next_time():
    stock = Stock()
    assert stock.take(1 << 20, keep=2) is None
    assert soon(lambda: len(stock._ready[1 << 20]) == 2)
    first, second = stock.take(1 << 20, keep=2), stock.take(1 << 20, keep=2)
    assert first is not None and second is not None and not np.shares_memory(first, second)
    assert not first.any() and not second.any()
    assert soon(lambda: len(stock._ready[1 << 20]) == 2), "and what was taken is made up for"


def test_the_thread_ends_with_its_stock():
    stock = Stock()
    before = {thread for thread in threading.enumerate() if thread.name == "memory"}
    stock.take(100)
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
