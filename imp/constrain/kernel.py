"""The automaton in machine code: closures, interned states, single steps. layout.py names the arrays.

States are made when first met, and STEPS[state, byte] is filled when first asked for (-1 until then). Every function
may answer GROW, LOWER, NO_ROWS, NO_CLASS or PAUSED before it has changed anything that matters: the caller gives what
is missing and asks again. Nothing here allocates.
"""

from __future__ import annotations

import numpy as np

from . import layout
from .layout import (
    ACCEPT,
    ACCEPTS,
    ALLOWANCE,
    AMBIGUOUS,
    ANY_BYTE,
    BOTTOM,
    CELL_COUNT,
    CELL_EXTRA,
    CELL_NODE,
    CELL_STACK,
    CONFIGS_USED,
    DEAD,
    EDGE_HIGH,
    EDGE_LOOPS,
    EDGE_LOW,
    EDGE_TARGET,
    ENDED,
    EPOCH,
    ESCAPES_HERE,
    FIRST_EDGE,
    GROW,
    HIGH,
    INNER_ROW,
    KIND,
    LAST_EDGE,
    LOOP,
    LOOP_FLAGS,
    LOOP_HIGH,
    LOOP_LOW,
    LOW,
    LOWER,
    MEMBER_COUNT,
    MEMBER_START,
    MEMBERS_USED,
    OPEN,
    PAUSED,
    ROW,
    STACKS_USED,
    STATES_USED,
    UNICODE,
    UNION,
    WANTED,
    A,
    B,
    Int,
    jitted,
)
from .nfa import Kind

BYTE_KIND, CALL_KIND, RET_KIND = int(Kind.BYTE), int(Kind.CALL), int(Kind.RET)
EPS_KIND, TEST_KIND, INC_KIND = int(Kind.EPS), int(Kind.TEST), int(Kind.INC)
CLOSURE = 1 << 16  # configurations looked at for one state, at most

nodes_of = layout.table(layout.NODES, 8)
loops_of = layout.table(layout.LOOPS, 4, np.uint64)
edges_of = layout.table(layout.EDGES, 4)
stacks_of = layout.table(layout.STACKS, 4)
stack_hash_of = layout.vector(layout.STACK_HASH)
configs_of = layout.table(layout.CONFIGS, 4)
config_hash_of = layout.vector(layout.CONFIG_HASH)
states_of = layout.table(layout.STATES, 8)
exits_of = layout.table(layout.EXITS, 4, np.uint64)
members_of = layout.vector(layout.MEMBERS)
state_hash_of = layout.vector(layout.STATE_HASH)
steps_of = layout.table(layout.STEPS, 256)
counts_of = layout.vector(layout.COUNTS, np.int64)
work_of = layout.vector(layout.WORK)
found_of = layout.vector(layout.FOUND)


@jitted
def full(counts: np.ndarray, slot: int) -> Int:
    """GROW, and which array has no room."""
    counts[WANTED] = slot
    return GROW


@jitted
def hash_of(a: int, b: int, c: int) -> Int:
    """64 mixed bits of a cell; multipliers are large odd numbers."""
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(b + 7) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= np.uint64(c + 3) * np.uint64(0x165667B19E3779F9)
    return mixed ^ (mixed >> np.uint64(29))


@jitted
def intern(cells: np.ndarray, hashes: np.ndarray, counts: np.ndarray, used: int, a: int, b: int, c: int) -> Int:
    """The number of cell (a, b, c), a new one if need be. There is room: whoever calls has seen to it."""
    mask = np.uint64(len(hashes) - 1)
    place = hash_of(a, b, c) & mask
    while hashes[place] > 0:
        cell = hashes[place] - 1
        if cells[cell, 0] == a and cells[cell, 1] == b and cells[cell, 2] == c:
            return cell
        place = (place + np.uint64(1)) & mask
    cell = np.int32(counts[used])
    counts[used] += 1
    cells[cell, 0], cells[cell, 1], cells[cell, 2], cells[cell, 3] = a, b, c, 0
    hashes[place] = cell + 1
    return cell


@jitted
def rehash(cells: np.ndarray, hashes: np.ndarray, used: int) -> None:
    """Fill an empty table for the first `used` cells."""
    mask = np.uint64(len(hashes) - 1)
    for cell in range(used):
        place = hash_of(cells[cell, 0], cells[cell, 1], cells[cell, 2]) & mask
        while hashes[place] > 0:
            place = (place + np.uint64(1)) & mask
        hashes[place] = cell + 1


@jitted
def config(context: np.ndarray, node: int, count: int, stack: int) -> Int:
    return intern(configs_of(context), config_hash_of(context), counts_of(context), CONFIGS_USED, node, count, stack)


@jitted
def push(context: np.ndarray, node: int, count: int, stack: int) -> Int:
    return intern(stacks_of(context), stack_hash_of(context), counts_of(context), STACKS_USED, node, count, stack)


@jitted
def closure(context: np.ndarray, waiting: int) -> tuple[Int, Int]:
    """Follow the `waiting` configurations in WORK as far as they go without a byte.

    Returns how many BYTE configurations are in FOUND, and ACCEPT flags; a negative first number is a refusal."""
    nodes, edges, stacks, configs = nodes_of(context), edges_of(context), stacks_of(context), configs_of(context)
    counts, work, found = counts_of(context), work_of(context), found_of(context)
    counts[EPOCH] += 1
    epoch = np.int32(counts[EPOCH])
    seen, kept, accept = 0, 0, 0
    while waiting > 0:
        waiting -= 1
        cell = work[waiting]
        if configs[cell, CELL_EXTRA] == epoch:
            continue
        configs[cell, CELL_EXTRA] = epoch
        seen += 1
        place, count, stack = configs[cell, CELL_NODE], configs[cell, CELL_COUNT], configs[cell, CELL_STACK]
        kind = nodes[place, KIND]
        ways = nodes[place, LAST_EDGE] - nodes[place, FIRST_EDGE] + 2
        if counts[CONFIGS_USED] + ways > len(configs):
            return full(counts, layout.CONFIGS), 0
        if counts[STACKS_USED] + 1 > len(stacks):
            return full(counts, layout.STACKS), 0
        if seen > CLOSURE or waiting + ways > len(work) or kept >= len(found):
            return AMBIGUOUS, 0
        if kind == BYTE_KIND:
            found[kept] = cell
            kept += 1
        elif kind == EPS_KIND:
            for edge in range(nodes[place, FIRST_EDGE], nodes[place, LAST_EDGE]):
                work[waiting] = config(context, edges[edge, EDGE_TARGET], count, stack)
                waiting += 1
        elif kind == CALL_KIND:
            after = nodes[place, B]
            beneath = stack if nodes[after, KIND] == RET_KIND else push(context, after, count, stack)
            work[waiting] = config(context, nodes[place, A], 0, beneath)
            waiting += 1
        elif kind == RET_KIND:
            if stack == BOTTOM:
                accept |= ACCEPTS
            elif stack == OPEN:
                accept |= ESCAPES_HERE
            elif stacks[stack, CELL_NODE] == UNION:
                work[waiting] = config(context, place, 0, stacks[stack, CELL_COUNT])
                work[waiting + 1] = config(context, place, 0, stacks[stack, CELL_STACK])
                waiting += 2
            else:
                work[waiting] = config(
                    context, stacks[stack, CELL_NODE], stacks[stack, CELL_COUNT], stacks[stack, CELL_STACK]
                )
                waiting += 1
        elif kind == TEST_KIND:
            if nodes[place, HIGH] < 0 or count < nodes[place, HIGH]:
                work[waiting] = config(context, nodes[place, A], count, stack)
                waiting += 1
            if count >= nodes[place, LOW]:
                work[waiting] = config(context, nodes[place, B], 0, stack)
                waiting += 1
        elif kind == INC_KIND:
            test = nodes[place, A]
            rounds = count + 1
            if nodes[test, HIGH] < 0 and rounds > nodes[test, LOW]:
                rounds = nodes[test, LOW]
            work[waiting] = config(context, test, rounds, stack)
            waiting += 1
        else:
            counts[WANTED] = place
            return LOWER, 0
    counts[ALLOWANCE] -= seen
    return kept, accept


@jitted
def _before(configs: np.ndarray, one: int, other: int) -> bool:
    for column in range(3):
        if configs[one, column] != configs[other, column]:
            return configs[one, column] < configs[other, column]
    return False


@jitted
def _sort(configs: np.ndarray, found: np.ndarray, kept: int) -> None:
    """By node, counter, stack: Shell's sort, which for a handful is insertion."""
    gap = 1
    while gap < kept // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, kept):
            cell, j = found[i], i
            while j >= gap and _before(configs, cell, found[j - gap]):
                found[j] = found[j - gap]
                j -= gap
            found[j] = cell
        gap //= 3


@jitted
def _sort_down(numbers: np.ndarray, count: int) -> None:
    """The first `count`, descending: Shell's sort, as above."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            number, j = numbers[i], i
            while j >= gap and numbers[j - gap] < number:
                numbers[j] = numbers[j - gap]
                j -= gap
            numbers[j] = number
        gap //= 3


@jitted
def _collect_stacks(context: np.ndarray, first: int, last: int) -> Int:
    """Into WORK: the plain stacks of configurations FOUND[first:last], unions taken apart, descending, each once.
    Returns how many, or AMBIGUOUS."""
    configs, stacks, work, found = configs_of(context), stacks_of(context), work_of(context), found_of(context)
    counts = counts_of(context)
    counts[EPOCH] += 1
    epoch = np.int32(counts[EPOCH])
    size, bottom, opened = 0, False, False
    for i in range(first, last):
        stack = configs[found[i], CELL_STACK]
        while True:
            union = stack >= 0 and stacks[stack, CELL_NODE] == UNION
            if union and stacks[stack, CELL_EXTRA] == epoch:
                break  # this and all that follows it was there before
            plain = stacks[stack, CELL_COUNT] if union else stack
            if plain == BOTTOM:
                bottom = True
            elif plain == OPEN:
                opened = True
            elif stacks[plain, CELL_EXTRA] != epoch:
                if size >= len(work) - 3:
                    return AMBIGUOUS
                stacks[plain, CELL_EXTRA] = epoch
                work[size] = plain
                size += 1
            if not union:
                break
            stacks[stack, CELL_EXTRA] = epoch
            stack = stacks[stack, CELL_STACK]
    _sort_down(work, size)
    if bottom:
        work[size] = BOTTOM
        size += 1
    if opened:
        work[size] = OPEN
        size += 1
    return size


@jitted
def _merge(context: np.ndarray, kept: int) -> Int:
    """Configurations of FOUND (sorted) that differ in their stacks alone become one, with the union of the stacks.

    Without this, ambiguous grammars have exponentially many configurations. Returns how many are left."""
    configs, found, work, counts = configs_of(context), found_of(context), work_of(context), counts_of(context)
    result, first = 0, 0
    while first < kept:
        last = first + 1
        node, count = configs[found[first], CELL_NODE], configs[found[first], CELL_COUNT]
        while last < kept and configs[found[last], CELL_NODE] == node and configs[found[last], CELL_COUNT] == count:
            last += 1
        cell = found[first]
        if last > first + 1:
            size = _collect_stacks(context, first, last)
            if size < 0:
                return size
            if counts[STACKS_USED] + size > len(stacks_of(context)):
                return full(counts, layout.STACKS)
            if counts[CONFIGS_USED] + 1 > len(configs):
                return full(counts, layout.CONFIGS)
            stack = work[size - 1]  # the oldest innermost: what a later union adds is newer, and shares the rest
            for i in range(size - 2, -1, -1):
                stack = push(context, UNION, work[i], stack)
            cell = config(context, node, count, stack)
        found[result] = cell
        result += 1
        first = last
    return result


@jitted
def _members_hash(cells: np.ndarray, start: int, size: int, accept: int) -> Int:
    mixed = np.uint64(accept + 1) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(size):
        mixed = (mixed ^ np.uint64(cells[start + i])) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(31)
    return mixed


@jitted
def rehash_states(states: np.ndarray, members: np.ndarray, hashes: np.ndarray, used: int) -> None:
    """Fill an empty table for states ENDED .. used - 1."""
    mask = np.uint64(len(hashes) - 1)
    for state in range(ENDED, used):
        start, size = states[state, MEMBER_START], states[state, MEMBER_COUNT]
        place = _members_hash(members, start, size, states[state, ACCEPT]) & mask
        while hashes[place] > 0:
            place = (place + np.uint64(1)) & mask
        hashes[place] = state + 1


@jitted
def intern_state(context: np.ndarray, kept: int, accept: int) -> Int:
    """The state of the configurations in FOUND; DEAD for none."""
    if kept == 0 and accept == 0:
        return DEAD
    configs, found, states = configs_of(context), found_of(context), states_of(context)
    members, hashes, counts = members_of(context), state_hash_of(context), counts_of(context)
    if kept > 1:
        _sort(configs, found, kept)
        kept = _merge(context, kept)
        if kept < 0:
            return kept
    if counts[MEMBERS_USED] + kept > len(members):
        return full(counts, layout.MEMBERS)
    if counts[STATES_USED] + 1 > len(states):
        return full(counts, layout.STATES)
    mask = np.uint64(len(hashes) - 1)
    place = _members_hash(found, 0, kept, accept) & mask
    while hashes[place] > 0:
        state = hashes[place] - 1
        if states[state, MEMBER_COUNT] == kept and states[state, ACCEPT] == accept:
            start, equal = states[state, MEMBER_START], True
            for i in range(kept):
                if members[start + i] != found[i]:
                    equal = False
                    break
            if equal:
                return state
        place = (place + np.uint64(1)) & mask
    state = np.int32(counts[STATES_USED])
    start = np.int32(counts[MEMBERS_USED])
    counts[STATES_USED] += 1
    counts[MEMBERS_USED] += kept
    for i in range(kept):
        members[start + i] = found[i]
    states[state, MEMBER_START], states[state, MEMBER_COUNT], states[state, ACCEPT] = start, kept, accept
    states[state, ROW], states[state, INNER_ROW] = -1, -1
    hashes[place] = state + 1
    _describe(context, state)
    return state


@jitted
def _bits_between(first: int, last: int) -> Int:
    """uint64: bits first .. last, of 0 .. 63."""
    first, last = max(first, 0), min(last, 63)
    if first > last:
        return np.uint64(0)
    return (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(63 - last + first)) << np.uint64(first)


@jitted
def _describe(context: np.ndarray, state: int) -> None:
    """A new state's widest loop, the bytes that leave it (EXITS), and which of its steps are open (-1); the others are
    DEAD, which is how STEPS begins."""
    nodes, edges, configs, loops = nodes_of(context), edges_of(context), configs_of(context), loops_of(context)
    states, members, exits, steps = states_of(context), members_of(context), exits_of(context), steps_of(context)
    first = states[state, MEMBER_START]
    last = first + states[state, MEMBER_COUNT]
    widest = np.int32(-1)
    for i in range(first, last):
        node = configs[members[i], CELL_NODE]
        if loops[node, LOOP_LOW] | loops[node, LOOP_HIGH] != 0 and (
            widest < 0
            or (loops[node, LOOP_FLAGS] & np.uint64(UNICODE | ANY_BYTE))
            > (loops[configs[widest, CELL_NODE], LOOP_FLAGS] & np.uint64(UNICODE | ANY_BYTE))
        ):
            widest = members[i]
    states[state, LOOP] = widest
    low, high, beyond = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(first, last):
        node = configs[members[i], CELL_NODE]
        for edge in range(nodes[node, FIRST_EDGE], nodes[node, LAST_EDGE]):
            begin, end = edges[edge, EDGE_LOW], edges[edge, EDGE_HIGH]
            steps[state, begin : end + 1] = -1
            if members[i] != widest or edges[edge, EDGE_LOOPS] == 0:
                low |= _bits_between(begin, end)
                high |= _bits_between(begin - 64, end - 64)
                if end >= 128:
                    beyond = np.uint64(1)
    exits[state, 0], exits[state, 1], exits[state, 2] = low, high, beyond


@jitted
def close(context: np.ndarray, node: int, count: int, stack: int) -> Int:
    """The state that configuration (node, count, stack) opens."""
    if counts_of(context)[CONFIGS_USED] + 1 > len(configs_of(context)):
        return full(counts_of(context), layout.CONFIGS)
    work_of(context)[0] = config(context, node, count, stack)
    kept, accept = closure(context, 1)
    return kept if kept < 0 else intern_state(context, kept, accept)


@jitted
def compute_step(context: np.ndarray, state: int, byte: int) -> Int:
    """The state after `byte`, written for all bytes around it on which the same edges match."""
    nodes, edges, configs, counts = nodes_of(context), edges_of(context), configs_of(context), counts_of(context)
    members, states, work, steps = members_of(context), states_of(context), work_of(context), steps_of(context)
    if counts[ALLOWANCE] <= 0:
        return PAUSED
    low, high, waiting = np.int32(0), np.int32(255), 0
    first = states[state, MEMBER_START]
    for i in range(first, first + states[state, MEMBER_COUNT]):
        cell = members[i]
        node = configs[cell, CELL_NODE]
        for edge in range(nodes[node, FIRST_EDGE], nodes[node, LAST_EDGE]):
            begin, end = edges[edge, EDGE_LOW], edges[edge, EDGE_HIGH]
            if end < byte:
                low = max(low, end + 1)
            elif begin > byte:
                high = min(high, begin - 1)
            else:
                low, high = max(low, begin), min(high, end)
                if counts[CONFIGS_USED] + 1 > len(configs):
                    return full(counts, layout.CONFIGS)
                if waiting >= len(work):
                    return AMBIGUOUS
                work[waiting] = config(
                    context, edges[edge, EDGE_TARGET], configs[cell, CELL_COUNT], configs[cell, CELL_STACK]
                )
                waiting += 1
    following = np.int32(DEAD)
    if waiting > 0:
        kept, accept = closure(context, waiting)
        if kept < 0:
            return kept
        following = intern_state(context, kept, accept)
        if following < 0:
            return following
    for other in range(low, high + 1):
        steps[state, other] = following
    return following


@jitted
def step(context: np.ndarray, steps: np.ndarray, state: int, byte: int) -> Int:
    following = steps[state, byte]
    return compute_step(context, state, byte) if following < 0 else following


@jitted
def only_byte(context: np.ndarray, state: int) -> Int:
    """The one byte that may follow, and -1 where there are more, or the text may end."""
    nodes, edges, configs = nodes_of(context), edges_of(context), configs_of(context)
    states, members = states_of(context), members_of(context)
    if states[state, ACCEPT] != 0:
        return -1
    only, first = -1, states[state, MEMBER_START]
    for i in range(first, first + states[state, MEMBER_COUNT]):
        node = configs[members[i], CELL_NODE]
        for edge in range(nodes[node, FIRST_EDGE], nodes[node, LAST_EDGE]):
            byte = edges[edge, EDGE_LOW]
            if edges[edge, EDGE_HIGH] != byte or (only >= 0 and byte != only):
                return -1
            only = byte
    return only
