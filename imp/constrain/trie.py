"""Tokens as a flat trie in depth-first order, and what lies below each of its nodes.

One compiled function with three operations over arrays in a vector of addresses; vocab.py calls it.
"""

from __future__ import annotations

import numpy as np

from ..jit import carray
from .layout import (
    BELOW_FLAGS,
    BELOW_HIGH,
    BELOW_LOW,
    BYTE,
    CHARS_SHIFT,
    DEPTH,
    FORK_SHIFT,
    FORKS,
    INVALID,
    OWN_FLAGS,
    RANK,
    SIZE,
    VALID,
    jitted,
    pointer,
)

SCAN, BUILD, SUMMARISE, FORK = range(4)
DEEPEST = 1 << 16  # bytes of a token
# SCAN: what a token is inside the body of a JSON string
IS_CLEAN, IS_BODY, CHARS, QUOTE, CHARS_TO_QUOTE, SCANNED = range(6)
BODY_HOME, BODY_DEAD = 0, 255  # states of the body's table: between two characters; not in a body


@jitted
def _scan(steps: np.ndarray, data: np.ndarray, starts: np.ndarray, out: np.ndarray) -> int:
    """out [tokens, SCANNED]: all of it text without escapes; all of it body; characters begun; where the first quote
    at a character's border is that only body stands before (-1: nowhere); characters before it.

    steps: uint8 [states, 256], the body's automaton."""
    for token in range(len(starts) - 1):
        state, chars, clean, quote = BODY_HOME, 0, 1, -1
        for at in range(starts[token], starts[token + 1]):
            byte = data[at]
            if state == BODY_HOME:
                if byte == 34:
                    quote = at - starts[token]
                    break
                chars += 1
            clean &= byte != 92
            state = steps[state, byte]
            if state == BODY_DEAD:
                break
        body = quote < 0 and state != BODY_DEAD and starts[token] < starts[token + 1]
        out[token, IS_CLEAN], out[token, IS_BODY] = clean and body, body
        out[token, CHARS], out[token, QUOTE], out[token, CHARS_TO_QUOTE] = chars, quote, chars
    return 0


@jitted
def _build(
    data: np.ndarray, starts: np.ndarray, order: np.ndarray, ranks: np.ndarray, trie: np.ndarray, work: np.ndarray
) -> int:
    """Nodes of the trie of the tokens `order` (ascending by bytes, none empty). Equal tokens share a rank.

    trie [>= bytes of all + 1, 4]; ranks [tokens]: written for those in `order`. Returns the number of nodes; one more
    is written, which ends the last one's ranks."""
    open_nodes = work  # at each depth
    nodes, depth, previous, rank = 0, 0, -1, -1
    for token in order:
        start, length = starts[token], starts[token + 1] - starts[token]
        shared = 0
        if previous >= 0:
            before = starts[previous]
            most = min(length, starts[previous + 1] - before)
            while shared < most and data[before + shared] == data[start + shared]:
                shared += 1
        if shared < length or previous < 0:
            rank += 1
        ranks[token] = rank
        for level in range(shared, depth):
            trie[open_nodes[level], SIZE] = nodes - open_nodes[level]
        for level in range(shared, length):
            trie[nodes, DEPTH], trie[nodes, BYTE] = level, data[start + level]
            trie[nodes, RANK] = rank
            open_nodes[level] = nodes
            nodes += 1
        depth, previous = length, token
    for level in range(depth):
        trie[open_nodes[level], SIZE] = nodes - open_nodes[level]
    trie[nodes, RANK] = rank + 1
    return nodes


@jitted
def _summarise(utf8: np.ndarray, trie: np.ndarray, below: np.ndarray, work: np.ndarray) -> int:
    """below [nodes, 4]: the bytes under each node as two 64-bit sets, whether those beyond ASCII go on as UTF-8, and
    the most characters that begin there; OWN_FLAGS says the same of the bytes down to the node.

    utf8: uint8 [states, 256], the automaton of UTF-8, with BODY_HOME between characters."""
    count = len(below)
    path, parents, states = work[:DEEPEST], work[DEEPEST:], work[DEEPEST + count :]
    for node in range(count):
        depth, byte = trie[node, DEPTH], trie[node, BYTE]
        path[depth] = node
        parents[node] = path[depth - 1] if depth else -1
        above = states[parents[node]] if depth else BODY_HOME
        states[node] = BODY_DEAD if above == BODY_DEAD else utf8[above, byte]
        below[node, OWN_FLAGS] = INVALID if states[node] == BODY_DEAD else VALID
    for node in range(count - 1, -1, -1):
        parent, byte = parents[node], trie[node, BYTE]
        if parent < 0:
            continue
        chars = (below[node, BELOW_FLAGS] >> np.uint64(CHARS_SHIFT)) + np.uint64(states[parent] == BODY_HOME)
        flags = below[node, BELOW_FLAGS] & np.uint64(3)
        if byte < 64:
            below[parent, BELOW_LOW] |= np.uint64(1) << np.uint64(byte)
        elif byte < 128:
            below[parent, BELOW_HIGH] |= np.uint64(1) << np.uint64(byte - 64)
        else:
            flags |= np.uint64(INVALID if states[node] == BODY_DEAD else VALID)
        if states[node] == BODY_DEAD:
            flags |= np.uint64(INVALID)
        below[parent, BELOW_LOW] |= below[node, BELOW_LOW]
        below[parent, BELOW_HIGH] |= below[node, BELOW_HIGH]
        old = below[parent, BELOW_FLAGS]
        most = max(old >> np.uint64(CHARS_SHIFT), chars)
        below[parent, BELOW_FLAGS] = (old | flags) & np.uint64(3) | most << np.uint64(CHARS_SHIFT)
    return 0


@jitted
def _fork(trie: np.ndarray, below: np.ndarray, forks: np.ndarray, bytes_of: np.ndarray, work: np.ndarray) -> int:
    """The children of nodes that have FORKS or more, and of the root, whose list comes first: how many, then each.

    forks, bytes_of [>= nodes + nodes // FORKS + 2]: nodes, and by which bytes. OWN_FLAGS >> FORK_SHIFT of a node is 1 +
    where its list begins, 0 if it has none. Returns how much was written."""
    count = len(below)
    path, parents, children = work[:DEEPEST], work[DEEPEST:], work[DEEPEST + count :]
    children[: count + 1] = 0
    for node in range(count):
        depth = trie[node, DEPTH]
        path[depth] = node
        parents[node] = path[depth - 1] + 1 if depth else 0  # 0: the root
        children[parents[node]] += 1
    used, places = 0, work[DEEPEST + 2 * count + 1 :]  # where the next child goes
    for node in range(count + 1):
        places[node] = -1
        if node == 0 or children[node] >= FORKS:
            forks[used] = children[node]
            if node > 0:
                below[node - 1, OWN_FLAGS] |= np.uint64(used + 1) << np.uint64(FORK_SHIFT)
            places[node] = used + 1
            used += 1 + children[node]
    for node in range(count):
        place = places[parents[node]]
        if place >= 0:
            forks[place], bytes_of[place] = node, trie[node, BYTE]
            places[parents[node]] += 1
    return used


@jitted
def work_words(nodes: int) -> int:
    return DEEPEST + 3 * nodes + 2


def tries(addresses: int, operation: int, tokens: int, nodes: int) -> int:
    """addresses: int64 [7], of the operation's arrays in the order of its arguments, then the bytes of all tokens, and
    the address of work_words(nodes) int32 to work with.

    SCAN (steps, data, starts, out); BUILD (data, starts, order, ranks, trie; nodes: how many tokens are in order);
    SUMMARISE (utf8, trie, below); FORK (trie, below, forks, bytes_of; tokens: how long these are)."""
    at = carray(pointer(addresses), (7,), np.int64)
    size = at[5]
    work = carray(pointer(at[6]), (work_words(nodes),), np.int32)
    if operation == SCAN:
        return _scan(
            carray(pointer(at[0]), (nodes, 256), np.uint8),
            carray(pointer(at[1]), (size,), np.uint8),
            carray(pointer(at[2]), (tokens + 1,), np.int64),
            carray(pointer(at[3]), (tokens, SCANNED), np.int32),
        )
    if operation == BUILD:
        return _build(
            carray(pointer(at[0]), (size,), np.uint8),
            carray(pointer(at[1]), (tokens + 1,), np.int64),
            carray(pointer(at[2]), (nodes,), np.int32),
            carray(pointer(at[3]), (tokens,), np.int32),
            carray(pointer(at[4]), (size + 1, 4), np.int32),
            work,
        )
    if operation == FORK:
        return _fork(
            carray(pointer(at[0]), (nodes + 1, 4), np.int32),
            carray(pointer(at[1]), (nodes, 4), np.uint64),
            carray(pointer(at[2]), (tokens,), np.int32),
            carray(pointer(at[3]), (tokens,), np.uint8),
            work,
        )
    return _summarise(
        carray(pointer(at[0]), (tokens, 256), np.uint8),
        carray(pointer(at[1]), (nodes + 1, 4), np.int32),
        carray(pointer(at[2]), (nodes, 4), np.uint64),
        work,
    )
