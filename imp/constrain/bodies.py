"""Rows of states inside a JSON string: which depend on the characters left, and on what follows the quote, alone."""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import copy_words, row_words, set_bit, vocabulary_of
from .class_rows import NO_ROW
from .kernel import close, configs_of, counts_of, exits_of, full, intern, loops_of, nodes_of, states_of, step, steps_of
from .layout import (
    ACCEPT,
    BODIES_USED,
    BUCKETS,
    BYTE,
    CELL_COUNT,
    CELL_EXTRA,
    CELL_NODE,
    CELL_STACK,
    DEAD,
    DEPTH,
    ESCAPED,
    EXACT,
    FREE_USED,
    INSIDE,
    LONGEST,
    LOOP,
    LOOP_FLAGS,
    LOW,
    NO_ROWS,
    RANK,
    SIZE,
    STOPPED_ROOT,
    TEST,
    WORDS,
    WRITTEN,
    Int,
    jitted,
    words_at,
)
from .walks import path_of, room_of

free_of = layout.vector(layout.FREE)
bodies_of = layout.table(layout.BODIES, 4)
body_hash_of = layout.vector(layout.BODY_HASH)
long_of = layout.table(layout.LONG, 2)
suffixes_of = layout.table(layout.SUFFIXES, 4)
group_starts_of = layout.vector(layout.GROUP_STARTS)
groups_of = layout.table(layout.GROUPS, 2)

QUOTE = 0x22


@jitted
def _only_quote(context: np.ndarray, state: int) -> bool:
    exits = exits_of(context)
    return (
        states_of(context)[state, ACCEPT] == 0
        and exits[state, 0] & ~(np.uint64(1) << np.uint64(QUOTE)) == 0
        and exits[state, 1] == 0
        and exits[state, 2] == 0
    )


@jitted
def body_row(context: np.ndarray, state: int) -> Int:
    """The row of a state between two characters of a JSON string, NO_ROW for any other state, or a refusal."""
    states, configs, loops, nodes = states_of(context), configs_of(context), loops_of(context), nodes_of(context)
    cell, steps, longest = states[state, LOOP], steps_of(context), vocabulary_of(context)[LONGEST]
    if cell < 0:
        return NO_ROW
    node = configs[cell, CELL_NODE]
    kind = loops[node, LOOP_FLAGS] & np.uint64(ESCAPED | EXACT | INSIDE)
    if kind != np.uint64(ESCAPED | EXACT) or not _only_quote(context, state):
        return NO_ROW
    test = nodes[node, TEST]
    needed: Int = 0
    if test >= 0:
        needed = max(nodes[test, LOW] - configs[cell, CELL_COUNT], 0)
    if needed > 1:  # where the string is when it is long enough to end
        later = close(context, test, nodes[test, LOW], configs[cell, CELL_STACK])
    else:
        later = step(context, steps, state, 97)
    if later < 0:
        return later
    if not _only_quote(context, later):
        return NO_ROW
    ended_now, ended_later = step(context, steps, state, QUOTE), step(context, steps, later, QUOTE)
    if ended_now < 0 or ended_later < 0:
        return min(ended_now, ended_later)
    room, needed = min(room_of(context, cell), longest), min(needed, longest + 1)
    return _kept_body(context, ended_now, ended_later, needed, room)


@jitted
def _kept_body(context: np.ndarray, ended_now: int, ended_later: int, needed: int, room: int) -> Int:
    """The row of a string's body by all it depends on: the states after its quote, before and after another
    character; characters still needed; characters that fit (all tokens do where that is LONGEST)."""
    counts, bodies = counts_of(context), bodies_of(context)
    if counts[BODIES_USED] + 1 > len(bodies):
        return full(counts, layout.BODIES)
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    used = counts[BODIES_USED]
    key = intern(bodies, body_hash_of(context), counts, BODIES_USED, ended_now, ended_later, (needed << 16) + room)
    if key == used:
        bodies[key, CELL_EXTRA] = -1
    if bodies[key, CELL_EXTRA] >= 0:
        return bodies[key, CELL_EXTRA]
    row = free_of(context)[counts[FREE_USED]]
    counts[STOPPED_ROOT], counts[WRITTEN] = DEAD, row
    refused = _fill_body(context, row_words(context, row), ended_now, ended_later, needed, room)
    if refused < 0:
        return refused
    counts[FREE_USED] += 1
    bodies[key, CELL_EXTRA] = row
    return row


@jitted
def _fill_body(context: np.ndarray, mask: np.ndarray, ended_now: int, ended_later: int, needed: int, room: int) -> Int:
    vocabulary, long = vocabulary_of(context), long_of(context)
    words, unlimited = vocabulary[WORDS], room >= vocabulary[LONGEST]
    bucket = 0 if unlimited else min(room, BUCKETS - 1)
    copy_words(mask, words_at(context[2 * layout.BODY_ROWS] + bucket * words * 4, words))
    if not unlimited:
        for i in range(len(long)):
            if long[i, 1] > room:
                break
            set_bit(mask, long[i, 0])
    if ended_now == ended_later:
        return _add_suffixes(context, mask, ended_now, 0, room)
    refused = _add_suffixes(context, mask, ended_now, 0, 0)
    if refused < 0:
        return refused
    return _add_suffixes(context, mask, ended_later, max(needed, 1), room)


@jitted
def _add_group(context: np.ndarray, mask: np.ndarray, group: int, fewest: int, most: int) -> None:
    starts, groups = group_starts_of(context), groups_of(context)
    for i in range(starts[group], starts[group + 1]):
        if groups[i, 1] > most:
            break
        if groups[i, 1] >= fewest:
            set_bit(mask, groups[i, 0])


@jitted
def _add_suffixes(context: np.ndarray, mask: np.ndarray, ended: int, fewest: int, most: int) -> Int:
    """Tokens with fewest .. most characters before a quote after which the automaton, in state `ended`, goes on."""
    if ended == DEAD or fewest > most:
        return 0
    trie, path, steps = suffixes_of(context), path_of(context), steps_of(context)
    _add_group(context, mask, 0, fewest, most)
    path[0], node, last = ended, 0, len(trie) - 1
    while node < last:
        depth = trie[node, DEPTH]
        state = step(context, steps, path[depth], trie[node, BYTE])
        if state < 0:
            return state
        if state == DEAD:
            node += trie[node, SIZE]
            continue
        path[depth + 1] = state
        if trie[node + 1, RANK] > trie[node, RANK]:
            _add_group(context, mask, trie[node, RANK] + 1, fewest, most)
        node += 1
    return 0
