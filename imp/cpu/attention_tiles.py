"""One unit of attention in products of tiles (AMX): an item's queries for one kv head.

For a query, keys are taken in groups of 64 that begin at multiples of 64, in order. A group's keys and values are made
factors once for all rows (queries x heads) of the item; then 32 rows at a time get their scores, weights and values.
"""

from __future__ import annotations

from .attention_chunks import NOTHING, clear, close_chunk, helper, write_out
from .attention_floats import map_of
from .attention_micro import gather_of
from .attention_plan import CHUNK, ITEM, attend_units, item_of
from .attention_products import (
    GROUP,
    LINE,
    PARTS,
    SCORE_ROW,
    STEP,
    TILE_BYTES,
    cap_group,
    hide_keys,
    pair_keys_of,
    pair_queries,
    pair_values_of,
    scores_of,
    values_of,
    weigh,
    weigh_nothing,
    whole_weight,
)
from .kept import BLOCK, BRAIN, FLOAT, Kept
from .kv import KEPT
from .program import Kernel, kernel
from .simd import load_f32, load_i32, prefetch_to_write, real, store_f32, word
from .tiles import ROWS, release_tiles, shape_deep_tiles

BLOCKS = GROUP // BLOCK
PASS = 2 * ROWS  # rows that get their scores, weights and values before the next ones


@helper
def _weigh_rows(scores, m, l, o, columns, rows):
    """Rows that see all keys of a group."""
    for r in range(rows):
        weigh(scores + r * SCORE_ROW, m + r * 4, l + r * LINE, o + r * columns * 4, columns)


@helper
def _weigh_some(scores, m, l, o, columns, begin, end, first, after, blocks):
    """Rows begin..end of a pass, of one query, that sees keys first..after of a group's blocks."""
    for r in range(begin, end):
        row = scores + r * SCORE_ROW
        if after <= 0 or first >= GROUP:
            weigh_nothing(row)
            continue
        hide_keys(row, first, after, blocks)
        weigh(row, m + r * 4, l + r * LINE, o + r * columns * 4, columns)


def _attend(kept: Kept) -> Kernel:
    element, in_place, gather = kept.element, kept.in_place, gather_of(kept)
    parts = 1 if element is BRAIN else PARTS
    pair_keys = pair_keys_of(element, parts, element.size if in_place else 0)
    pair_values = pair_values_of(element, parts)
    size, key_tiles, value_tiles = element.size, parts * TILE_BYTES // STEP, parts * TILE_BYTES // 16
    query_bytes = PARTS * TILE_BYTES // STEP  # of 16 rows, for each dimension
    scores1, scores1_half = scores_of(1, BLOCKS, parts), scores_of(1, BLOCKS // 2, parts)
    scores2 = scores_of(2, 2, parts)
    values11, values14 = values_of(1, 1, parts), values_of(1, 4, parts)
    values21, values22 = values_of(2, 1, parts), values_of(2, 2, parts)

    @kernel(attend_units, name=f"attention.attend_tiles_{kept.name}")
    def attend(args, step, unit, scratch):
        """One item's queries for one kv head. args: as those of attention_floats.py's."""
        kv_heads, share, d, window = word(args, 6), word(args, 7), word(args, 8), word(args, 10)
        cap, record = real(args, 11), word(args, 12)
        item, head = word(args, 2) + unit // kv_heads * ITEM, unit % kv_heads
        first, queries, partial, chunks, position, table = item_of(step, item)
        cache, block_bytes = word(args, 4) + head * 2 * BLOCK * record, word(args, 5)

        rows = queries * share
        padded = (rows + ROWS - 1) // ROWS * ROWS
        dims, columns = (d + STEP - 1) // STEP * STEP, (d + 15) // 16 * 16
        nothing = scratch
        q = nothing + dims * 4
        o = q + padded // ROWS * dims * query_bytes
        sums = o + padded * columns * 4
        scores = sums + padded * columns * 4
        l = scores + PASS * SCORE_ROW
        k = l + padded * LINE
        v = k + BLOCKS * dims * key_tiles
        m = v + GROUP // STEP * columns * value_tiles
        if padded <= PASS:  # one pass: keys are done with before values come
            v = k
        state = m + padded * 4
        spread_k = state + padded * 8
        spread_v = spread_k + d * BLOCK * 4

        out_bytes = kv_heads * share * d * 4
        offset = first * out_bytes + head * share * d * 4
        clear(sums, rows * columns)
        for r in range(rows):
            source = word(args, 0) + offset + r // share * out_bytes + r % share * d * 4
            place = q + r // ROWS * dims * query_bytes + r % ROWS * LINE
            if partial < 0:
                for line in range(0, d * 4, LINE):
                    prefetch_to_write(word(args, 1) + (source - word(args, 0)) + line)
            pair_queries(source, real(args, 9), d, nothing, dims, place)
            store_f32(state + r * 8, NOTHING)
            store_f32(state + r * 8 + 4, 0.0)
        clear(nothing, dims)
        chosen = map_of(args, load_i32(item + 28), head)
        after = position + queries
        lowest = max(0, position - window + 1) // BLOCK * BLOCK if window > 0 else 0
        shape_deep_tiles(min(rows, ROWS))
        for chunk in range(load_i32(item + 12), load_i32(item + 16)):
            clear(o, rows * columns)
            clear(l, rows * 16)
            for r in range(rows):
                store_f32(m + r * 4, NOTHING)
            end = min((chunk + 1) * CHUNK, after)
            for base in range(max(chunk * CHUNK, lowest // GROUP * GROUP), end, GROUP):
                count = min(BLOCKS, (end - base + BLOCK - 1) // BLOCK)
                blocks = 0
                for block in range(count):
                    inside = base + block * BLOCK >= lowest
                    if inside and (chosen == 0 or load_i32(chosen + (base // BLOCK + block) * 4) != 0):
                        blocks |= 1 << block
                if blocks == 0:
                    continue
                places = table + base // BLOCK * 4
                for block in range(count):
                    if blocks >> block & 1 != 0:
                        here = cache + load_i32(places + block * 4) * block_bytes
                        following = here
                        if base + (BLOCKS + block) * BLOCK < end:
                            following = cache + load_i32(places + (BLOCKS + block) * 4) * block_bytes
                        keys = min(BLOCK, end - base - block * BLOCK)
                        gather(here, spread_k, spread_v + block * d * BLOCK * 4, d, keys, record, following)
                        source = here if in_place else spread_k
                        pair_keys(source, d, nothing, k + block * dims * key_tiles, following)
                steps = (count + 1) // 2
                # of the queries, those before the group and those whose window is past it do not see it
                begin = max(0, base - position) * share // PASS * PASS
                stop = padded
                if window > 0:
                    stop = min(padded, max(0, base + GROUP - 1 + window - position) * share)
                for r in range(begin, stop, PASS):
                    both = r + ROWS < padded
                    factor, sum = q + r // ROWS * dims * query_bytes, o + r * columns * 4
                    if both:
                        for s in range(steps):
                            scores2(factor, k + s * 2 * dims * key_tiles, dims, scores + s * 2 * LINE)
                    elif steps == 1:
                        scores1_half(factor, k, dims, scores)
                    else:
                        scores1(factor, k, dims, scores)
                    if r == begin:  # while the tiles are busy with scores
                        for s in range(steps):
                            a, b = s * 2, s * 2 + 1
                            keys_a = min(BLOCK, end - base - a * BLOCK) if blocks >> a & 1 != 0 else 0
                            keys_b = min(BLOCK, end - base - b * BLOCK) if blocks >> b & 1 != 0 else 0
                            at_a, at_b = spread_v + a * d * BLOCK * 4, spread_v + b * d * BLOCK * 4
                            if in_place and keys_a > 0:
                                at_a = cache + load_i32(places + a * 4) * block_bytes + d * BLOCK * size
                            if in_place and keys_b > 0:
                                at_b = cache + load_i32(places + b * 4) * block_bytes + d * BLOCK * size
                            pair_values(at_a, keys_a, at_b, keys_b, d, nothing, v + s * columns * value_tiles)
                    there = min(PASS, rows - r)
                    if cap > 0:
                        for i in range(there):
                            cap_group(scores + i * SCORE_ROW, cap)
                    at_m, at_l, at = m + r * 4, l + r * LINE, position - base
                    earliest, latest = r // share, (r + there - 1) // share
                    if (
                        blocks == (1 << BLOCKS) - 1
                        and at + earliest >= GROUP - 1
                        and (window == 0 or at + latest < window)
                    ):
                        _weigh_rows(scores, at_m, at_l, sum, columns, there)
                    else:
                        for query in range(earliest, latest + 1):
                            low, high = max(query * share - r, 0), min((query + 1) * share - r, there)
                            seen = at + query + 1
                            hidden = seen - window if window > 0 else 0
                            _weigh_some(scores, at_m, at_l, sum, columns, low, high, hidden, seen, blocks)
                    width = 32 if both else 64
                    for c in range(0, columns - width + 1, width):
                        if both:
                            values22(scores, v + c * value_tiles, steps, columns, sum + c * 4)
                        else:
                            values14(scores, v + c * value_tiles, steps, columns, sum + c * 4)
                    for c in range(columns // width * width, columns, 16):
                        if both:
                            values21(scores, v + c * value_tiles, steps, columns, sum + c * 4)
                        else:
                            values11(scores, v + c * value_tiles, steps, columns, sum + c * 4)
            for r in range(rows):
                weight = whole_weight(l + r * LINE)
                place = partial + r // share * chunks + chunk if partial >= 0 else -1
                own, top = head * share + r % share, load_f32(m + r * 4)
                sum, mine = o + r * columns * 4, sums + r * columns * 4
                close_chunk(args, place, own, top, weight, sum, state + r * 8, mine, d)
        release_tiles()
        if partial < 0:
            for r in range(rows):
                place = word(args, 1) + offset + r // share * out_bytes + r % share * d * 4
                write_out(args, state + r * 8, sums + r * columns * 4, place, d)

    return attend


TILED = {kept: _attend(kept) for kept in KEPT.values() if kept.element is not FLOAT or not kept.in_place}


def scratch_bytes(rows: int, d: int) -> int:
    """What a unit of so many rows needs of its thread's memory, at most."""
    rows, dims = -(-rows // ROWS) * ROWS, -(-d // STEP) * STEP
    return rows * (12 * dims + LINE + 12) + GROUP * (4 * dims + 4 * dims + 4 * d) + PASS * SCORE_ROW + 68 * dims
