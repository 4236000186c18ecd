"""Rows of states from what is known of others: of a string they are beside, or of the inside of their frame."""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import copy_words, row_words, set_bit
from .bodies import body_row, free_of
from .class_rows import NO_ROW, walk_all
from .kernel import (
    close,
    config,
    configs_of,
    counts_of,
    found_of,
    full,
    intern_state,
    members_of,
    states_of,
    step,
    steps_of,
)
from .layout import (
    BOTTOM,
    CELL_COUNT,
    CELL_NODE,
    CELL_STACK,
    CONFIGS_USED,
    DEAD,
    DEPTH,
    ESCAPE_COUNT,
    ESCAPE_START,
    ESCAPES_USED,
    FREE_USED,
    INNER_ROW,
    LOOP,
    MEMBER_COUNT,
    MEMBER_START,
    NO_ROWS,
    OPEN,
    RANK,
    ROW,
    STOPPED_LOG,
    STOPPED_ROOT,
    STOPPED_TRIE,
    WRITTEN,
    Int,
    jitted,
)
from .walks import clean_of, escapes_of, path_of, rest_of, walk, walk_both

USUAL = 0x7E  # a character that few names and patterns treat by itself
ESCAPE_LIMIT = 2048  # nodes at which a frame is left, beyond which the state is walked with its real stack
NEVER = -2  # INNER_ROW: such a state
OF_BOTH = 2  # STOPPED_LOG: `walk_both` was refused


@jitted
def beside(context: np.ndarray, state: int) -> Int:
    """The state a common character leads to, if that is one in a loop which stays what it is; else DEAD, or a refusal.

    So it is at the start of a name: most of what may follow is not the name of a declared member."""
    steps = steps_of(context)
    if steps[state, USUAL] == DEAD:
        return DEAD
    other = step(context, steps, state, USUAL)
    if other <= DEAD or other == state or states_of(context)[other, LOOP] < 0:
        return min(other, DEAD)
    again = step(context, steps, other, USUAL)
    return other if again == other else min(again, DEAD)


@jitted
def differing_row(context: np.ndarray, state: int, other: int) -> Int:
    """The row of `state` from that of `other`, a string's body, by a walk where their ways differ; NO_ROW where that
    is none."""
    states, counts = states_of(context), counts_of(context)
    known = states[other, ROW]
    if known < 0:
        known = body_row(context, other)
        if known < 0:
            return known
        states[other, ROW] = known
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    row = free_of(context)[counts[FREE_USED]]
    mask = row_words(context, row)
    resumed = counts[STOPPED_ROOT] == state and counts[STOPPED_LOG] == OF_BOTH
    counts[STOPPED_ROOT] = DEAD
    if not resumed:
        copy_words(mask, row_words(context, known))
        counts[WRITTEN], counts[STOPPED_TRIE] = row, 0
    for which in range(counts[STOPPED_TRIE], 2):
        refused = walk_both(context, which, state, other, mask, resumed)
        if refused < 0:
            counts[STOPPED_ROOT], counts[STOPPED_LOG], counts[STOPPED_TRIE] = state, OF_BOTH, which
            return refused
        resumed = False
    counts[FREE_USED] += 1
    return row


@jitted
def shared_stack(context: np.ndarray, state: int) -> Int:
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
    started = walk_all(context, state, row, True)
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
        refused = walk(context, which, node, mask, -1, DEAD, False, False)
        if refused < 0:
            return refused
    return 0


@jitted
def framed_row(context: np.ndarray, state: int, stack: int) -> Int:
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
    copy_words(mask, row_words(context, inner_row))
    counts[WRITTEN] = row
    counts[STOPPED_ROOT] = DEAD
    refused = _leave(context, inner, outside, mask)
    if refused < 0:
        return refused
    counts[FREE_USED] += 1
    return row
