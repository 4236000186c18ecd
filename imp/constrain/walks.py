"""Walks over the tries of a vocabulary's tokens with the automaton, by whole ranges where a loop lets all pass."""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import clear_range, set_bit, set_range
from .kernel import configs_of, counts_of, exits_of, full, loops_of, nodes_of, states_of, step, steps_of
from .layout import (
    ACCEPT,
    ACCEPTS,
    ALLOWANCE,
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
    FORK_SHIFT,
    FORKS,
    HIGH,
    INSIDE,
    LOOP,
    LOOP_FLAGS,
    LOOP_HIGH,
    LOOP_LOW,
    LOW,
    MEMBER_COUNT,
    OWN_FLAGS,
    PAUSED,
    RANK,
    SIZE,
    STOPPED_FORK,
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
clean_forks_of = layout.vector(layout.CLEAN_FORKS)
clean_fork_bytes_of = layout.vector(layout.CLEAN_FORK_BYTES, np.uint8)
rest_forks_of = layout.vector(layout.REST_FORKS)
rest_fork_bytes_of = layout.vector(layout.REST_FORK_BYTES, np.uint8)
open_forks_of = layout.table(layout.OPEN_FORKS, 5)
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
def _none_below(exits: np.ndarray, state: int, below: np.ndarray, node: int) -> bool:
    """Whether no byte by which `state` leaves its loop lies below trie node `node`."""
    return (
        below[node, BELOW_LOW] & exits[state, 0] == 0
        and below[node, BELOW_HIGH] & exits[state, 1] == 0
        and (below[node, BELOW_FLAGS] & np.uint64(3) == 0 or exits[state, 2] == 0)
    )


@jitted
def _stays(context: np.ndarray, state: int, root: int, later: int, below: np.ndarray, node: int) -> bool:
    """Whether nothing below trie node `node` is allowed but what is in the loop's row: `state`, reached from the root
    through the loop alone, stands between two of its characters, and no byte that leaves it lies below.

    later: the state once the loop has gone round often enough to be left, or DEAD where it may be left at once."""
    nodes, configs, exits = nodes_of(context), configs_of(context), exits_of(context)
    cell = states_of(context)[state, LOOP]
    if cell < 0 or configs[cell, CELL_NODE] != root:
        return False
    test = nodes[root, TEST]
    if test >= 0:
        needed = nodes[test, LOW] - configs[cell, CELL_COUNT]
        if (
            needed > 0
            and np.int64(below[node, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT)) >= needed
            and (later == DEAD or not _none_below(exits, later, below, node))
        ):
            return False  # further down the loop may be left
    return _none_below(exits, state, below, node)


@jitted
def _next_child(forks: np.ndarray, bytes_of: np.ndarray, steps: np.ndarray, state: int, place: int, last: int) -> Int:
    """From `place` on the first child of a list by whose byte `state` goes on; `last` for none. Children are far apart
    in memory, this is not."""
    while place < last and steps[state, bytes_of[place]] == DEAD:
        place += 1
    return place


@jitted
def walk(
    context: np.ndarray,
    which: int,
    above: int,
    mask: np.ndarray,
    pruned_for: int,
    later: int,
    log: bool,
    resumed: bool,
) -> Int:
    """Set the tokens below trie node `above` (-1: all) that the automaton lets pass; PATH holds the state there.

    which: 0 the clean trie, 1 the rest.  pruned_for: the loop node whose row `mask` began with, or -1; later: of it,
    see `_stays`.  log: add nodes at which an OPEN frame is left to ESCAPES.  Returns 0, or a refusal; then a walk over
    the same mask and path may go on where it stopped (resumed). Nodes count against the allowance where all are walked.

    A node with many children is open while one of them is looked at: the list of its children says which is next."""
    trie = clean_of(context) if which == 0 else rest_of(context)
    below = clean_below_of(context) if which == 0 else rest_below_of(context)
    forks = clean_forks_of(context) if which == 0 else rest_forks_of(context)
    bytes_of = clean_fork_bytes_of(context) if which == 0 else rest_fork_bytes_of(context)
    loops, configs, states, steps = loops_of(context), configs_of(context), states_of(context), steps_of(context)
    path, pure, counts, escapes = path_of(context), pure_of(context), counts_of(context), escapes_of(context)
    opened = open_forks_of(context)
    low = high = flags = np.uint64(0)
    if pruned_for >= 0:
        low, high, flags = loops[pruned_for, LOOP_LOW], loops[pruned_for, LOOP_HIGH], loops[pruned_for, LOOP_FLAGS]
    node, last, height, visited = above + 1, len(below), 0, 0
    listed: Int = 1
    if above >= 0:
        last, listed = above + trie[above, SIZE], np.int64(below[above, OWN_FLAGS] >> np.uint64(FORK_SHIFT))
    place, end, level, at, after = 0, 0, 0, -1, last  # of the innermost open node
    if resumed:
        node, height = counts[STOPPED_NODE], counts[STOPPED_FORK]
    elif listed > 0:
        height, place, end, at = 1, listed, listed + forks[listed - 1], node
        level = 0 if above < 0 else trie[above, DEPTH] + 1
    if resumed and height > 0:
        fork = opened[height - 1]
        place, end, level, at, after = fork[0], fork[1], fork[2], fork[3], fork[4]
    while node < last:
        if node == at:
            place = _next_child(forks, bytes_of, steps, path[level], place, end)
            if place == end:
                node, height, at = after, height - 1, -1
                if height > 0:
                    fork = opened[height - 1]
                    place, end, level, at, after = fork[0], fork[1], fork[2], fork[3], fork[4]
                continue
            node, place = forks[place], place + 1
            at = node + trie[node, SIZE]
        depth, size = trie[node, DEPTH], trie[node, SIZE]
        visited += 1
        if above < 0:
            counts[ALLOWANCE] -= 1
        state: Int = np.int64(PAUSED)
        if counts[ALLOWANCE] > 0:
            state = step(context, steps, path[depth], trie[node, BYTE])
        if state == DEAD:
            node += size
            continue
        leaves = state > 0 and states[state, ACCEPT] & ESCAPES_HERE != 0
        if state < 0 or (log and leaves and counts[ESCAPES_USED] >= len(escapes)):
            counts[STOPPED_NODE], counts[STOPPED_FORK] = node, height
            if height > 0:
                fork = opened[height - 1]
                fork[0], fork[1], fork[2], fork[3], fork[4] = place, end, level, at, after
            return state if state < 0 else full(counts, layout.ESCAPES)
        if log and leaves:
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
                and _stays(context, state, pruned_for, later, below, node)
            ):
                node += size
                continue
        path[depth + 1] = state
        if trie[node + 1, RANK] > trie[node, RANK] and (
            states[state, MEMBER_COUNT] > 0 or states[state, ACCEPT] & ACCEPTS != 0
        ):
            set_bit(mask, trie[node, RANK])
        if size > FORKS:
            listed = np.int64(below[node, OWN_FLAGS] >> np.uint64(FORK_SHIFT))
            if listed > 0:
                if height > 0:
                    fork = opened[height - 1]
                    fork[0], fork[1], fork[2], fork[3], fork[4] = place, end, level, at, after
                height, place, end, level = height + 1, listed, listed + forks[listed - 1], depth + 1
                at, after = node + 1, node + size
        node += 1
    counts[VISITED] += visited
    return 0


@jitted
def _next_differing(
    forks: np.ndarray, bytes_of: np.ndarray, steps: np.ndarray, state: int, other: int, place: int, last: int
) -> Int:
    """The first child by whose byte two states may go on differently."""
    while place < last:
        ours, theirs = steps[state, bytes_of[place]], steps[other, bytes_of[place]]
        if ours != theirs or ours < 0:
            break
        place += 1
    return place


@jitted
def walk_both(context: np.ndarray, which: int, state: int, other: int, mask: np.ndarray, resumed: bool) -> Int:
    """Turn a mask of `other` into one of `state`, neither of which accepts: below nodes at which both have become one
    state, nothing changes. A walk that was refused may go on over the same mask."""
    trie = clean_of(context) if which == 0 else rest_of(context)
    below = clean_below_of(context) if which == 0 else rest_below_of(context)
    forks = clean_forks_of(context) if which == 0 else rest_forks_of(context)
    bytes_of = clean_fork_bytes_of(context) if which == 0 else rest_fork_bytes_of(context)
    path, others, steps, states = path_of(context), pure_of(context), steps_of(context), states_of(context)
    opened, counts = open_forks_of(context), counts_of(context)
    path[0], others[0], node, visited, last = state, other, 0, 0, len(below)
    listed: Int = 0
    height, place, end, level, at, after = 1, 1, 1 + forks[0], 0, 0, last  # of the innermost open node
    if resumed:
        node, height = counts[STOPPED_NODE], counts[STOPPED_FORK]
        fork = opened[height - 1]
        place, end, level, at, after = fork[0], fork[1], fork[2], fork[3], fork[4]
    while node < last:
        if node == at:
            place = _next_differing(forks, bytes_of, steps, path[level], others[level], place, end)
            if place == end:
                node, height, at = after, height - 1, -1
                if height > 0:
                    fork = opened[height - 1]
                    place, end, level, at, after = fork[0], fork[1], fork[2], fork[3], fork[4]
                continue
            node, place = forks[place], place + 1
            at = node + trie[node, SIZE]
        depth, size, byte = trie[node, DEPTH], trie[node, SIZE], trie[node, BYTE]
        visited += 1
        counts[ALLOWANCE] -= 1
        ours: Int = np.int64(PAUSED)
        theirs: Int = np.int64(PAUSED)
        if counts[ALLOWANCE] > 0:
            ours, theirs = step(context, steps, path[depth], byte), step(context, steps, others[depth], byte)
        if ours < 0 or theirs < 0:
            counts[STOPPED_NODE], counts[STOPPED_FORK] = node, height
            fork = opened[height - 1]
            fork[0], fork[1], fork[2], fork[3], fork[4] = place, end, level, at, after
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
        if size > FORKS:
            listed = np.int64(below[node, OWN_FLAGS] >> np.uint64(FORK_SHIFT))
            if listed > 0:
                fork = opened[height - 1]
                fork[0], fork[1], fork[2], fork[3], fork[4] = place, end, level, at, after
                height, place, end, level = height + 1, listed, listed + forks[listed - 1], depth + 1
                at, after = node + 1, node + size
        node += 1
    counts[VISITED] += visited
    return 0
