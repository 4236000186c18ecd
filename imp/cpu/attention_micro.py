"""Micro-kernels of attention in float32, over blocks of 16 keys: scores, softmax, values.

Scores are an fma chain over the head dimension, ascending; the running maximum moves once a block, and only then are
the sums so far rescaled; values are added key by key, ascending. Nothing here knows of queries beside it, so a tile of
any number of rows gives each of them the same bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .attention_chunks import NOTHING, clear, exp2
from .kept import BLOCK, FLOAT, Element, Kept
from .simd import (
    F32,
    Micro,
    V,
    Var,
    broadcast,
    broadcast_f32,
    f32x8,
    f32x16,
    float32,
    fma,
    i32x8,
    int32,
    int64,
    largest,
    load,
    load_f32x8,
    loop,
    maximum,
    micro,
    prefetch,
    runs,
    select,
    splat,
    splat_i32,
    store,
    tanh,
    when,
    zeros,
)

LINE = 64  # bytes of a cache line
WIDE = 12  # queries x heads of a register tile over floats
NARROW = 4  # and over the cache


def _scores(rows: int, element: Element, ahead: int) -> Micro:
    """scores [rows][16] = q [d][rows] (packed) times K [d][16]. `following` is the block that comes then, K and V, of
    which `ahead` cache lines are asked for with each column."""

    @micro(int64, int64, int64, int64, int64)
    def scores(q: V, k: V, d: V, out: V, following: V) -> None:
        sums = [Var(zeros(f32x8)) for _ in range(2 * rows)]
        for i in loop(0, d, 4):
            for j in range(4):
                for line in range(ahead):
                    prefetch(following + ((i + j) * ahead + line) * LINE)
                low, high = element.lanes(k, (i + j) * BLOCK), element.lanes(k, (i + j) * BLOCK + 8)
                for r in range(rows):
                    x = broadcast_f32(q + ((i + j) * rows + r) * 4)
                    sums[2 * r].set(fma(low, x, sums[2 * r]))
                    sums[2 * r + 1].set(fma(high, x, sums[2 * r + 1]))
        for place, s in enumerate(sums):
            store(out + place * 32, V(s.ir))

    return scores


def _values(rows: int, element: Element, width: int) -> Micro:
    """o [rows][d] += weights [rows][16] times V [keys][d], for 8 * width columns."""

    @micro(int64, int64, int64, int64, int64)
    def values(weights: V, v: V, d: V, keys: V, o: V) -> None:
        places = [(r, o + (d * r + 8 * c) * 4) for r in range(rows) for c in range(width)]
        sums = [Var(load_f32x8(place)) for _, place in places]
        for j in loop(keys):
            columns = [element.lanes(v, j * d + 8 * c) for c in range(width)]
            for r in range(rows):
                weight = broadcast_f32(weights + j * 4 + r * 64)
                for c in range(width):
                    s = sums[r * width + c]
                    s.set(fma(columns[c], weight, s))
        for (_, place), s in zip(places, sums, strict=True):
            store(place, V(s.ir))

    return values


def _shape() -> tuple[int, int, Any]:
    """Of a tile over floats: rows at once, vectors that hold 16 numbers, and their type; as registers allow."""
    return (WIDE, 1, f32x16) if runs("avx512") else (WIDE // 2, 2, f32x8)


@micro(int64, int64, int64, int64)
def scores_wide(q: V, k: V, d: V, out: V) -> None:
    """As _scores of WIDE rows, over floats."""
    rows, parts, kind = _shape()
    for first in range(0, WIDE, rows):
        sums = [[Var(zeros(kind)) for _ in range(parts)] for _ in range(rows)]
        for i in loop(0, d, 4):
            for j in range(4):
                keys = [load(k + (i + j) * (BLOCK * 4) + part * kind.count * 4, kind.ir) for part in range(parts)]
                for r, row in enumerate(sums):
                    x = broadcast(load(q + ((i + j) * WIDE + (first + r)) * 4, F32), kind.count)
                    for s, key in zip(row, keys, strict=True):
                        s.set(fma(key, x, s))
        for r, row in enumerate(sums):
            for part, s in enumerate(row):
                store(out + ((first + r) * 16 + part * kind.count) * 4, V(s.ir))


@micro(int64, int64, int64, int64, int64)
def values_wide(weights: V, v: V, d: V, keys: V, o: V) -> None:
    """As _values of WIDE rows and 16 columns, over floats."""
    rows, parts, kind = _shape()
    for first in range(0, WIDE, rows):
        places = [o + (d * (first + r) + part * kind.count) * 4 for r in range(rows) for part in range(parts)]
        sums = [Var(load(place, kind.ir)) for place in places]
        for j in loop(keys):
            columns = [load(v + (j * d + part * kind.count) * 4, kind.ir) for part in range(parts)]
            for r in range(rows):
                weight = broadcast(load(weights + j * 4 + (first + r) * 64, F32), kind.count)
                for part, column in enumerate(columns):
                    s = sums[r * parts + part]
                    s.set(fma(column, weight, s))
        for place, s in zip(places, sums, strict=True):
            store(place, V(s.ir))


# the last 8 columns of a head dimension that is no multiple of 16
rest_wide = _values(WIDE, FLOAT, 1)


def direct_scores_of(kept: Kept, asks: bool = True) -> Micro:
    """Of any number of rows: in tiles of NARROW and one of the rest.   asks: keys and values of the block that comes
    then are asked for meanwhile."""
    element = kept.element
    ahead = 2 * BLOCK * element.size // LINE if kept.in_place and asks else 0  # K and V of a block in d columns
    tiles = {rows: _scores(rows, element, ahead) for rows in range(1, NARROW + 1)}

    @micro(int64, int64, int64, int64, int64, int64)
    def direct_scores(q: V, k: V, d: V, rows: V, scores: V, following: V) -> None:
        for r in loop(0, rows, NARROW):
            for n, tile in tiles.items():
                with when(rows - r >= n if n == NARROW else (rows - r).equals(n)):
                    tile(q + r * d * 4, k, d, scores + r * 64, following)

    return direct_scores


def direct_values_of(element: Element) -> Micro:
    """As direct_scores_of."""
    tiles = {rows: _values(rows, element, 2) for rows in range(1, NARROW + 1)}
    rest = _values(1, element, 1)

    @micro(int64, int64, int64, int64, int64, int64)
    def direct_values(weights: V, v: V, d: V, rows: V, keys: V, o: V) -> None:
        for r in loop(0, rows, NARROW):
            for n, tile in tiles.items():
                with when(rows - r >= n if n == NARROW else (rows - r).equals(n)):
                    for c in loop(0, d - 15, 16):
                        tile(weights + r * 64, v + c * element.size, d, keys, o + (r * d + c) * 4)
        with when((d & 15) > 0):
            for r in loop(rows):
                rest(weights + r * 64, v + (d - 8) * element.size, d, keys, o + (r * d + d - 8) * 4)

    return direct_values


def gather_of(kept: Kept) -> Micro:
    """The floats of a block for few rows, where they cannot be read in place; `following`, the block that comes then,
    is asked for meanwhile."""

    @micro(int64, int64, int64, int64, int64, int64, int64)
    def gather(head: V, k: V, v: V, d: V, keys: V, record: V, following: V) -> None:
        if not kept.in_place:
            for line in loop(0, record * (2 * BLOCK), LINE):
                prefetch(following + line)
            kept.spread(head, k, v, d, keys, record)

    return gather


@micro(int64, int64, int64, int64, float32)
def scatter(source: V, to: V, distance: V, d: V, factor: V) -> None:
    for i in loop(d):
        store(to + i * distance, load(source + i * 4, F32) * factor)


@micro(int64, int32, int32)
def _hide(scores: V, first: V, after: V) -> None:
    """Scores of keys outside first..after become NOTHING, whatever they were."""
    for half in (0, 8):
        lane = V(ir.Constant(i32x8.ir, list(range(half, half + 8))))
        seen = (lane >= splat_i32(first)) & (lane < splat_i32(after))
        at = scores + half * 4
        store(at, select(seen, load_f32x8(at), splat(NOTHING)))


@micro(int64, float32)
def cap_scores(scores: V, cap: V) -> None:
    for half in (0, 8):
        at = scores + half * 4
        store(at, splat(cap) * tanh(load_f32x8(at)))


@micro(int64, int64, int64, int64, int64)
def _soften(scores: V, m: V, l: V, o: V, d: V) -> None:
    """One query, one block: scores become weights 2^(score - m); m, l [8] (a sum per lane) and o [d] follow."""
    low, high = load_f32x8(scores), load_f32x8(scores + 32)
    before, top = load(m, F32), largest(maximum(low, high))
    with when(top > before):
        factor = exp2(splat(before - top))
        store(m, top)
        store(l, load_f32x8(l) * factor)
        for i in loop(0, d, 8):
            store(o + i * 4, load_f32x8(o + i * 4) * factor)
    now = splat(load(m, F32))
    low, high = exp2(low - now), exp2(high - now)
    store(scores, low)
    store(scores + 32, high)
    store(l, load_f32x8(l) + (low + high))


@micro(int64, int64, int64, int64, int64, int64, int64, int32, int32)
def soften_query(scores: V, m: V, l: V, o: V, d: V, rows: V, r: V, first: V, after: V) -> None:
    """Scores of one block become weights for `rows` rows from r, the heads of a query that sees lanes first..after of
    the block; 0 where it sees none."""
    unseen = (after <= 0) | (first >= BLOCK)
    partly = (first > 0) | (after < BLOCK)
    for i in loop(r, r + rows):
        with when(unseen):
            clear(scores + i * 64, BLOCK)
        with when(unseen.equals(0)):
            with when(partly):
                _hide(scores + i * 64, first, after)
            _soften(scores + i * 64, m + i * 4, l + i * 32, o + i * d * 4, d)
