"""Where machine code finds its arrays: one int64 vector of (address, rows) pairs, the context.

A kernel takes the context's address and nothing else, since unpacking an array argument costs more than a warm lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..jit import Jitted, carray, njit, numba, pointer

# ---- the context: what belongs to a grammar ...
(
    NODES, LOOPS, EDGES,  # the NFA
    STACKS, STACK_HASH, CONFIGS, CONFIG_HASH,  # interned (node, counter, stack), stack cells of the same form; a hash
    # table holds 1 + a number, 0 where nothing is
    STATES, EXITS, MEMBERS, STATE_HASH, STEPS,  # states: sets of configurations; STEPS[state, byte] is the next one
    ESCAPES, BODIES, BODY_HASH, FREE,  # of masks: see kernel.py
    COUNTS, WORK, FOUND, PATH, PURE, OPEN_FORKS,  # counters of what is used; scratch
    # ... and what belongs to the vocabulary
    TOKEN_STARTS, TOKEN_BYTES, RANKS,
    CLEAN, CLEAN_BELOW, CLEAN_FORKS, CLEAN_FORK_BYTES, REST, REST_BELOW, REST_FORKS, REST_FORK_BYTES,
    BODY_ROWS, LONG, SUFFIXES, GROUP_STARTS, GROUPS, CLASSES, CLASS_ROWS, CHUNKS, VOCABULARY,
    SLOTS,
) = range(43)  # fmt: skip

# ---- columns
KIND, A, B, LOW, HIGH, FIRST_EDGE, LAST_EDGE, TEST = range(8)  # NODES; edges [FIRST_EDGE, LAST_EDGE)
EDGE_LOW, EDGE_HIGH, EDGE_TARGET, EDGE_LOOPS = range(4)  # EDGES
LOOP_LOW, LOOP_HIGH, LOOP_FLAGS, LOOP_CLASS = range(4)  # LOOPS: bytes 0..63, 64..127, flags, 1 + index into CLASSES
CELL_NODE, CELL_COUNT, CELL_STACK, CELL_EXTRA = range(4)  # STACKS, CONFIGS (extra: seen at), BODIES (extra: row)
(
    MEMBER_START, MEMBER_COUNT, ACCEPT, LOOP,  # LOOP: the member with the widest loop, or -1
    ROW, INNER_ROW, ESCAPE_START, ESCAPE_COUNT,
) = range(8)  # STATES  # fmt: skip
DEPTH, SIZE, RANK, BYTE = range(4)  # CLEAN, REST: of a trie node; SIZE counts its subtree, RANK the tokens before it
BELOW_LOW, BELOW_HIGH, BELOW_FLAGS, OWN_FLAGS = range(4)  # of the bytes below a trie node, and of those up to it

# ---- LOOP_FLAGS
UNICODE = 1  # every character beyond ASCII loops too
ESCAPED = 2  # a whole body of a JSON string: what `body_loop` of loops.py describes
EXACT = 4  # all ways around come back to one place
INSIDE = 8  # this node is inside a character of the loop, whose flags are these

ANY_BYTE = 16  # not counted, and every byte 0x80 .. 0xFE loops by itself, UTF-8 or not

# ---- BELOW_FLAGS: 0 only ASCII, VALID or INVALID UTF-8; above them the most characters that begin below a node
VALID, INVALID, CHARS_SHIFT = 1, 2, 8
# ---- OWN_FLAGS: VALID or INVALID; above it 1 + where the list of a node's children begins, of FORKS or more
FORK_SHIFT, FORKS = 8, 5

# ---- ACCEPT
ACCEPTS, ESCAPES_HERE = 1, 2

# ---- COUNTS: used rows of the growing arrays, what the last refusal was about, and the scratch epoch
(
    STACKS_USED, CONFIGS_USED, STATES_USED, MEMBERS_USED, ESCAPES_USED, BODIES_USED, FREE_USED,
    EPOCH, WANTED, VISITED, WANTED_CLASS,
    STOPPED_ROOT, STOPPED_LOG, STOPPED_TRIE, STOPPED_NODE, STOPPED_PRUNED, STOPPED_ESCAPES,  # a walk that was refused
    STOPPED_FORK, STOPPED_LATER,
    ALLOWANCE,  # configurations, and nodes of tries, that may be looked at before the answer is PAUSED
    WRITTEN,  # the row last written to, which may be one of those that are free again
    COUNTERS,
) = range(22)  # fmt: skip

# ---- VOCABULARY: scalars
WORDS, END_RANK, LONGEST, TOKENS, CLASSES_USED, CHUNK_ROWS, SCALARS = range(7)

# ---- special values
BOTTOM, OPEN = -1, -2  # stacks: nothing beneath; whatever beneath
UNION = -3  # CELL_NODE of a stack that is CELL_COUNT's or CELL_STACK's
DEAD, ENDED = 0, 1  # states
CLASS_LIMIT, BUCKETS = 64, 33  # character classes with rows; rows by characters at most: 0 any number, else 1 .. 32
WIDE = 16  # ASCII characters of a class that is worth rows

# ---- what a kernel answers instead of a state or a row
GROW, NO_ROWS, LOWER, AMBIGUOUS, NO_CLASS, COLD, PAUSED = -2, -3, -4, -5, -6, -7, -8


Int = Any  # an integer of machine code, of whatever width


def jitted(function: Callable[..., Any]) -> Any:
    """Compiled with every integer argument taken as int64 and every flag as a boolean: once, where Numba alone would
    compile a function again for each mixture of widths and constants it is called with."""
    return Jitted(function, lambda: _dispatcher(function))


def _dispatcher(function: Callable[..., Any]) -> Any:
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    dispatcher: Any = numba().njit(**options)(function)
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda given, named: template([_plain(argument) for argument in given], named)
    return dispatcher


def _plain(argument: Any) -> Any:
    types = numba().types
    argument = types.unliteral(argument)
    narrow = isinstance(argument, types.Integer) and argument != types.uint64
    return types.int64 if narrow else argument


@jitted
def context_at(address: int) -> np.ndarray:
    return carray(pointer(address), (2 * SLOTS,), np.int64)


@jitted
def int64s(address: int, count: int) -> np.ndarray:
    return carray(pointer(address), (count,), np.int64)


@jitted
def words_at(address: int, count: int) -> np.ndarray:
    return carray(pointer(address), (count,), np.uint32)


def table(slot: int, columns: int, dtype: Any = np.int32) -> Callable[[np.ndarray], np.ndarray]:
    """A jitted function of the context that gives the array in `slot`: [rows, columns]."""

    @njit
    def view(context: np.ndarray) -> np.ndarray:
        return carray(pointer(context[2 * slot]), (context[2 * slot + 1], columns), dtype)

    return view


def vector(slot: int, dtype: Any = np.int32) -> Callable[[np.ndarray], np.ndarray]:
    """A jitted function of the context that gives the array in `slot`: [rows]."""

    @njit
    def view(context: np.ndarray) -> np.ndarray:
        return carray(pointer(context[2 * slot]), (context[2 * slot + 1],), dtype)

    return view


def bind(context: np.ndarray, slot: int, array: np.ndarray) -> None:
    """Put `array` (contiguous, and kept alive by the caller) into the context."""
    context[2 * slot], context[2 * slot + 1] = array.__array_interface__["data"][0], len(array)
