"""The automaton of one constraint: its arrays, grown as it is walked, and the operations on its states.

A state is an int; forking, rolling back and sharing a prefix are copies of it. A grammar is one for all requests that
have its constraint, and what one request made the others find. 0 is the dead state, 1 is the state after the end.

Threads: a grammar belongs to one thread at a time. It may be made, and its first mask filled, in a worker, and then be
handed to the engine thread. What `prepare_aside` does in yet another one ends with the grammar's first use. Whoever
cannot wait asks `ready` before every use: what takes long is then done in another thread as well. The vocabulary's
tables are shared by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from . import layout, masks
from .aside import STUCK, Custody, DeadEnd
from .clock import SECONDS, TICKS, Rest, TimeOver, tick, timed
from .code import DEFAULT_CACHE, constraint_code
from .context import Context, Forms, Piece
from .errors import Code, ConstraintError
from .layout import ALLOWANCE, AMBIGUOUS, BOTTOM, DEAD, GROW, LOWER, NO_CLASS, NO_ROWS, PAUSED, UNION
from .nfa import UNBOUNDED, Nfa
from .nodes import NODE_FORMS, NodeTables
from .reference import accepts
from .vocab import VocabTables

if TYPE_CHECKING:
    from .matcher import Matcher

__all__ = ["STUCK", "DeadEnd", "Grammar", "Limits", "accepts"]

Encode = Callable[[bytes], list[int]]  # text, as UTF-8, to tokens; nothing added

PROVIDED = 64  # ticks
PIECE_S = 0.001  # for which `prepare` keeps a grammar to itself
AT_ONCE = 30_000  # configurations and nodes that machine code looks at in one call, about a millisecond
UNSHARED = 2000  # and for a mask with the interpreter's lock held: some 30 microseconds
FORCED_S = 0.001  # for text that has to follow
ROWS_AT_ONCE, ROWS_AHEAD = 32, 256  # taken by a grammar; kept free for all
HASHES = {
    layout.STACKS: layout.STACK_HASH,
    layout.CONFIGS: layout.CONFIG_HASH,
    layout.STATES: layout.STATE_HASH,
    layout.BODIES: layout.BODY_HASH,
}
BESIDE_STATES = (layout.EXITS, layout.STEPS)  # as long as STATES
STATE_FORMS: Forms = {  # as they begin; all but COUNTS grow, hash tables with what they are of
    layout.STACKS: ((1024, 4), np.int32),
    layout.CONFIGS: ((8192, 4), np.int32),
    layout.STATES: ((1024, 8), np.int32),
    layout.EXITS: ((1024, 4), np.uint64),
    layout.STEPS: ((1024, 256), np.int32),
    layout.MEMBERS: ((4096,), np.int32),
    layout.ESCAPES: ((8192,), np.int32),
    layout.BODIES: ((64, 4), np.int32),
    layout.STACK_HASH: ((2048,), np.int32),
    layout.CONFIG_HASH: ((16384,), np.int32),
    layout.STATE_HASH: ((2048,), np.int32),
    layout.BODY_HASH: ((128,), np.int32),
    layout.COUNTS: ((layout.COUNTERS,), np.int64),
    layout.FREE: ((ROWS_AT_ONCE,), np.int32),
}
STATE_ARRAYS = Piece(STATE_FORMS)
GROWN = 2 * STATE_ARRAYS.sizes[layout.STEPS]  # bytes of the largest array once it has grown


@cache
def _all_arrays(longest: int) -> Piece:
    """Less than a huge page.  longest: bytes of a token."""
    sizes = {layout.WORK: 1 << 16, layout.FOUND: 1 << 14, layout.PATH: longest + 2, layout.PURE: longest + 2}
    scratch: Forms = {slot: ((size,), np.int32) for slot, size in sizes.items()}
    open_forks: Forms = {layout.OPEN_FORKS: ((longest + 2, 5), np.int32)}
    return Piece({**STATE_FORMS, **NODE_FORMS, **scratch, **open_forks})


@dataclass(frozen=True)
class Limits:
    """Budgets. nodes, seconds: what making a grammar may cost, beyond which it is refused. size_bytes: what an admitted
    one may hold (states and masks); beyond, everything is dropped that no request stands on."""

    nodes: int = 200_000
    seconds: float = SECONDS  # of the thread that makes it
    size_bytes: int = 64 << 20


class Grammar:
    """The language that begins at node `start` of `nfa`, over the tokens of `tables` (None: over bytes alone).

    Raises ConstraintError where the budget ends before the first state is known, or lowering it fails.
    """

    def __init__(
        self,
        nfa: Nfa,
        start: int,
        tables: VocabTables | None = None,
        limits: Limits = Limits(),
        cache_dir: Path = DEFAULT_CACHE,
        encode: Encode | None = None,
    ) -> None:
        """cache_dir: where compiled code is kept. encode: the tokenizer, for tokens that are certain to follow."""
        self._nfa: Nfa | None = nfa  # None: nothing in it is lazy any more, and all of it is in arrays
        self.tables, self._limits, self.encode = tables, limits, encode
        code = constraint_code(cache_dir)
        self._run, self._run_free = code.run, code.run_free
        self._arrays = Context(tables.pool.stock if tables else None)
        self._address = self._arrays.address
        self._rows: list[int] = []  # of the pool, all that this grammar holds
        self.matchers: WeakSet[Matcher] = WeakSet()
        self._custody = Custody()
        self.rebuilt = 0  # how often states were renumbered
        self._deadline: float | None = time.thread_time() + limits.seconds
        if tables:
            tables.bind(self._arrays.slots)
        arrays = _all_arrays(tables.longest if tables else 1)
        if tables:
            tables.pool.stock.keep(arrays.size, 2)
            tables.pool.stock.keep(GROWN, 1)
        self._arrays.add(arrays)
        if start in nfa.pending:
            self._lower_node(nfa, start)
        self._check_size(nfa)
        self._nodes = NodeTables(nfa, self._arrays)
        self._begin()
        self.first = self._state(masks.FIRST, start)
        self._deadline = None
        if not nfa.pending:
            self._nfa = None
        self._budget = max(limits.size_bytes, 2 * self.bytes_used)

    def start(self) -> Matcher:
        """A matcher at the beginning of the text."""
        from .matcher import Matcher

        return Matcher(self)

    def prepare(self, seconds: float) -> None:
        """Lower what is still lazy, for at most so much of this thread's time: work that masks would otherwise wait
        for. What cannot be lowered is left for the mask that meets it."""
        self._custody.lend()
        self._prepare(seconds)
        self._custody.claim()

    def prepare_aside(self, seconds: float, rest: Rest = lambda took_s: None) -> None:
        """The same in a thread of its own, until the grammar is first used: while the prompt is computed.  rest: called
        between pieces of this and of all later work beside the grammar's user."""
        self._custody.rest = rest
        self._custody.lend()
        Thread(target=self._prepare, args=(seconds,), name="prepare", daemon=True).start()

    def _prepare(self, seconds: float) -> None:
        deadline = time.thread_time() + seconds
        if self.tables:
            self.tables.pool.reserve(ROWS_AHEAD)
        with suppress(ConstraintError, MemoryError):
            for work in self._work_ahead():
                began = time.thread_time()
                if began > deadline:
                    break
                with self._custody.piece:
                    if self._custody.claimed:
                        break
                    work()
                self._custody.rest(time.thread_time() - began)

    def _work_ahead(self) -> Iterator[Callable[[], None]]:
        """Pieces of it."""
        while self._nfa is not None and self._nfa.pending and len(self._nfa.nodes) < self._limits.nodes:
            yield partial(self._lower_some, self._nfa)
        if self.tables:
            yield from (partial(self._make_class, *wanted) for wanted in self._classes_ahead(self.tables))

    def _lower_some(self, nfa: Nfa) -> None:
        """Lower for PIECE_S."""
        until, lowered = time.monotonic() + PIECE_S, []
        try:
            while nfa.pending and time.monotonic() < until:
                node = next(iter(nfa.pending))
                nfa.lower(node)
                lowered.append(node)
        finally:
            self._read_nfa(nfa, lowered)

    def _classes_ahead(self, tables: VocabTables) -> Iterator[tuple[int, int]]:
        """Loops and buckets of the rows with which masks in them begin (class_rows.begin_mask)."""
        for node in self._nodes.loops:
            low, high, flags, _ = self._arrays[layout.LOOPS][node].tolist()
            wide = flags & (layout.UNICODE | layout.ANY_BYTE) or low.bit_count() + high.bit_count() >= layout.WIDE
            if not wide or flags & layout.ESCAPED:  # bodies.py has those of strings
                continue
            test = int(self._arrays[layout.NODES][node, layout.TEST])
            room = int(self._arrays[layout.NODES][test, layout.HIGH]) if test >= 0 else UNBOUNDED
            if room == UNBOUNDED or room >= tables.longest:
                yield node, 0
            else:
                yield from ((node, bucket) for bucket in range(min(room, layout.BUCKETS - 1), 0, -1))

    # ---- states

    def advance(self, state: int, token: int) -> int:
        """The state after `token`; 0 where it is not allowed. Raises DeadEnd."""
        if not self._custody.claimed:
            self._custody.claim()
        following = self._run(self._address, masks.ADVANCE, state, token)
        return following if following >= 0 else self._state(masks.ADVANCE, state, token)

    def advance_bytes(self, state: int, data: bytes) -> int:
        """The state after `data`; 0 where no text goes on like that. Raises DeadEnd."""
        if not self._custody.claimed:
            self._custody.claim()
        for byte in data:
            state = self._state(masks.STEP, state, byte)
            if state == DEAD:
                break
        return state

    def ready(self, state: int) -> bool:
        """Whether `row` and `advance` answer at once. Where they would not, what is missing is worked out in another
        thread, and whoever asked should ask again later, and do nothing else with the grammar until then."""
        return self._custody.ready(self, state)

    def has(self, state: int) -> bool:
        """Whether the mask of `state` was made."""
        return bool(self._run(self._address, masks.LOOKUP, state, 0) >= 0)

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return bool(self._arrays[layout.STATES][state, layout.ACCEPT] & layout.ACCEPTS)

    def finished(self, state: int) -> bool:
        """Whether the text may end here, and cannot go on."""
        return self.accepting(state) and not self._arrays[layout.STATES][state, layout.MEMBER_COUNT]

    def row(self, state: int) -> int:
        """The row of `tables.pool` that holds the mask of `state`: bits by rank. Raises DeadEnd.

        Valid until the grammar is rebuilt (`rebuilt` counts), which happens in `trim` alone."""
        if not self._custody.claimed:
            self._custody.claim()
        row = self._run(self._address, masks.MASK, state, UNSHARED)
        if row >= 0:
            return row
        if state in self._custody.failed:
            raise DeadEnd(self._custody.failed[state])
        self.provide(row)
        return self.make(state)

    def mask(self, state: int) -> np.ndarray:
        """uint32 [tables.words], bits by rank; a view. Raises DeadEnd."""
        assert self.tables is not None
        return self.tables.pool[self.row(state)]

    def forced_bytes(self, state: int, limit: int) -> bytes:
        """The bytes that have to follow, as far as each is the only one and is found soon, `limit` at most. Raises
        DeadEnd."""
        if not self._custody.claimed:
            self._custody.claim()
        forced = bytearray()
        with suppress(TimeOver), timed(FORCED_S):
            while len(forced) < limit and (byte := self._run(self._address, masks.ONLY_BYTE, state, 0)) >= 0:
                forced.append(byte)
                state = self._state(masks.STEP, state, byte)
        return bytes(forced)

    def run_jobs(self, jobs: np.ndarray) -> None:
        """Run a batch (masks.py) of this and other grammars."""
        self._run_free(jobs.ctypes.data, masks.BATCH, len(jobs), 0)

    def job(self, state: int, token: int) -> tuple[int, int, int, int]:
        """A row of a batch (masks.py)."""
        if not self._custody.claimed:
            self._custody.claim()
        return self._address, state, token, 0

    # ---- memory

    @property
    def in_use(self) -> bool:
        """Requests stand in it, or it is prepared for one: it may grow."""
        return bool(self.matchers) or not self._custody.claimed

    @property
    def bytes_used(self) -> int:
        """Of states and masks."""
        row = self.tables.words * 4 if self.tables else 0
        return self._arrays.size_bytes + row * len(self._rows)

    def trim(self) -> None:
        """Keep within the budget: when more is held, drop all states and masks but the states requests stand on.
        Renumbers these; their matchers know."""
        if not self._custody.claimed:
            self._custody.claim()
        if self.bytes_used <= self._budget:
            return
        matchers = list(self.matchers)
        live = sorted({DEAD, layout.ENDED, self.first, *(state for matcher in matchers for state in matcher.states)})
        numbers = self._rebuild(live)
        self.first = numbers[self.first]
        for matcher in matchers:
            matcher.states = [numbers[state] for state in matcher.states]
        self._budget = max(self._limits.size_bytes, 2 * self.bytes_used)
        self.rebuilt += 1

    def _rebuild(self, live: Sequence[int]) -> dict[int, int]:
        """Start over with the states `live`; their new numbers."""
        old = {slot: self._arrays[slot] for slot in (layout.STATES, layout.MEMBERS, layout.CONFIGS, layout.STACKS)}
        members = {}
        for state in live:
            first, count, accept = (int(number) for number in old[layout.STATES][state, :3])
            members[state] = accept, old[layout.CONFIGS][old[layout.MEMBERS][first : first + count]][:, :3].tolist()
        self.release()
        self._arrays.add(STATE_ARRAYS)
        self._begin()
        self._custody.failed.clear()
        stacks = self._restack(old[layout.STACKS], {stack for _, cells in members.values() for *_, stack in cells})
        numbers = {DEAD: DEAD}
        for state in live:
            accept, cells = members[state]
            if state != DEAD:
                found = [self._cell(masks.CELL, node, count, stacks[stack]) for node, count, stack in cells]
                self._arrays[layout.FOUND][: len(found)] = found
                numbers[state] = self._state(masks.STATE, len(found), accept)
        return numbers

    def _restack(self, old: np.ndarray, wanted: set[int]) -> dict[int, int]:
        """Intern these stacks, and all beneath them, again: old number to new."""
        needed, work = set[int](), [stack for stack in wanted if stack >= 0]
        while work:
            stack = work.pop()
            if stack not in needed:
                needed.add(stack)
                node, count, beneath, _ = old[stack].tolist()
                work += [each for each in (beneath, count if node == UNION else BOTTOM) if each >= 0]
        numbers = {BOTTOM: BOTTOM}
        for stack in sorted(needed):  # what a cell refers to is older than it
            node, count, beneath, _ = old[stack].tolist()
            count = numbers[count] if node == UNION else count
            numbers[stack] = self._cell(masks.PUSH, node, count, numbers[beneath])
        return numbers

    def release(self) -> None:
        """Give all rows back. The grammar is used no more, or starts over."""
        if self.tables:
            self.tables.pool.give_back(self._rows)
        self._rows = []

    def __del__(self) -> None:
        if getattr(self, "_rows", None):
            self.release()
        nfa: Nfa | None = getattr(self, "_nfa", None)
        if nfa is not None:
            nfa.forget()

    def _begin(self) -> None:
        """Make DEAD and ENDED of zeros."""
        counts = self._arrays[layout.COUNTS]
        counts[layout.STATES_USED], counts[ALLOWANCE], counts[layout.FREE_USED] = 1, AT_ONCE, ROWS_AT_ONCE
        self._arrays[layout.STATES][DEAD] = 0, 0, 0, -1, -1, -1, 0, 0
        ended = self._state(masks.STATE, 0, layout.ACCEPTS)
        assert ended == layout.ENDED

    # ---- calls

    def _state(self, operation: int, state: int, argument: int = 0) -> int:
        run = self._run if self._deadline is None else self._run_free  # a worker's call may take long
        while (result := run(self._address, operation, state, argument)) < 0:
            self.provide(result)
        return result

    def _cell(self, operation: int, node: int, count: int, stack: int) -> int:
        self._arrays[layout.WORK][:3] = node, count, stack
        return self._state(operation, 0)

    def make(self, state: int) -> int:
        """The row of a mask that is not there yet; for whoever has custody of the grammar. Raises DeadEnd."""
        assert self.tables is not None
        while (result := self._run_free(self._address, masks.MASK, state, 0)) < 0:
            self.provide(result)
        return result

    def provide(self, refusal: int) -> None:
        """Give machine code what it lacked. Raises DeadEnd, or ConstraintError while the grammar is being made."""
        tick(PROVIDED)
        if self._deadline is not None and time.thread_time() > self._deadline:
            raise ConstraintError(Code.TOO_LARGE, "", f"making it takes more than {self._limits.seconds:g} s")
        if refusal == GROW:
            self._grow(int(self._arrays[layout.COUNTS][layout.WANTED]))
        elif refusal == NO_ROWS:
            self._take_rows()
        elif refusal == NO_CLASS:
            counts = self._arrays[layout.COUNTS]
            self._make_class(int(counts[layout.WANTED]), int(counts[layout.WANTED_CLASS]))
        elif refusal == LOWER:
            self._lower(int(self._arrays[layout.COUNTS][layout.WANTED]))
        elif refusal == PAUSED:
            self._arrays[layout.COUNTS][ALLOWANCE] = AT_ONCE
            tick(TICKS)
        else:
            assert refusal == AMBIGUOUS, refusal
            reason = "a rule calls itself before any text, or is too ambiguous"
            raise ConstraintError(Code.TOO_LARGE, "", reason) if self._deadline is not None else DeadEnd(reason)

    def _grow(self, slot: int) -> None:
        self._arrays.reserve(slot, len(self._arrays[slot]) + 1)
        hashes = HASHES.get(slot)
        if slot == layout.STATES:
            for beside in BESIDE_STATES:
                self._arrays.reserve(beside, len(self._arrays[slot]))
        if hashes is not None:
            for every in HASHES.values():
                self._arrays.bind(every, np.zeros(len(self._arrays[every]) * (1 + (every == hashes)), np.int32))
            self._run_free(self._address, masks.REHASH, 0, 0)

    def _take_rows(self) -> None:
        """Machine code has used all of FREE: fill it again."""
        assert self.tables is not None
        rows = self.tables.pool.take(ROWS_AT_ONCE)
        self._rows += rows
        self._arrays[layout.FREE][:] = rows
        self._arrays[layout.COUNTS][layout.FREE_USED] = 0

    def _make_class(self, node: int, bucket: int) -> None:
        """Fill the row of the characters of a loop, or note that there will be none."""
        assert self.tables is not None
        classes, loop = self.tables.classes, self._arrays[layout.LOOPS][node]
        with classes.lock:
            number = classes.number(int(loop[0]), int(loop[1]), int(loop[2]) & (layout.UNICODE | layout.ANY_BYTE))
            loop[layout.LOOP_CLASS] = layout.CLASS_LIMIT + 1 if number is None else number + 1
            if number is not None and classes.rows[number, bucket] < 0:
                (row,) = self.tables.pool.take(1)
                self._arrays[layout.COUNTS][[layout.WANTED, layout.WANTED_CLASS]] = node, bucket
                self._run_free(self._address, masks.CLASS, 0, row)
                classes.rows[number, bucket] = row

    # ---- the NFA

    def _lower(self, node: int) -> None:
        assert self._nfa is not None
        self._lower_node(self._nfa, node)
        self._read_nfa(self._nfa, [node])

    def _lower_node(self, nfa: Nfa, node: int) -> None:
        try:
            nfa.lower(node)
        except RecursionError:
            raise ConstraintError(Code.TOO_LARGE, "", "too large: it is nested too deeply") from None

    def _read_nfa(self, nfa: Nfa, changed: Sequence[int]) -> None:
        self._check_size(nfa)
        self._nodes.read(nfa, changed)
        if not nfa.pending:
            self._nfa = None

    def _check_size(self, nfa: Nfa) -> None:
        if self._deadline is not None and len(nfa.nodes) > self._limits.nodes:
            raise ConstraintError(Code.TOO_LARGE, "", f"it has more than {self._limits.nodes} nodes")
