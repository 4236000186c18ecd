"""Masks in machine code: which tokens may follow a state, as bits in the order of the trie (ranks).

A mask is the union of what every configuration of a state allows, so parts of it are kept and used again:
- inside a JSON string it depends on the characters left and on what follows the quote alone (BODIES): a row of the
  vocabulary, and a small trie of what tokens have behind the quote;
- a state from which most ways lead into one string's body, as at a member's name, differs from that body in few nodes
  of the tries;
- a state in a wide loop starts from a row of the vocabulary's that holds all tokens of the loop's characters, and its
  walk skips what only could lie in that row;
- a state all of whose configurations share one stack is looked at with that stack OPEN: which tokens end inside the
  frame (INNER_ROW), and at which nodes of the tries the frame is left (ESCAPES). Both serve every such state whatever
  its stack, as in the items of an array.
"""

from __future__ import annotations

import numpy as np

from . import layout
from .bits import row_words, set_bit, vocabulary_of
from .bodies import bodies_of, body_hash_of, body_row, free_of
from .class_rows import NO_ROW, fill_class, walk_all
from .kernel import (
    close,
    config,
    config_hash_of,
    configs_of,
    counts_of,
    full,
    intern,
    intern_state,
    members_of,
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
    ALLOWANCE,
    BODIES_USED,
    BOTTOM,
    COLD,
    CONFIGS_USED,
    DEAD,
    END_RANK,
    ENDED,
    FREE_USED,
    NO_ROWS,
    ROW,
    STACKS_USED,
    STATES_USED,
    TOKENS,
    WANTED,
    WANTED_CLASS,
    Int,
    context_at,
    int64s,
    jitted,
)
from .shared_rows import beside, differing_row, framed_row, shared_stack

token_starts_of = layout.vector(layout.TOKEN_STARTS, np.int64)
token_bytes_of = layout.vector(layout.TOKEN_BYTES, np.uint8)
ranks_of = layout.vector(layout.RANKS)


@jitted
def _walked_row(context: np.ndarray, state: int) -> Int:
    states, counts = states_of(context), counts_of(context)
    if counts[FREE_USED] + 1 > len(free_of(context)):
        return NO_ROWS
    row = free_of(context)[counts[FREE_USED]]
    refused = walk_all(context, state, row, False)
    if refused < 0:
        return refused
    if states[state, ACCEPT] & ACCEPTS != 0:
        set_bit(row_words(context, row), vocabulary_of(context)[END_RANK])
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
        other = beside(context, state)
        if other < 0:
            return other
        if other > DEAD:
            row = differing_row(context, state, other)
    if row == NO_ROW and states[state, ACCEPT] == 0:
        stack = shared_stack(context, state)
        if stack != BOTTOM:
            row = framed_row(context, state, stack)
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

    MASK: `argument`, where it is not 0, is the allowance for it.
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
        if argument > 0:
            counts_of(context)[ALLOWANCE] = argument
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
