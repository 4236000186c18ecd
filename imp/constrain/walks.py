"""Walks over the tries of a vocabulary's tokens with the automaton, by whole ranges where a loop lets all pass."""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import clear_range, set_bit, set_range
from .kernel import configs_of, counts_of, exits_of, full, loops_of, nodes_of, states_of, step, steps_of
from .layout import (
    ACCEPT,
    ACCEPTS,
    ANY_BYTE,
    BELOW_FLAGS,
    BELOW_HIGH,
    BELOW_LOW,
    BYTE,
    CELL_COUNT,
    CELL_NODE,
    CHARS_SHIFT,
    DEAD,
    DEPTH,
    ESCAPES_HERE,
    ESCAPES_USED,
    HIGH,
    INSIDE,
    LOOP,
    LOOP_FLAGS,
    LOOP_HIGH,
    LOOP_LOW,
    LOW,
    MEMBER_COUNT,
    RANK,
    SIZE,
    STOPPED_NODE,
    TEST,
    UNICODE,
    VALID,
    VISITED,
    Int,
    jitted,
)

clean_of = layout.table(layout.CLEAN, 4)
clean_below_of = layout.table(layout.CLEAN_BELOW, 4, np.uint64)
rest_of = layout.table(layout.REST, 4)
roots_of = layout.table(layout.ROOTS, 257)
rest_below_of = layout.table(layout.REST_BELOW, 4, np.uint64)
escapes_of = layout.vector(layout.ESCAPES)
path_of = layout.vector(layout.PATH)
pure_of = layout.vector(layout.PURE)

CONTROL = 0xFF  # begins the stand-in of a control token
UNLIMITED = 1 << 30


@jitted
def room_of(context: np.ndarray, cell: int) -> Int:
    """How many characters the loop of configuration `cell` may still begin."""
    nodes, configs = nodes_of(context), configs_of(context)
    node = configs[cell, CELL_NODE]
    test = nodes[node, TEST]
    if test < 0 or nodes[test, HIGH] < 0:
        return UNLIMITED
    inside = loops_of(context)[node, LOOP_FLAGS] & np.uint64(INSIDE)
    return nodes[test, HIGH] - configs[cell, CELL_COUNT] - (1 if inside else 0)


@jitted
def covers(loops: np.ndarray, node: int, low: int, high: int, flags: int) -> bool:
    """Whether all these bytes are in the loop of `node`."""
    validity = flags & np.uint64(3)
    return (
        low & ~loops[node, LOOP_LOW] == 0
        and high & ~loops[node, LOOP_HIGH] == 0
        and (
            validity == 0
            or (validity == VALID and loops[node, LOOP_FLAGS] & np.uint64(UNICODE) != 0)
            or loops[node, LOOP_FLAGS] & np.uint64(ANY_BYTE) != 0
        )
    )


@jitted
def in_class(low: int, high: int, flags: int, byte: int) -> bool:
    if byte < 64:
        return (low >> np.uint64(byte)) & np.uint64(1) != 0
    if byte < 128:
        return (high >> np.uint64(byte - 64)) & np.uint64(1) != 0
    return byte != CONTROL and flags & np.uint64(UNICODE | ANY_BYTE) != 0


@jitted
def _stays(context: np.ndarray, state: int, root: int, below: np.ndarray, node: int) -> bool:
    """Whether nothing below trie node `node` is allowed but what is in the loop's row: `state`, reached from the root
    through the loop alone, stands between two of its characters, and no byte that leaves it lies below."""
    nodes, configs, exits = nodes_of(context), configs_of(context), exits_of(context)
    cell = states_of(context)[state, LOOP]
    if cell < 0 or configs[cell, CELL_NODE] != root:
        return False
    test = nodes[root, TEST]
    if test >= 0:
        needed = nodes[test, LOW] - configs[cell, CELL_COUNT]
        if needed > 0 and np.int64(below[node, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT)) >= needed:
            return False  # further down the loop may be left
    return (
        below[node, BELOW_LOW] & exits[state, 0] == 0
        and below[node, BELOW_HIGH] & exits[state, 1] == 0
        and (below[node, BELOW_FLAGS] & np.uint64(3) == 0 or exits[state, 2] == 0)
    )


@jitted
def first_root(context: np.ndarray, which: int, node: int) -> tuple[Int, Int]:
    """The first byte whose nodes begin at `node` or later, and where."""
    roots, byte = roots_of(context), 0
    while byte < 256 and roots[which, byte] < node:
        byte += 1
    return byte, roots[which, byte]


@jitted
def next_root(context: np.ndarray, which: int, state: int, byte: int) -> Int:
    """The first byte from `byte` on by which both a token begins and `state` goes on; 256 for none. The roots of a trie
    are far apart in memory, this is not."""
    roots, steps = roots_of(context), steps_of(context)
    while byte < 256 and (steps[state, byte] == DEAD or roots[which, byte] == roots[which, byte + 1]):
        byte += 1
    return byte


@jitted
def walk(context: np.ndarray, which: int, first: int, last: int, mask: np.ndarray, pruned_for: int, log: bool) -> Int:
    """Set the tokens of trie nodes first .. last - 1 that the automaton lets pass; PATH holds the state above `first`.

    which: 0 the clean trie, 1 the rest.  pruned_for: the loop node whose row `mask` began with, or -1.
    log: add nodes at which an OPEN frame is left to ESCAPES.  Returns 0, or a refusal; then STOPPED_NODE is where a
    walk over the same mask and path may go on."""
    trie = clean_of(context) if which == 0 else rest_of(context)
    below = clean_below_of(context) if which == 0 else rest_below_of(context)
    loops, configs, states, steps = loops_of(context), configs_of(context), states_of(context), steps_of(context)
    path, pure, counts, escapes = path_of(context), pure_of(context), counts_of(context), escapes_of(context)
    roots = roots_of(context)
    low = high = flags = np.uint64(0)
    if pruned_for >= 0:
        low, high, flags = loops[pruned_for, LOOP_LOW], loops[pruned_for, LOOP_HIGH], loops[pruned_for, LOOP_FLAGS]
    node, visited, byte, root = first, 0, 0, last
    if last == len(below):
        byte, root = first_root(context, which, first)
    while node < last:
        if node == root:
            byte = next_root(context, which, path[0], byte)
            if byte == 256:
                break
            node, byte = roots[which, byte], byte + 1
            root = roots[which, byte]
        depth, size = trie[node, DEPTH], trie[node, SIZE]
        visited += 1
        state = step(context, steps, path[depth], trie[node, BYTE])
        if state < 0:
            counts[STOPPED_NODE] = node
            return state
        if state == DEAD:
            node += size
            continue
        leaves = states[state, ACCEPT] & ESCAPES_HERE != 0
        if log and leaves:
            if counts[ESCAPES_USED] >= len(escapes):
                counts[STOPPED_NODE] = node
                return full(counts, layout.ESCAPES)
            escapes[counts[ESCAPES_USED]] = 2 * node + which
            counts[ESCAPES_USED] += 1
        if pruned_for >= 0:
            pure[depth + 1] = 1 if pure[depth] != 0 and in_class(low, high, flags, trie[node, BYTE]) else 0
        if size > 1:
            cell = states[state, LOOP]
            if (
                cell >= 0
                and covers(
                    loops,
                    configs[cell, CELL_NODE],
                    below[node, BELOW_LOW],
                    below[node, BELOW_HIGH],
                    below[node, BELOW_FLAGS],
                )
                and np.int64(below[node, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT)) <= room_of(context, cell)
            ):
                set_range(mask, trie[node, RANK], trie[node + size, RANK])
                node += size
                continue
            if (
                pruned_for >= 0
                and pure[depth + 1] != 0
                and not (log and leaves)
                and _stays(context, state, pruned_for, below, node)
            ):
                node += size
                continue
        path[depth + 1] = state
        if trie[node + 1, RANK] > trie[node, RANK] and (
            states[state, MEMBER_COUNT] > 0 or states[state, ACCEPT] & ACCEPTS != 0
        ):
            set_bit(mask, trie[node, RANK])
        node += 1
    counts[VISITED] += visited
    return 0


@jitted
def walk_both(context: np.ndarray, which: int, state: int, other: int, mask: np.ndarray) -> Int:
    """Turn a mask of `other` into one of `state`, neither of which accepts: below nodes at which both have become one
    state, nothing changes."""
    trie = clean_of(context) if which == 0 else rest_of(context)
    path, others, steps, states = path_of(context), pure_of(context), steps_of(context), states_of(context)
    path[0], others[0], node, visited = state, other, 0, 0
    last, roots, root, first = len(trie) - 1, roots_of(context), 0, 0
    while node < last:
        if node == root:
            while first < 256 and (
                roots[which, first] == roots[which, first + 1]
                or (steps[state, first] == steps[other, first] and steps[state, first] >= 0)
            ):
                first += 1
            if first == 256:
                break
            node, first = roots[which, first], first + 1
            root = roots[which, first]
        depth, size, byte = trie[node, DEPTH], trie[node, SIZE], trie[node, BYTE]
        visited += 1
        ours, theirs = step(context, steps, path[depth], byte), step(context, steps, others[depth], byte)
        if ours < 0 or theirs < 0:
            return min(ours, theirs)
        if ours == theirs:
            node += size
            continue
        if ours == DEAD:
            clear_range(mask, trie[node, RANK], trie[node + size, RANK])
            node += size
            continue
        path[depth + 1], others[depth + 1] = ours, theirs
        if trie[node + 1, RANK] > trie[node, RANK]:
            clear_range(mask, trie[node, RANK], trie[node + 1, RANK])
            if states[ours, MEMBER_COUNT] > 0 or states[ours, ACCEPT] & ACCEPTS != 0:
                set_bit(mask, trie[node, RANK])
        node += 1
    counts_of(context)[VISITED] += visited
    return 0
