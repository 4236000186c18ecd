"""Masks in machine code: which tokens may follow a state, as bits in the order of the trie (ranks).

A mask is the union of what every configuration of a state allows, so parts of it are kept and used again:
- inside a JSON string it depends on the characters left and on what follows the quote alone (BODIES): a row of the
  vocabulary, and a small trie of what tokens have behind the quote;
- a state in a wide loop starts from a row of the vocabulary's that holds all tokens of the loop's characters, and its
  walk skips what only could lie in that row;
- a state all of whose configurations share one stack is looked at with that stack OPEN: which tokens end inside the
  frame (INNER_ROW), and at which nodes of the tries the frame is left (ESCAPES). Both serve every such state whatever
  its stack, as in the items of an array.
"""

from __future__ import annotations

import numpy as np

from . import layout
from .kernel import (
    close,
    config,
    config_hash_of,
    configs_of,
    counts_of,
    exits_of,
    found_of,
    full,
    intern,
    intern_state,
    loops_of,
    members_of,
    nodes_of,
    only_byte,
    rehash,
    rehash_states,
    stack_hash_of,
    stacks_of,
    state_hash_of,
    states_of,
    step,
    steps_of,
    work_of,
)
from .layout import (
    ACCEPT,
    ACCEPTS,
    ANY_BYTE,
    BELOW_FLAGS,
    BELOW_HIGH,
    BELOW_LOW,
    BODIES_USED,
    BOTTOM,
    BUCKETS,
    BYTE,
    CELL_COUNT,
    CELL_EXTRA,
    CELL_NODE,
    CELL_STACK,
    CHARS_SHIFT,
    CHUNK_ROWS,
    CLASSES_USED,
    COLD,
    CONFIGS_USED,
    DEAD,
    DEPTH,
    END_RANK,
    ENDED,
    ESCAPE_COUNT,
    ESCAPE_START,
    ESCAPED,
    ESCAPES_HERE,
    ESCAPES_USED,
    EXACT,
    FREE_USED,
    HIGH,
    INNER_ROW,
    INSIDE,
    LONGEST,
    LOOP,
    LOOP_CLASS,
    LOOP_FLAGS,
    LOOP_HIGH,
    LOOP_LOW,
    LOW,
    MEMBER_COUNT,
    MEMBER_START,
    NO_CLASS,
    NO_ROWS,
    OPEN,
    OWN_FLAGS,
    RANK,
    ROW,
    SIZE,
    STACKS_USED,
    STATES_USED,
    STOPPED_ESCAPES,
    STOPPED_LOG,
    STOPPED_NODE,
    STOPPED_PRUNED,
    STOPPED_ROOT,
    STOPPED_TRIE,
    TEST,
    TOKENS,
    UNICODE,
    VALID,
    VISITED,
    WANTED,
    WANTED_CLASS,
    WIDE,
    WORDS,
    Int,
    context_at,
    int64s,
    jitted,
    words_at,
)

clean_of, clean_below_of = layout.table(layout.CLEAN, 4), layout.table(layout.CLEAN_BELOW, 4, np.uint64)
rest_of, rest_below_of = layout.table(layout.REST, 4), layout.table(layout.REST_BELOW, 4, np.uint64)
escapes_of, free_of = layout.vector(layout.ESCAPES), layout.vector(layout.FREE)
bodies_of, body_hash_of = layout.table(layout.BODIES, 4), layout.vector(layout.BODY_HASH)
path_of, pure_of = layout.vector(layout.PATH), layout.vector(layout.PURE)
token_starts_of = layout.vector(layout.TOKEN_STARTS, np.int64)
token_bytes_of, ranks_of = layout.vector(layout.TOKEN_BYTES, np.uint8), layout.vector(layout.RANKS)
long_of, suffixes_of = layout.table(layout.LONG, 2), layout.table(layout.SUFFIXES, 4)
group_starts_of, groups_of = layout.vector(layout.GROUP_STARTS), layout.table(layout.GROUPS, 2)
classes_of, class_rows_of = layout.table(layout.CLASSES, 4, np.uint64), layout.table(layout.CLASS_ROWS, BUCKETS)
chunks_of, vocabulary_of = layout.vector(layout.CHUNKS, np.int64), layout.vector(layout.VOCABULARY, np.int64)

QUOTE, CONTROL = 34, 0xFF
UNLIMITED = 1 << 30
ESCAPE_LIMIT = 2048  # nodes at which a frame is left, beyond which the state is walked with its real stack
NEVER = -2  # INNER_ROW: such a state
NO_ROW = -1


@jitted
def row_words(context: np.ndarray, row: int) -> np.ndarray:
    vocabulary = vocabulary_of(context)
    words, chunk = vocabulary[WORDS], vocabulary[CHUNK_ROWS]
    return words_at(chunks_of(context)[row // chunk] + (row % chunk) * words * 4, words)


@jitted
def set_bit(mask: np.ndarray, rank: int) -> None:
    mask[rank >> 5] |= np.uint32(1) << np.uint32(rank & 31)


@jitted
def set_range(mask: np.ndarray, first: int, last: int) -> None:
    """Bits first .. last - 1."""
    if first >= last:
        return
    low, high = first >> 5, (last - 1) >> 5
    from_first = np.uint32(0xFFFFFFFF) << np.uint32(first & 31)
    to_last = np.uint32(0xFFFFFFFF) >> np.uint32(31 - ((last - 1) & 31))
    if low == high:
        mask[low] |= from_first & to_last
        return
    mask[low] |= from_first
    for word in range(low + 1, high):
        mask[word] = np.uint32(0xFFFFFFFF)
    mask[high] |= to_last


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
def _covers(loops: np.ndarray, node: int, low: int, high: int, flags: int) -> bool:
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
def _in_class(low: int, high: int, flags: int, byte: int) -> bool:
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
    if test >= 0 and configs[cell, CELL_COUNT] < nodes[test, LOW]:
        return False
    return (
        below[node, BELOW_LOW] & exits[state, 0] == 0
        and below[node, BELOW_HIGH] & exits[state, 1] == 0
        and (below[node, BELOW_FLAGS] & np.uint64(3) == 0 or exits[state, 2] == 0)
    )


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
    low = high = flags = np.uint64(0)
    if pruned_for >= 0:
        low, high, flags = loops[pruned_for, LOOP_LOW], loops[pruned_for, LOOP_HIGH], loops[pruned_for, LOOP_FLAGS]
    node, visited = first, 0
    while node < last:
        depth, size, byte = trie[node, DEPTH], trie[node, SIZE], trie[node, BYTE]
        visited += 1
        state = step(context, steps, path[depth], byte)
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
            pure[depth + 1] = 1 if pure[depth] != 0 and _in_class(low, high, flags, byte) else 0
        if size > 1:
            cell = states[state, LOOP]
            if (
                cell >= 0
                and _covers(
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
def begin_mask(context: np.ndarray, state: int, mask: np.ndarray) -> Int:
    """Zeros, or the row of the state's wide loop. Returns the loop node for which a walk may be pruned, -1, or
    NO_CLASS."""
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
                mask[:] = row_words(context, row)
                return node if flags & np.uint64(EXACT) != 0 else -1
    mask[:] = 0
    return -1


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
    """Into `row`: the tokens of the characters of `node`'s loop, at most `bucket` of them (0: any number)."""
    loops, path, mask = loops_of(context), path_of(context), row_words(context, row)
    low, high, flags = loops[node, LOOP_LOW], loops[node, LOOP_HIGH], loops[node, LOOP_FLAGS]
    mask[:] = 0
    most = bucket if bucket > 0 else UNLIMITED
    for which in range(2):
        trie = clean_of(context) if which == 0 else rest_of(context)
        below = clean_below_of(context) if which == 0 else rest_below_of(context)
        place, path[0] = 0, 0
        while place < len(below):
            depth, size, byte = trie[place, DEPTH], trie[place, SIZE], trie[place, BYTE]
            begins = byte < 128 or byte >= 192
            chars = path[depth] + (1 if begins else 0)
            whole = below[place, OWN_FLAGS] == VALID or flags & np.uint64(ANY_BYTE) != 0
            if chars > most or not _in_class(low, high, flags, byte) or not whole:
                place += size
                continue
            deepest = chars + np.int64(below[place, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT))
            if deepest <= most and _covers(
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
def _walk_all(context: np.ndarray, state: int, mask: np.ndarray, log: bool) -> Int:
    """Fill `mask` from both tries. Returns where in ESCAPES what it logged begins (it ends at ESCAPES_USED), or a
    refusal. A walk that was refused goes on where it stopped, if nothing was written to the mask since."""
    counts, path, pure = counts_of(context), path_of(context), pure_of(context)
    resumed = counts[STOPPED_ROOT] == state and counts[STOPPED_LOG] == (1 if log else 0)
    counts[STOPPED_ROOT] = DEAD
    if not resumed:
        counts[VISITED] = 0
        pruned_for = begin_mask(context, state, mask)
        if pruned_for == NO_CLASS:
            return NO_CLASS
        path[0], pure[0] = state, 1
        counts[STOPPED_TRIE], counts[STOPPED_NODE], counts[STOPPED_PRUNED] = 0, 0, pruned_for
        counts[STOPPED_ESCAPES] = counts[ESCAPES_USED]
    for which in range(counts[STOPPED_TRIE], 2):
        nodes = len(clean_below_of(context)) if which == 0 else len(rest_below_of(context))
        refused = walk(context, which, counts[STOPPED_NODE], nodes, mask, counts[STOPPED_PRUNED], log)
        if refused < 0:
            counts[STOPPED_ROOT], counts[STOPPED_LOG], counts[STOPPED_TRIE] = state, 1 if log else 0, which
            return refused
        counts[STOPPED_NODE] = 0
    return counts[STOPPED_ESCAPES]


# ---- inside a JSON string


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
    counts[STOPPED_ROOT] = DEAD
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
    mask[:] = words_at(context[2 * layout.BODY_ROWS] + bucket * words * 4, words)
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


# ---- any other state


@jitted
def _shared_stack(context: np.ndarray, state: int) -> Int:
    """The stack all configurations of a state have, if it has one and stands in a loop; else BOTTOM."""
    states, members, configs = states_of(context), members_of(context), configs_of(context)
    first, size = states[state, MEMBER_START], states[state, MEMBER_COUNT]
    if size == 0 or states[state, LOOP] < 0:
        return BOTTOM
    stack = configs[members[first], CELL_STACK]
    for i in range(first, first + size):
        if configs[members[i], CELL_STACK] != stack:
            return BOTTOM
    return stack


@jitted
def _opened(context: np.ndarray, state: int) -> Int:
    """The state with OPEN instead of its stack, or GROW."""
    states, members, configs, found = states_of(context), members_of(context), configs_of(context), found_of(context)
    first, size = states[state, MEMBER_START], states[state, MEMBER_COUNT]
    if counts_of(context)[CONFIGS_USED] + size > len(configs):
        return full(counts_of(context), layout.CONFIGS)
    for i in range(size):
        cell = members[first + i]
        found[i] = config(context, configs[cell, CELL_NODE], configs[cell, CELL_COUNT], OPEN)
    return intern_state(context, size, 0)


@jitted
def _inner_row(context: np.ndarray, state: int) -> Int:
    """The row of an opened state, NEVER, or a refusal; its escapes are noted in STATES."""
    states, counts = states_of(context), counts_of(context)
    if states[state, INNER_ROW] != NO_ROW:
        return states[state, INNER_ROW]
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    row = free_of(context)[counts[FREE_USED]]
    mask = row_words(context, row)
    started = _walk_all(context, state, mask, True)
    if started < 0:
        return started
    logged = counts[ESCAPES_USED] - started
    if logged > ESCAPE_LIMIT:
        counts[ESCAPES_USED] = started
        states[state, INNER_ROW] = NEVER
        return NEVER
    counts[FREE_USED] += 1
    states[state, ESCAPE_START], states[state, ESCAPE_COUNT] = started, logged
    states[state, INNER_ROW] = row
    return row


@jitted
def _leave(context: np.ndarray, inner: int, outside: int, mask: np.ndarray) -> Int:
    """Add what is allowed behind the nodes at which opened state `inner` leaves its frame to state `outside`."""
    states, escapes, path = states_of(context), escapes_of(context), path_of(context)
    if outside == DEAD:
        return 0
    for i in range(states[inner, ESCAPE_COUNT]):
        escape = escapes[states[inner, ESCAPE_START] + i]
        node, which = escape >> 1, escape & 1
        trie = clean_of(context) if which == 0 else rest_of(context)
        if trie[node + 1, RANK] > trie[node, RANK]:
            set_bit(mask, trie[node, RANK])
        path[trie[node, DEPTH] + 1] = outside
        refused = walk(context, which, node + 1, node + trie[node, SIZE], mask, -1, False)
        if refused < 0:
            return refused
    return 0


@jitted
def _framed_row(context: np.ndarray, state: int, stack: int) -> Int:
    """The row of a state whose configurations share `stack`; NO_ROW where it is to be walked as it is."""
    states, counts = states_of(context), counts_of(context)
    inner = _opened(context, state)
    if inner < 0:
        return inner
    inner_row = _inner_row(context, inner)
    if inner_row == NEVER:
        return NO_ROW
    if inner_row < 0 or states[inner, ESCAPE_COUNT] == 0:
        return inner_row
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    outside = close(context, 0, 0, stack)
    if outside < 0:
        return outside
    row = free_of(context)[counts[FREE_USED]]
    mask = row_words(context, row)
    mask[:] = row_words(context, inner_row)
    counts[STOPPED_ROOT] = DEAD
    refused = _leave(context, inner, outside, mask)
    if refused < 0:
        return refused
    counts[FREE_USED] += 1
    return row


@jitted
def _walked_row(context: np.ndarray, state: int) -> Int:
    states, counts = states_of(context), counts_of(context)
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    row = free_of(context)[counts[FREE_USED]]
    mask = row_words(context, row)
    refused = _walk_all(context, state, mask, False)
    if refused < 0:
        return refused
    if states[state, ACCEPT] & ACCEPTS != 0:
        set_bit(mask, vocabulary_of(context)[END_RANK])
    counts[FREE_USED] += 1
    return row


@jitted
def row_of(context: np.ndarray, state: int) -> Int:
    """The row of the mask of `state`, filled if need be, or a refusal."""
    states = states_of(context)
    if states[state, ROW] >= 0:
        return states[state, ROW]
    row = body_row(context, state)
    if row == NO_ROW and states[state, ACCEPT] == 0:
        stack = _shared_stack(context, state)
        if stack != BOTTOM:
            row = _framed_row(context, state, stack)
    if row == NO_ROW:
        row = _walked_row(context, state)
    if row >= 0:
        states[state, ROW] = row
    return row


@jitted
def advance(context: np.ndarray, state: int, token: int) -> Int:
    """The state after `token`; DEAD where it is not allowed. After the end of the text comes ENDED."""
    vocabulary = vocabulary_of(context)
    if token < 0 or token >= vocabulary[TOKENS]:
        return DEAD
    if ranks_of(context)[token] == vocabulary[END_RANK]:
        return ENDED if states_of(context)[state, ACCEPT] & ACCEPTS != 0 else DEAD
    starts, data, steps = token_starts_of(context), token_bytes_of(context), steps_of(context)
    first, last = starts[token], starts[token + 1]
    if first == last:
        return DEAD
    for at in range(first, last):
        state = step(context, steps, state, data[at])
        if state <= DEAD:
            return state
    return state


JOB_CONTEXT, JOB_STATE, JOB_TOKEN, JOB_ROW = range(4)


@jitted
def _batch(address: int, count: int) -> Int:
    """Every job of int64 [count, 4]: (context, state, token or -1, row). Advances the state by the token, makes the
    token -1, and looks up the row, filling it if need be. DEAD has NO_ROW. What is refused is left as it was, with the
    refusal for its row."""
    jobs = int64s(address, 4 * count)
    for job in range(0, 4 * count, 4):
        context, state, token = context_at(jobs[job + JOB_CONTEXT]), jobs[job + JOB_STATE], jobs[job + JOB_TOKEN]
        row: Int = np.int64(NO_ROW)
        if token >= 0 and state != DEAD:
            state = advance(context, state, token)
        if state < 0:
            jobs[job + JOB_ROW] = state
            continue
        jobs[job + JOB_STATE], jobs[job + JOB_TOKEN] = state, -1
        if state != DEAD:
            row = row_of(context, state)
        jobs[job + JOB_ROW] = row
    return 0


FIRST, ADVANCE, LOOKUP, MASK, STEP, ONLY_BYTE, STATE, CELL, PUSH, CLASS, REHASH, BATCH = range(12)


def run(address: int, operation: int, state: int, argument: int) -> Int:
    """One operation over the context at `address`. Returns a state, a row, or a refusal (< 0).

    BATCH: `state` jobs at `address`."""
    if operation == BATCH:
        return _batch(address, state)
    context = context_at(address)
    if operation == ADVANCE:
        return advance(context, state, argument)
    if operation == LOOKUP:
        row = states_of(context)[state, ROW]
        return row if row >= 0 else COLD
    if operation == MASK:
        return row_of(context, state)
    if operation == STEP:
        return step(context, steps_of(context), state, argument)
    if operation == ONLY_BYTE:
        return only_byte(context, state)
    if operation == FIRST:
        return close(context, state, 0, BOTTOM)
    if operation == STATE:  # of `state` configurations in FOUND
        return intern_state(context, state, argument)
    if operation == CLASS:
        return fill_class(context, counts_of(context)[WANTED], counts_of(context)[WANTED_CLASS], argument)
    if operation == REHASH:
        return _rehash_all(context)
    return _intern_given(context, operation)


@jitted
def _intern_given(context: np.ndarray, operation: int) -> Int:
    """CELL: a configuration, PUSH: a stack cell, of the three numbers in WORK."""
    work, counts = work_of(context), counts_of(context)
    if operation == CELL:
        if counts[CONFIGS_USED] + 1 > len(configs_of(context)):
            return full(counts, layout.CONFIGS)
        return config(context, work[0], work[1], work[2])
    if counts[STACKS_USED] + 1 > len(stacks_of(context)):
        return full(counts, layout.STACKS)
    return intern(stacks_of(context), stack_hash_of(context), counts, STACKS_USED, work[0], work[1], work[2])


@jitted
def _rehash_all(context: np.ndarray) -> Int:
    """Fill the hash tables, all empty, again."""
    counts = counts_of(context)
    rehash(stacks_of(context), stack_hash_of(context), counts[STACKS_USED])
    rehash(configs_of(context), config_hash_of(context), counts[CONFIGS_USED])
    rehash(bodies_of(context), body_hash_of(context), counts[BODIES_USED])
    rehash_states(states_of(context), members_of(context), state_hash_of(context), counts[STATES_USED])
    return 0
