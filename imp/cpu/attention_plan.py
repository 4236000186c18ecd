"""What a step's attention consists of: which queries meet which chunks of keys together, and what is merged afterwards.

Owns the work lists and the numbers their sizes follow from. Knows no arithmetic: units differ only in which queries
they hold and which chunks they close themselves, and no result depends on that.
"""

from __future__ import annotations

from ..jit import njit
from .program import (
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
    count,
    kernel,
)
from .simd import V, int32, int64, load_i32, micro, store, store_i32, word

CHUNK = 512  # keys whose sums are closed together
TILE = 32  # queries of a prompt that share a pass over the keys
DECODE_QUERIES = 8  # rows of more are cut into tiles
PARTIALS = 1024  # chunk sums that may pass through memory in a step, per query position

# bytes of a work item: first query, queries, row, first chunk, chunk after, partial or -1, chunks in all, and the
# number of a query that attends to chosen blocks alone, or -1
ITEM = 8 * 4
MERGE = 4 * 4  # bytes of a merge item: query, first partial, chunks


@count
def _once(args, step):
    return 1


@kernel(_once)
def plan(args, step, unit, scratch):
    """Work and merge lists of the step, from row starts and contexts. args: items, merges, partials there is room for.

    Prompt tiles first, in the order of tokens, as other ops have them; decode rows of several chunks are split by chunk
    while there is room for the partial sums. Positions that are sparse come last, one by one (choosing.py). More args:
    3 keys from which a position is sparse (0: none), 4 list of chunks to be scored."""
    item, merge, room = word(args, 0), word(args, 1), word(args, 2)
    starts, contexts, rows = word(step, STEP_ROW_STARTS), word(step, STEP_CONTEXTS), word(step, STEP_ROWS)
    items = merges = used = 0
    for row in range(rows):
        start = load_i32(starts + row * 4)
        after = start + _dense(step, row, word(args, 3))
        context = load_i32(contexts + row * 4) - (load_i32(starts + row * 4 + 4) - after)
        if after - start > DECODE_QUERIES:
            for tile in range((after - start + TILE - 1) // TILE):
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


@njit
def item_of(step, item):
    """What a work item says, but for its own chunks: first query, queries, partial or -1, chunks in all, position of
    the first query, address of the row's block table."""
    first, row = load_i32(item), load_i32(item + 8)
    position = load_i32(word(step, STEP_POSITIONS) + first * 4)
    table = word(step, STEP_TABLE) + load_i32(word(step, STEP_TABLE_STARTS) + row * 4) * 4
    return first, load_i32(item + 4), load_i32(item + 20), load_i32(item + 24), position, table


@count
def attend_units(args, step):
    return word(step, STEP_DECODE_COUNT) * word(args, 6)


@count
def merge_units(args, step):
    return word(step, STEP_MERGE_COUNT) * word(args, 6)
