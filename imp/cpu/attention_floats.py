"""One unit of attention in float32: an item's queries for one kv head.

For a query, keys are taken a block (16 positions) at a time, in order. Of few rows (queries x heads) floats are read
where they lie in the cache; more rows, and codes, have a tile of floats made first, block by block: K [head_dim][16]
and V [16][head_dim].
"""

from __future__ import annotations

from .attention_chunks import NOTHING, clear, close_chunk, helper, write_out
from .attention_micro import (
    NARROW,
    WIDE,
    cap_scores,
    direct_scores_of,
    direct_values_of,
    gather_of,
    rest_wide,
    scatter,
    scores_wide,
    soften_query,
    values_wide,
)
from .attention_plan import CHUNK, ITEM, attend_units, item_of
from .kept import BLOCK, Kept
from .kv import KEPT
from .program import Kernel, kernel
from .simd import load_f32, load_f32x8, load_i32, real, store_f32, total, word

DIRECT_ROWS = 8  # up to so many queries x heads read the cache itself where they can; more share a copy in floats


@helper
def map_of(args, number, head):
    """The map of blocks for one sparse query and kv head, 0 where all are attended to: int32 [blocks], at first with
    their scores as float32."""
    if number < 0 or word(args, 14) == 0:
        return 0
    return word(args, 14) + (number * word(args, 6) + head) * word(args, 15) * 4


def _attend(kept: Kept) -> Kernel:
    size, in_place, spread, gather = kept.element.size, kept.in_place, kept.spread, gather_of(kept)
    direct_scores, direct_values = direct_scores_of(kept), direct_values_of(kept.element)

    @kernel(attend_units, name=f"attention.attend_{kept.name}")
    def attend(args, step, unit, scratch):
        """One item's queries for one kv head.

        args: 0 q [T, H*d] f32, 1 out [T, H*d] f32, 2 items, 3 partials, 4 the layer's cache, 5 bytes of a block in it,
        6 kv heads, 7 query heads of each, 8 head_dim, 9 factor of q, 10 window (0: none), 11 cap of scores (0.0: none),
        12 bytes of a record, 13 whether values are turned, 14 the map of chosen blocks (0: none is chosen), 15 blocks
        of a row of the map
        """
        kv_heads, share, d, window = word(args, 6), word(args, 7), word(args, 8), word(args, 10)
        cap, record = real(args, 11), word(args, 12)
        item, head = word(args, 2) + unit // kv_heads * ITEM, unit % kv_heads
        first, queries, partial, chunks, position, table = item_of(step, item)
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
                            cap_scores(scores + r * 64, cap)
                    for query in range(queries):
                        seen = position + query + 1 - base
                        hidden = seen - window if window > 0 else 0
                        soften_query(scores, m, l, o, d, share, query * share, hidden, seen)
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
                        scores_wide(q + r * d * 4, k, d, scores + r * 64)
                    if cap > 0:
                        for r in range(begin, stop):
                            cap_scores(scores + r * 64, cap)
                    for query in range(begin // share, min(queries, (stop + share - 1) // share)):
                        seen = position + query + 1 - base
                        hidden = seen - window if window > 0 else 0
                        soften_query(scores, m, l, o, d, share, query * share, hidden, seen)
                    for r in range(begin, stop, WIDE):
                        for c in range(0, d - 15, 16):
                            values_wide(scores + r * 64, v + c * 4, d, keys, o + (r * d + c) * 4)
                        if d % 16 != 0:
                            rest_wide(scores + r * 64, v + (d - 8) * 4, d, keys, o + (r * d + d - 8) * 4)
            for r in range(rows):
                weight = total(load_f32x8(l + r * 32))
                place = partial + r // share * chunks + chunk if partial >= 0 else -1
                own, top = head * share + r % share, load_f32(m + r * 4)
                sum, mine = o + r * d * 4, sums + r * d * 4
                close_chunk(args, place, own, top, weight, sum, state + r * 8, mine, d)
        if partial < 0:
            for r in range(rows):
                place = word(args, 1) + offset + r // share * out_bytes + r % share * d * 4
                write_out(args, state + r * 8, sums + r * d * 4, place, d)

    return attend


FLOATS = {kept: _attend(kept) for kept in KEPT.values()}


def scratch_bytes(rows: int, d: int) -> int:
    """What a unit of so many rows needs of its thread's memory, at most."""
    return -(-rows // WIDE) * WIDE * (12 * d + 108) + 128 * d
