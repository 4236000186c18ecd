"""What this machine can do right now, measured next to what is judged by it.

A tokens/s figure of a shared machine says little; its ratio to the memory bandwidth and to the arithmetic rate of the
same minute says how close a kernel is to what is possible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from bench.measure import Timing, timed

_READ_BYTES = 192 << 20  # several times the last level cache
_PART_BYTES = 2 << 20
_VALUES = 2048  # floats that stay in the first level cache
_DEGREE = 16


@njit(nogil=True, fastmath=True, cache=True)
def _sum(words):
    total = np.int64(0)
    for i in range(len(words)):
        total += words[i]
    return total


@njit(nogil=True, fastmath=True, cache=True)
def _polynomials(x, y, rounds):
    """y = a polynomial of degree 16 in x, over and over: 16 multiply-adds for a load and a store."""
    for r in range(rounds):
        c = np.float32(r)
        for i in range(len(x)):
            v = x[i]
            p = v
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            p = p * v + c
            y[i] = p


def side_by_side(threads: int, parts: int, part: Callable[[int], object]) -> None:
    """part(0) .. part(parts - 1), each taken by whichever thread is free: one that is interrupted delays nobody."""
    numbers = iter(range(parts))

    def work() -> None:
        for number in numbers:
            part(number)

    others = [threading.Thread(target=work) for _ in range(1, threads)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()


@cache
def _memory() -> np.ndarray:
    return np.ones(_READ_BYTES // 8, np.int64)  # written, so that every page is really there


def read_bandwidth(threads: int, repeats: int = 5) -> Timing:
    """Bytes read from memory per second."""
    parts = np.split(_memory(), _READ_BYTES // _PART_BYTES)
    _sum(parts[0][:8])
    return timed(lambda: side_by_side(threads, len(parts), lambda i: _sum(parts[i])), _READ_BYTES, repeats)


def multiply_add_rate(threads: int, repeats: int = 5, parts: int = 200, rounds: int = 20) -> Timing:
    """float32 multiply-adds per second, operands in the first level cache."""
    given = np.linspace(-0.5, 0.5, _VALUES, dtype=np.float32)

    def part(number: int) -> None:
        _polynomials(given, np.empty_like(given), rounds)

    part(0)
    return timed(lambda: side_by_side(threads, parts, part), float(_VALUES) * _DEGREE * rounds * parts, repeats)
