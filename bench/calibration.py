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
from imp.cpu.emit import compiling_for, micro
from imp.cpu.simd import (
    V,
    Var,
    add_quads_u8i8,
    dot_pairs_u8i8,
    i8x32,
    int64,
    kept_apart,
    load,
    load_i8x32,
    load_i8x64,
    loop,
    splat16_i32,
    splat_i32,
    store,
)
from imp.cpu.tiles import DEPTH, ROWS, add_products_i8, release_tiles, shape_tiles
from imp.cpu.variants import detect, sums_bytes
from imp.jit import numba

_READ_BYTES = 192 << 20  # several times the last level cache
_PART_BYTES = 2 << 20
_VALUES = 2048  # floats that stay in the first level cache
_DEGREE = 16


@njit(nogil=True, fastmath=True, cache=True)
def _sum(words):
    """In four streams: one by itself does not get all that memory gives."""
    total, length = np.int64(0), len(words) // 4
    for i in range(length):
        total += words[i] + words[length + i] + words[2 * length + i] + words[3 * length + i]
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


@micro()
def _tile_products() -> None:
    """Every left factor by every right one; all are zeros, which take no less time."""
    for sums, (left, right) in enumerate(((4, 6), (4, 7), (5, 6), (5, 7))):
        add_products_i8(sums, left, right)


def _in_tiles(memory, rounds):
    shape_tiles(ROWS)
    for _ in range(rounds):
        _tile_products()
    release_tiles()


def _in_vectors(load, zeros, size):
    """Two factors from the first level cache by three that stay in registers."""

    def run(memory, rounds):
        y0, y1, y2 = load(memory), load(memory + size), load(memory + 2 * size)
        a, b, c, d, e, f = zeros(0), zeros(0), zeros(0), zeros(0), zeros(0), zeros(0)
        for i in range(rounds):
            x = load(memory + i % 8 * 2 * size)
            a, b, c = add_quads_u8i8(a, x, y0), add_quads_u8i8(b, x, y1), add_quads_u8i8(c, x, y2)
            x = load(memory + i % 8 * 2 * size + size)
            d, e, f = add_quads_u8i8(d, x, y0), add_quads_u8i8(e, x, y1), add_quads_u8i8(f, x, y2)
        store(memory + 16 * size, (a + b + c) + (d + e + f))

    return run


@micro(int64, int64)
def _in_pairs(memory: V, rounds: V) -> None:
    """The same where products add up in 16 bits, as short_products.py has them."""
    fixed = [load(memory + i * 32, i8x32.ir) for i in range(3)]
    sums = [Var(dot_pairs_u8i8(each, each)) for each in (*fixed, *fixed)]
    for i in loop(rounds):
        for half in (0, 1):
            x = load(memory + ((i & 7) * 64 + half * 32), i8x32.ir)
            for total, factor in zip(sums[half * 3 : half * 3 + 3], fixed, strict=True):
                total.set(kept_apart(V(total.ir) + dot_pairs_u8i8(factor, x)))
    for i, total in enumerate(sums):
        store(memory + (512 + i * 32), V(total.ir))


def _in_halves(memory, rounds):
    _in_pairs(memory, rounds)


@cache
def _byte_products(kind: str) -> tuple[Callable[[int, int], None], int]:
    """(memory, rounds) -> nothing, and how many products a round has."""
    if kind == "amx":
        body, products = _in_tiles, 4 * ROWS * 16 * DEPTH
    elif kind == "avx512":
        body, products = _in_vectors(load_i8x64, splat16_i32, 64), 6 * 64
    elif sums_bytes(kind):
        body, products = _in_vectors(load_i8x32, splat_i32, 32), 6 * 32
    else:
        body, products = _in_halves, 6 * 32
    with compiling_for(kind):
        compiled = numba().cfunc("void(int64, int64)", nopython=True)(body)
    return compiled.ctypes, products


def byte_rate(threads: int, repeats: int = 5, parts: int = 20, rounds: int = 50_000) -> Timing:
    """Products of bytes that are added up, per second, by the instructions the integer kernels use on this machine."""
    run, products = _byte_products(detect())

    def part(number: int) -> None:
        memory = np.ones(2048, np.int8)
        run(memory.ctypes.data, rounds)

    part(0)
    return timed(lambda: side_by_side(threads, parts, part), float(products) * rounds * parts, repeats)
