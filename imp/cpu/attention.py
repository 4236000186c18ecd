"""Attention over the paged KV cache, bit for bit the same however a step is cut up.

Owns the work lists of a step and the arithmetic of softmax(q k) v. Knows no models and no sequences. A token's output
depends on its query and its keys only: not on the row it is computed in (decode or prompt), the step's other rows, the
chunking of its prompt or the number of threads. So a cache hit, a preemption or a retry cannot change a text.

What makes it so: for a query, keys are taken a block (16 positions) at a time, in order. Scores are an fma chain over
the head dimension, ascending; the running maximum moves once a block, and only then are the sums so far rescaled;
values are added key by key, ascending. Every CHUNK keys the sums (m, l, o) are closed and *merged* into those of the
chunks before, in order, by one formula. Units differ only in which queries they hold and which chunks they close
themselves: the other chunks' sums pass through memory and are merged by `merge`. Scores are in units of log2.

The cache is as kept.py says. Floats are read where they lie; of codes a tile of floats is made first, block by block:
K [head_dim][16] and V [16][head_dim].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import njit

from ..model.buffers import Buffer
from ..model.ops import Attention, StepLimits
from .kept import BLOCK, FLOAT, Element, Kept, turn
from .kv import KEPT
from .program import (
    SCRATCH_BYTES,
    STEP_CONTEXTS,
    STEP_DECODE_COUNT,
    STEP_MERGE_COUNT,
    STEP_OUTPUTS,
    STEP_POSITIONS,
    STEP_ROW_STARTS,
    STEP_ROWS,
    STEP_SCORE_COUNT,
    STEP_SPARSE_COUNT,
    STEP_TABLE,
    STEP_TABLE_STARTS,
    Kernel,
    Op,
    count,
    kernel,
)
from .simd import (
    F32,
    Micro,
    V,
    Var,
    bits,
    broadcast_f32,
    f32x8,
    float32,
    fma,
    i32x8,
    int32,
    int64,
    lane,
    largest,
    load,
    load_f32,
    load_f32x8,
    load_i32,
    loop,
    maximum,
    micro,
    prefetch,
    real,
    select,
    splat,
    splat_i32,
    store,
    store_f32,
    store_i32,
    total,
    when,
    word,
    zeros,
)
from .simd import tanh as tanh_f32x8

if TYPE_CHECKING:
    from .choosing import Choice

LINE = 64  # bytes of a cache line
CHUNK = 512  # keys whose sums are closed together
TILE = 16  # queries of a prompt that share a pass over the keys
DECODE_QUERIES = 8  # rows of more are cut into tiles
DIRECT_ROWS = 8  # up to so many queries x heads read the cache itself where they can; more share a copy in floats
WIDE = 6  # queries x heads of a register tile over floats
NARROW = 4  # and over the cache
PARTIALS = 1024  # chunk sums that may pass through memory in a step, per query position

NOTHING = -(2.0**100)  # the maximum of no scores; exact in float32
# bytes of a work item: first query, queries, row, first chunk, chunk after, partial or -1, chunks in all, and the
# number of a query that attends to chosen blocks alone, or -1
ITEM = 8 * 4
MERGE = 4 * 4  # bytes of a merge item: query, first partial, chunks


# ---- micro-kernels


def _exp2(x: V) -> V:
    """2^x for x <= 0 to 1e-7 relative; exactly 1 at 0 and exactly 0 below -126."""
    shifted = x + 12582912.0  # 1.5 * 2^23: the sum's low bits are the nearest integer
    r = x - (shifted - 12582912.0)
    p = fma(r, EXP2[6], EXP2[5])
    for c in EXP2[4::-1]:
        p = fma(p, r, c)
    scaled = bits(p, i32x8.ir) + (bits(shifted, i32x8.ir) << 23)
    return select(x < -126.0, zeros(f32x8), bits(scaled, f32x8.ir))


# 2^r = sum of EXP2[i] r^i on [-1/2, 1/2] to 2e-9 relative: least squares at 400 Chebyshev points, the first held at 1
EXP2 = (1.0, 0.6931472056, 0.2402264846, 0.05550329035, 0.009618373251, 0.001339984829, 0.0001537070482)


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


_scores_wide = _scores(WIDE, FLOAT, ahead=0)
_values_wide = _values(WIDE, FLOAT, 2)
# the last 8 columns of a head dimension that is no multiple of 16
_rest_wide = _values(WIDE, FLOAT, 1)


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


def _direct_values(element: Element) -> Micro:
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


@micro(int64, int64)
def clear(address: V, size: V) -> None:
    for i in loop(0, size, 8):
        store(address + i * 4, zeros(f32x8))


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
def _cap(scores: V, cap: V) -> None:
    for half in (0, 8):
        at = scores + half * 4
        store(at, splat(cap) * tanh_f32x8(load_f32x8(at)))


@micro(int64, int64, int64, int64, int64)
def _soften(scores: V, m: V, l: V, o: V, d: V) -> None:
    """One query, one block: scores become weights 2^(score - m); m, l [8] (a sum per lane) and o [d] follow."""
    low, high = load_f32x8(scores), load_f32x8(scores + 32)
    before, top = load(m, F32), largest(maximum(low, high))
    with when(top > before):
        factor = _exp2(splat(before - top))
        store(m, top)
        store(l, load_f32x8(l) * factor)
        for i in loop(0, d, 8):
            store(o + i * 4, load_f32x8(o + i * 4) * factor)
    now = splat(load(m, F32))
    low, high = _exp2(low - now), _exp2(high - now)
    store(scores, low)
    store(scores + 32, high)
    store(l, load_f32x8(l) + (low + high))


@micro(int64, int64, int64, int64, int64, int64, int64, int32, int32)
def _soften_query(scores: V, m: V, l: V, o: V, d: V, rows: V, r: V, first: V, after: V) -> None:
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


@micro(int64, int64, float32, float32, int64, int64)
def _merge(state: V, sums: V, m: V, l: V, o: V, d: V) -> None:
    """state [m, l] and sums [d] of the chunks so far take in the next chunk's."""
    before, weight = load(state, F32), load(state + 4, F32)
    top = select(m > before, m, before)
    old, new = _exp2(splat(before - top)), _exp2(splat(m - top))
    store(state, top)
    store(state + 4, weight * lane(old, 0) + l * lane(new, 0))
    for i in loop(0, d, 8):
        at = sums + i * 4
        store(at, fma(load_f32x8(o + i * 4), new, load_f32x8(at) * old))


@micro(int64, float32, int64, int64)
def _scale_to(sums: V, factor: V, out: V, d: V) -> None:
    for i in loop(0, d, 8):
        store(out + i * 4, load_f32x8(sums + i * 4) * splat(factor))


# ---- the step's work


@count
def _once(args, step):
    return 1


@kernel(_once)
def plan(args, step, unit, scratch):
    """Work and merge lists of the step, from row starts and contexts. args: items, merges, partials there is room for.

    Prompt tiles first, the longest of a row first; decode rows of several chunks are split by chunk while there is
    room for the partial sums. Positions that are sparse come last, one by one (sparse.py). More args: 3 keys from which
    a position is sparse (0: none), 4 list of chunks to be scored."""
    item, merge, room = word(args, 0), word(args, 1), word(args, 2)
    starts, contexts, rows = word(step, STEP_ROW_STARTS), word(step, STEP_CONTEXTS), word(step, STEP_ROWS)
    items = merges = used = 0
    for row in range(rows):
        start = load_i32(starts + row * 4)
        after = start + _dense(step, row, word(args, 3))
        context = load_i32(contexts + row * 4) - (load_i32(starts + row * 4 + 4) - after)
        if after - start > DECODE_QUERIES:
            for tile in range((after - start - 1) // TILE, -1, -1):
                first = start + tile * TILE
                queries = min(TILE, after - first)
                chunks = (context - (after - first - queries) + CHUNK - 1) // CHUNK
                _add_item(item + items * ITEM, first, queries, row, 0, chunks, -1, chunks, -1)
                items += 1
    for row in range(rows):
        start = load_i32(starts + row * 4)
        queries = _dense(step, row, word(args, 3))
        context = load_i32(contexts + row * 4) - (load_i32(starts + row * 4 + 4) - start - queries)
        chunks = (context + CHUNK - 1) // CHUNK
        if queries == 0 or queries > DECODE_QUERIES:
            continue
        if chunks == 1 or used + queries * chunks > room:
            _add_item(item + items * ITEM, start, queries, row, 0, chunks, -1, chunks, -1)
            items += 1
            continue
        for chunk in range(chunks):
            _add_item(item + items * ITEM, start, queries, row, chunk, chunk + 1, used, chunks, -1)
            items += 1
        for query in range(queries):
            place = merge + merges * MERGE
            store_i32(place, start + query)
            store_i32(place + 4, used)
            store_i32(place + 8, chunks)
            used += chunks
            merges += 1
    number = scored = 0
    for row in range(rows):
        start, after = load_i32(starts + row * 4), load_i32(starts + row * 4 + 4)
        for query in range(start + _dense(step, row, word(args, 3)), after):
            chunks = (load_i32(contexts + row * 4) - (after - query - 1) + CHUNK - 1) // CHUNK
            _add_item(item + items * ITEM, query, 1, row, 0, chunks, -1, chunks, number)
            for chunk in range(chunks):
                _add_item(word(args, 4) + scored * ITEM, query, 1, row, chunk, chunk + 1, -1, chunks, number)
                scored += 1
            items += 1
            number += 1
    store(step + STEP_SPARSE_COUNT * 8, number)
    store(step + STEP_SCORE_COUNT * 8, scored)
    store(step + STEP_DECODE_COUNT * 8, items)
    store(step + STEP_MERGE_COUNT * 8, merges)


@njit
def _dense(step, row, least):
    """Queries of a row that attend to all their keys; those behind them do not."""
    starts, outputs = word(step, STEP_ROW_STARTS) + row * 4, word(step, STEP_OUTPUTS)
    queries = load_i32(starts + 4) - load_i32(starts)
    if least == 0 or outputs == 0:
        return queries
    position = load_i32(word(step, STEP_CONTEXTS) + row * 4) - queries
    return min(max(max(load_i32(outputs + row * 4), least - 1) - position, 0), queries)


@micro(int64, int32, int32, int32, int32, int32, int32, int32, int32)
def _add_item(item: V, first: V, queries: V, row: V, chunk: V, after: V, partial: V, chunks: V, number: V) -> None:
    for i, field in enumerate((first, queries, row, chunk, after, partial, chunks, number)):
        store(item + i * 4, field)


# ---- attention


@count
def _attend_units(args, step):
    return word(step, STEP_DECODE_COUNT) * word(args, 6)


helper = njit(error_model="numpy")


@helper
def map_of(args, number, head):
    """The map of blocks for one sparse query and kv head, 0 where all are attended to: int32 [blocks], at first with
    their scores as float32."""
    if number < 0 or word(args, 14) == 0:
        return 0
    return word(args, 14) + (number * word(args, 6) + head) * word(args, 15) * 4


def _attend(kept: Kept) -> Kernel:
    size, in_place, spread, gather = kept.element.size, kept.in_place, kept.spread, gather_of(kept)
    direct_scores, direct_values = direct_scores_of(kept), _direct_values(kept.element)

    @kernel(_attend_units, name=f"attention.attend_{kept.name}")
    def attend(args, step, unit, scratch):
        """One item's queries for one kv head.

        args: 0 q [T, H*d] f32, 1 out [T, H*d] f32, 2 items, 3 partials, 4 the layer's cache, 5 bytes of a block in it,
        6 kv heads, 7 query heads of each, 8 head_dim, 9 factor of q, 10 window (0: none), 11 cap of scores (0.0: none),
        12 bytes of a record, 13 whether values are turned, 14 the map of chosen blocks (0: none is chosen), 15 blocks
        of a row of the map
        """
        kv_heads, share, d, window = word(args, 6), word(args, 7), word(args, 8), word(args, 10)
        cap, record, turns = real(args, 11), word(args, 12), word(args, 13)
        item, head = word(args, 2) + unit // kv_heads * ITEM, unit % kv_heads
        first, queries, row = load_i32(item), load_i32(item + 4), load_i32(item + 8)
        partial, chunks = load_i32(item + 20), load_i32(item + 24)
        position = load_i32(word(step, STEP_POSITIONS) + first * 4)
        table = word(step, STEP_TABLE) + load_i32(word(step, STEP_TABLE_STARTS) + row * 4) * 4
        cache, block_bytes = word(args, 4) + head * 2 * BLOCK * record, word(args, 5)

        rows = queries * share
        direct = rows <= DIRECT_ROWS
        padded = rows if direct else (rows + WIDE - 1) // WIDE * WIDE
        q = scratch
        o = q + padded * d * 4
        sums = o + padded * d * 4
        scores = sums + padded * d * 4
        l = scores + padded * 64
        k = l + padded * 32
        v = k + d * 64
        m = v + d * 64
        state = m + padded * 4

        out_bytes = kv_heads * share * d * 4
        offset = first * out_bytes + head * share * d * 4
        # queries as the register tiles read them: tiles of `width` rows (the last may be narrower), each [d][its rows]
        width = NARROW if direct else WIDE
        clear(q, padded * d)
        clear(sums, padded * d)
        for r in range(rows):
            tile = r // width * width
            source = word(args, 0) + offset + r // share * out_bytes + r % share * d * 4
            scatter(source, q + (tile * d + r - tile) * 4, min(width, padded - tile) * 4, d, real(args, 9))
            store_f32(state + r * 8, NOTHING)
            store_f32(state + r * 8 + 4, 0.0)
        chosen = map_of(args, load_i32(item + 28), head)
        after = position + queries
        lowest = max(0, position - window + 1) // BLOCK * BLOCK if window > 0 else 0
        for chunk in range(load_i32(item + 12), load_i32(item + 16)):
            clear(o, padded * d)
            clear(l, padded * 8)
            for r in range(rows):
                store_f32(m + r * 4, NOTHING)
            end = min((chunk + 1) * CHUNK, after)
            for base in range(max(chunk * CHUNK, lowest), end, BLOCK):
                if chosen != 0 and load_i32(chosen + base // BLOCK * 4) == 0:
                    continue
                here = cache + load_i32(table + base // BLOCK * 4) * block_bytes
                keys = min(BLOCK, end - base)
                if direct:
                    following = here
                    if base + BLOCK < end and (chosen == 0 or load_i32(chosen + (base // BLOCK + 1) * 4) != 0):
                        following = cache + load_i32(table + (base // BLOCK + 1) * 4) * block_bytes
                    gather(here, k, v, d, keys, record, following)
                    direct_scores(q, here if in_place else k, d, rows, scores, following)
                    if cap > 0:
                        for r in range(rows):
                            _cap(scores + r * 64, cap)
                    for query in range(queries):
                        seen = position + query + 1 - base
                        hidden = seen - window if window > 0 else 0
                        _soften_query(scores, m, l, o, d, share, query * share, hidden, seen)
                    direct_values(scores, here + d * BLOCK * size if in_place else v, d, rows, keys, o)
                else:
                    spread(here, k, v, d, keys, record)
                    # of the queries, those before the block and those whose window is past it do not see it
                    begin = max(0, base - position) * share // WIDE * WIDE
                    stop = padded
                    if window > 0:
                        past = max(0, base + BLOCK - 1 + window - position) * share
                        stop = min(padded, (past + WIDE - 1) // WIDE * WIDE)
                    for r in range(begin, stop, WIDE):
                        _scores_wide(q + r * d * 4, k, d, scores + r * 64, k)
                    if cap > 0:
                        for r in range(begin, stop):
                            _cap(scores + r * 64, cap)
                    for query in range(begin // share, min(queries, (stop + share - 1) // share)):
                        seen = position + query + 1 - base
                        hidden = seen - window if window > 0 else 0
                        _soften_query(scores, m, l, o, d, share, query * share, hidden, seen)
                    for r in range(begin, stop, WIDE):
                        for c in range(0, d - 15, 16):
                            _values_wide(scores + r * 64, v + c * 4, d, keys, o + (r * d + c) * 4)
                        if d % 16 != 0:
                            _rest_wide(scores + r * 64, v + (d - 8) * 4, d, keys, o + (r * d + d - 8) * 4)
            for r in range(rows):
                weight = total(load_f32x8(l + r * 32))
                if partial >= 0:
                    record = partial + r // share * chunks + chunk
                    _keep_partial(args, record, head * share + r % share, load_f32(m + r * 4), weight, o + r * d * 4, d)
                elif weight > 0:
                    _merge(state + r * 8, sums + r * d * 4, load_f32(m + r * 4), weight, o + r * d * 4, d)
        if partial < 0:
            for r in range(rows):
                place = word(args, 1) + offset + r // share * out_bytes + r % share * d * 4
                _scale_to(sums + r * d * 4, 1.0 / load_f32(state + r * 8 + 4), place, d)
                if turns != 0:
                    turn(place, d)

    return attend


@helper
def _record(args, record, head):
    """Address of a chunk's sums of one query head: m, l, 6 unused, o [d]."""
    heads, d = word(args, 6) * word(args, 7), word(args, 8)
    return word(args, 3) + (record * heads + head) * (d + 8) * 4


@helper
def _keep_partial(args, record, head, m, weight, o, d):
    place = _record(args, record, head)
    store_f32(place, m)
    store_f32(place + 4, weight)
    _scale_to(o, 1.0, place + 32, d)


@count
def _merge_units(args, step):
    return word(step, STEP_MERGE_COUNT) * word(args, 6)


@kernel(_merge_units)
def merge(args, step, unit, scratch):
    """The chunks of one query's heads of one kv head. args: as attend's, with 2 the merge list."""
    kv_heads, share, d = word(args, 6), word(args, 7), word(args, 8)
    item, first = word(args, 2) + unit // kv_heads * MERGE, unit % kv_heads * share
    query, record, chunks = load_i32(item), load_i32(item + 4), load_i32(item + 8)
    state, sums = scratch, scratch + 64
    for head in range(first, first + share):
        clear(sums, d)
        store_f32(state, NOTHING)
        store_f32(state + 4, 0.0)
        for chunk in range(chunks):
            place = _record(args, record + chunk, head)
            if load_f32(place + 4) > 0:
                _merge(state, sums, load_f32(place), load_f32(place + 4), place + 32, d)
        out = word(args, 1) + (query * kv_heads * share + head) * d * 4
        _scale_to(sums, 1.0 / load_f32(state + 4), out, d)
        if word(args, 13) != 0:
            turn(out, d)


# ---- recording

ATTENDS = {kept: _attend(kept) for kept in KEPT.values()}


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWork:
    """The lists all attention layers of a program share; filled anew in every step by the op `planned`."""

    items: Buffer
    merges: Buffer
    partials: int  # chunk sums there is room for
    tokens: int
    choice: Choice | None = None  # which positions choose their blocks; None: none does

    @classmethod
    def sized(cls, limits: StepLimits, choice: Choice | None = None) -> AttentionWork:
        chunks = -(-limits.context // CHUNK)
        partials = min(PARTIALS, limits.rows * DECODE_QUERIES * chunks)
        return cls(
            items=Buffer((limits.tokens + partials) * ITEM, "attention items"),
            merges=Buffer(partials * MERGE, "attention merges"),
            partials=partials,
            tokens=limits.tokens,
            choice=choice,
        )

    def planned(self) -> Op:
        """The op that has to come before the first attention of a program."""
        lists = (self.items, self.merges)
        if self.choice is None:
            return Op(plan, (*lists, self.partials, 0, 0), writes=lists)
        scored = self.choice.scored
        return Op(plan, (*lists, self.partials, self.choice.sparse.least, scored), writes=(*lists, scored))

    def attended(
        self, q: Buffer, attention: Attention, cache: Any, block_bytes: int, kept: Kept
    ) -> tuple[list[Op], Buffer]:
        """The ops of one layer and what they make, [T, H*d]. `cache` is (the address of) the layer's part of the KV
        cache, kept like this, `block_bytes` the distance of its blocks. Queries are turned where keys are."""
        a = attention
        rows = -(-TILE * (a.heads // a.kv_heads) // WIDE) * WIDE
        assert a.head_dim % 8 == 0, "head_dim is a multiple of 8"
        assert rows * (12 * a.head_dim + 108) + 128 * a.head_dim <= SCRATCH_BYTES, "a tile's sums fit the scratch"
        out = Buffer(self.tokens * a.heads * a.head_dim * 4, "attended")
        partials = Buffer(self.partials * a.heads * (a.head_dim + 8) * 4, "attention partials")
        # scores are in units of log2; tanh wants them in units of the cap
        factor = a.scale / a.softcap if a.softcap else a.scale * math.log2(math.e)
        cap = a.softcap * math.log2(math.e) if a.softcap else 0.0
        stored = kept.format.record_bytes(a.head_dim), int(kept.format.turns)
        shape = (a.kv_heads, a.heads // a.kv_heads, a.head_dim, float(factor), a.window or 0, float(cap), *stored)
        choosing: tuple[Any, ...] = (0, 0)
        chosen: list[Buffer] = []
        ops: list[Op] = []
        if self.choice is not None and a.window is None:
            places = self.choice.places(a.kv_heads)
            choosing, chosen = (places, self.choice.blocks), [places]
            ops = self.choice.ops(kept, q, cache, block_bytes, shape, self.items, places)
        first = (q, out, self.items, partials, cache, block_bytes, *shape, *choosing)
        then = (q, out, self.merges, partials, cache, block_bytes, *shape)
        return [
            *ops,
            Op(ATTENDS[kept], first, reads=(q, self.items, *chosen), writes=(out, partials)),
            Op(merge, then, reads=(self.merges, partials), writes=(out,)),
        ], out
