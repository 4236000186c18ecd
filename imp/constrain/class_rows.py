"""Rows of the tokens made of one wide class of characters, from which walks start in states that loop over them."""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import copy_words, row_words, set_bit, set_range, vocabulary_of
from .kernel import close, configs_of, counts_of, loops_of, nodes_of, states_of
from .layout import (
    ACCEPT,
    ANY_BYTE,
    BELOW_FLAGS,
    BELOW_HIGH,
    BELOW_LOW,
    BUCKETS,
    BYTE,
    CELL_COUNT,
    CELL_NODE,
    CELL_STACK,
    CHARS_SHIFT,
    CLASSES_USED,
    DEAD,
    DEPTH,
    ESCAPES_HERE,
    ESCAPES_USED,
    EXACT,
    INSIDE,
    LONGEST,
    LOOP,
    LOOP_CLASS,
    LOOP_FLAGS,
    LOOP_HIGH,
    LOOP_LOW,
    LOW,
    NO_CLASS,
    OWN_FLAGS,
    RANK,
    SIZE,
    STOPPED_ESCAPES,
    STOPPED_LATER,
    STOPPED_LOG,
    STOPPED_PRUNED,
    STOPPED_ROOT,
    STOPPED_TRIE,
    TEST,
    UNICODE,
    VALID,
    VISITED,
    WANTED,
    WANTED_CLASS,
    WIDE,
    WRITTEN,
    Int,
    jitted,
)
from .walks import (
    UNLIMITED,
    clean_below_of,
    clean_of,
    covers,
    in_class,
    path_of,
    pure_of,
    rest_below_of,
    rest_of,
    room_of,
    walk,
)

classes_of = layout.table(layout.CLASSES, 4, np.uint64)
class_rows_of = layout.table(layout.CLASS_ROWS, BUCKETS)

NO_ROW = -1


@jitted
def begin_mask(context: np.ndarray, state: int, free: int) -> Int:
    """Make row `free`, which is zeros if nothing was written to it, zeros or the row of the state's wide loop. Returns
    the loop node for which a walk may be pruned, -1, or NO_CLASS."""
    vocabulary, configs, loops = vocabulary_of(context), configs_of(context), loops_of(context)
    cell = states_of(context)[state, LOOP]
    if cell >= 0:
        node, room = configs[cell, CELL_NODE], room_of(context, cell)
        bucket = 0 if room >= vocabulary[LONGEST] else room
        flags = loops[node, LOOP_FLAGS]
        if flags & np.uint64(INSIDE) == 0 and bucket < BUCKETS and _is_wide(loops, node):
            row = _class_row(context, node, bucket)
            if row == NO_CLASS:
                return NO_CLASS
            if row >= 0:
                copy_words(row_words(context, free), row_words(context, row))
                counts_of(context)[WRITTEN] = free
                return node if flags & np.uint64(EXACT) != 0 else -1
    clear_row(context, free)
    return -1


@jitted
def clear_row(context: np.ndarray, free: int) -> None:
    if counts_of(context)[WRITTEN] == free:
        row_words(context, free)[:] = 0
    counts_of(context)[WRITTEN] = free


@jitted
def _is_wide(loops: np.ndarray, node: int) -> bool:
    if loops[node, LOOP_FLAGS] & np.uint64(UNICODE | ANY_BYTE) != 0:
        return True
    size, low, high = 0, loops[node, LOOP_LOW], loops[node, LOOP_HIGH]
    while low:
        low &= low - np.uint64(1)
        size += 1
    while high:
        high &= high - np.uint64(1)
        size += 1
    return size >= WIDE


@jitted
def _class_row(context: np.ndarray, node: int, bucket: int) -> Int:
    """The row of the loop's characters, at most `bucket` of them (0: any number); NO_ROW where the vocabulary keeps
    none, NO_CLASS where it is still to be made."""
    loops, classes, counts = loops_of(context), classes_of(context), counts_of(context)
    known: Int = np.int64(loops[node, LOOP_CLASS])
    if known == 0:
        for i in range(vocabulary_of(context)[CLASSES_USED]):
            if (
                classes[i, 0] == loops[node, LOOP_LOW]
                and classes[i, 1] == loops[node, LOOP_HIGH]
                and classes[i, 2] == loops[node, LOOP_FLAGS] & np.uint64(UNICODE | ANY_BYTE)
            ):
                known = i + 1
        loops[node, LOOP_CLASS] = known
    if known > len(classes):
        return NO_ROW
    row = class_rows_of(context)[known - 1, bucket] if known else NO_CLASS
    if row < 0:
        counts[WANTED], counts[WANTED_CLASS] = node, bucket
        return NO_CLASS
    return row


@jitted
def fill_class(context: np.ndarray, node: int, bucket: int, row: int) -> Int:
    """Into `row`, which is zeros: the tokens of the characters of `node`'s loop, at most `bucket` (0: any number)."""
    loops, path, mask = loops_of(context), path_of(context), row_words(context, row)
    low, high, flags = loops[node, LOOP_LOW], loops[node, LOOP_HIGH], loops[node, LOOP_FLAGS]
    counts_of(context)[STOPPED_ROOT] = DEAD
    most = bucket if bucket > 0 else UNLIMITED
    for which in range(2):
        trie = clean_of(context) if which == 0 else rest_of(context)
        below = clean_below_of(context) if which == 0 else rest_below_of(context)
        place, path[0] = 0, 0
        while place < len(below):
            depth, size, byte = trie[place, DEPTH], trie[place, SIZE], trie[place, BYTE]
            begins = byte < 128 or byte >= 192
            chars = path[depth] + (1 if begins else 0)
            whole = below[place, OWN_FLAGS] & np.uint64(3) == VALID or flags & np.uint64(ANY_BYTE) != 0
            if chars > most or not in_class(low, high, flags, byte) or not whole:
                place += size
                continue
            deepest = chars + np.int64(below[place, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT))
            if deepest <= most and covers(
                loops, node, below[place, BELOW_LOW], below[place, BELOW_HIGH], below[place, BELOW_FLAGS]
            ):
                set_range(mask, trie[place, RANK], trie[place + size, RANK])
                place += size
                continue
            path[depth + 1] = chars
            if trie[place + 1, RANK] > trie[place, RANK]:
                set_bit(mask, trie[place, RANK])
            place += 1
    return row


@jitted
def _later(context: np.ndarray, state: int, looping: int) -> Int:
    """Where loop node `looping`, in which `state` stands, has gone round as often as it must; DEAD where it has
    already, for no loop, where what follows is a wider loop, and where it is behind a frame that is left open, which
    says nothing of what follows. May be a refusal."""
    if looping < 0:
        return DEAD
    nodes, configs = nodes_of(context), configs_of(context)
    cell, test = states_of(context)[state, LOOP], nodes[looping, TEST]
    if test < 0 or configs[cell, CELL_COUNT] >= nodes[test, LOW]:
        return DEAD
    later = close(context, test, nodes[test, LOW], configs[cell, CELL_STACK])
    if later > DEAD:
        widest, leaves = states_of(context)[later, LOOP], states_of(context)[later, ACCEPT] & ESCAPES_HERE != 0
        if leaves or (widest >= 0 and configs[widest, CELL_NODE] != looping):
            return DEAD
    return later


@jitted
def walk_all(context: np.ndarray, state: int, free: int, log: bool) -> Int:
    """Fill row `free` from both tries. Returns where in ESCAPES what it logged begins (it ends at ESCAPES_USED), or a
    refusal. A walk that was refused goes on where it stopped, if nothing was written to the mask since."""
    counts, path, pure = counts_of(context), path_of(context), pure_of(context)
    resumed = counts[STOPPED_ROOT] == state and counts[STOPPED_LOG] == (1 if log else 0)
    counts[STOPPED_ROOT] = DEAD
    if not resumed:
        counts[VISITED] = 0
        pruned_for = begin_mask(context, state, free)
        if pruned_for == NO_CLASS:
            return NO_CLASS
        later = _later(context, state, pruned_for)
        if later < 0:
            return later
        path[0], pure[0] = state, 1
        counts[STOPPED_TRIE], counts[STOPPED_PRUNED], counts[STOPPED_LATER] = 0, pruned_for, later
        counts[STOPPED_ESCAPES] = counts[ESCAPES_USED]
    mask = row_words(context, free)
    for which in range(counts[STOPPED_TRIE], 2):
        refused = walk(context, which, -1, mask, counts[STOPPED_PRUNED], counts[STOPPED_LATER], log, resumed)
        if refused < 0:
            counts[STOPPED_ROOT], counts[STOPPED_LOG], counts[STOPPED_TRIE] = state, 1 if log else 0, which
            return refused
        resumed = False
    return counts[STOPPED_ESCAPES]
