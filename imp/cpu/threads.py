"""The threads that replay a program. Owns how a step starts, how work is shared inside it, and how threads wait.

The thread that calls `Threads.run` works too. The others sleep in the kernel while no step runs (after a short spin,
since the next step usually follows at once). The units of a phase are handed out one by one; the thread that reports
the last one done opens the next phase. So nobody waits for a thread, only for work: one that is preempted, or wakes
late, delays the others by the unit it holds and otherwise just misses some of the work. Waiting is spinning, then
yielding the core.

Every thread begins with a range of its own of every op's units, and helps others when that is done. Units follow the
tokens of a step, so what a thread reads is mostly what it wrote before: a line that another core has just written comes
three to five times as slowly as one of memory.

Beside another program that wants the same core, a thread would be taken off it after some milliseconds in the middle of
a unit, and everybody would wait for that one until it is back. So a thread that has been away gives up its core by
itself, where it holds no unit, before it is taken off again; it goes on doing that as long as somebody takes the core.

A thread that finds no unit asks meanwhile for the weights that it will read next (program.py says which): small ops
between large ones, and units that others still hold, would leave the memory idle.

A program may be run for a while only. Then all units are in one range. Whoever finds after a unit that the time is up
closes the phase, so that nobody takes another unit, and notes which one would have been the next: there it goes on
later. Every run does one unit at least. Another program may run in between, if it has other buffers and a header of its
own.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from ..jit import njit
from .cache import CompiledKernels
from .emit import I32, I64, VOID, Emission, V, call, constant, int64, micro
from .program import ALIGNMENT, COMING, SCRATCH_BYTES, STEP_THREADS, STEP_WORDS, Program
from .simd import atomic_add, atomic_load, atomic_store, pause, prefetch, store, word

# Words of the pool block. Words that threads hammer on have a cache line (8 words) to themselves.
_GENERATION, _DONE = 0, 8
_TABLE, _LENGTH, _STEP, _STOP, _RANGES = 16, 17, 18, 19, 20
_UNITS = 24  # of the open phase
_FIRST_ROW, _FIRST_UNIT, _DEADLINE = 28, 29, 30  # where to begin; nanoseconds of the monotonic clock, 0: none
_MUTEX, _CONDITION = 32, 48  # pthread objects: at most 64 bytes on the systems there are
_HALTED, _AT_ROW, _AT_UNIT = 64, 65, 66  # whether time was up, and the first unit that nobody took then
_COUNTS, _COUNTED = 72, 16  # units of the open phase's first ops
_COMES, _COMING = 88, 89  # which weights will be read next (the address where a program says them), and a copy of it
_TICKETS = 104  # one for each thread, 8 words apart
_SINCE, _SEEN, _COURTESIES, _TIMESPEC = 0, 1, 2, 3  # words of a thread's own block; see _make_way
_NUMBER = 5  # of the thread
_ASKED_OF, _ASKED = 6, 7  # which weights it asked for, and for how many bytes of them
_OWN_WORDS = 8
_AWAY_NS = 1_000_000  # a thread that was not heard of for so long has been off its core
_TURN_NS = 2_000_000  # how long it keeps its core then: half of what the scheduler's tick of 250 Hz gives it
_GIVEN_NS = 100_000  # a core that was given up for so long went to somebody
_MANY_COURTESIES = 16  # in vain, until a thread believes that it has its core to itself again
_SLEEP_AFTER = 4000  # pauses, around 100 us
_YIELD_AFTER = 2000
_NOTICE_EVERY = 256  # pauses, some microseconds

# The ticket of a range: which phase is open (bits 44..61, a row of the table), how many of its units are in the range
# (22..43), the next one to be taken (0..21). One word, so that whoever adds 1 to it learns all three of the same
# moment. The first range's is written last: it has a unit whenever there are any, so a phase cannot be over, nor the
# thread that called `run` be gone, before all its tickets are there.
_FIELD = (1 << 22) - 1
_UNITS_SHIFT, _ROW_SHIFT = 22, 44
_END = 1 << 62

_ENTRY = 40  # bytes of a table row
_AHEAD = 4  # rows whose arguments are asked for
_ASK_AT_ONCE, _ASK_AT_MOST = 1024, 64 << 10  # bytes of weights; with 256 KiB a token takes as long


@micro(int64, int64, int64, int64, int64)
def _run_unit(code: V, args: V, step: V, unit: V, scratch: V) -> None:
    b = Emission.builder
    function = ir.FunctionType(VOID, [I64] * 4).as_pointer()
    b.call(b.inttoptr(code.ir, function), [v.ir for v in (args, step, unit, scratch)])


@micro(int64, int64, int64, returns=int64)
def _units(code: V, args: V, step: V) -> V:
    b = Emission.builder
    function = ir.FunctionType(I64, [I64] * 2).as_pointer()
    return V(b.call(b.inttoptr(code.ir, function), [args.ir, step.ir]))


@micro()
def _yield_core() -> None:
    call("sched_yield", I32)


@micro(int64)
def _lock(mutex: V) -> None:
    call("pthread_mutex_lock", I32, mutex)


@micro(int64)
def _unlock(mutex: V) -> None:
    call("pthread_mutex_unlock", I32, mutex)


@micro(int64, int64)
def _wait(condition: V, mutex: V) -> None:
    call("pthread_cond_wait", I32, condition, mutex)


@micro(int64)
def _wake_all(condition: V) -> None:
    call("pthread_cond_broadcast", I32, condition)


@micro(int64, int64, returns=int64)
def _swap(address: V, value: V) -> V:
    """Stores an int64 and returns what was there."""
    b = Emission.builder
    return V(b.atomic_rmw("xchg", b.inttoptr(address.ir, I64.as_pointer()), value.ir, "seq_cst"))


@micro(int64)
def _read_clock(timespec: V) -> None:
    call("clock_gettime", I32, constant(time.CLOCK_MONOTONIC, I32), timespec)


@njit
def _now(own):
    """Nanoseconds of the monotonic clock."""
    _read_clock(own + _TIMESPEC * 8)
    return word(own, _TIMESPEC) * 1_000_000_000 + word(own, _TIMESPEC + 1)


@njit
def _is_up(pool, own):
    """Whether the time of this run is up."""
    deadline = word(pool, _DEADLINE)
    return deadline != 0 and _now(own) >= deadline


@njit
def _notice(own):
    """Nanoseconds of the clock. A thread that has not been here for long was off its core, and begins a turn."""
    now = _now(own)
    if now - word(own, _SEEN) > _AWAY_NS:
        atomic_store(own + _COURTESIES * 8, _MANY_COURTESIES)
        atomic_store(own + _SINCE * 8, now)
    atomic_store(own + _SEEN * 8, now)
    return now


@njit
def _make_way(own):
    """Give up the core where the turn is over. Called by a thread that holds no unit, before it takes one.

    Returns when to come back here, in nanoseconds of the clock; 0: whenever it likes, nobody wants the core."""
    given = _notice(own)
    courtesies = word(own, _COURTESIES)
    if courtesies > 0 and given - word(own, _SINCE) >= _TURN_NS:
        _yield_core()
        now = _now(own)
        courtesies = _MANY_COURTESIES if now - given > _GIVEN_NS else courtesies - 1
        atomic_store(own + _COURTESIES * 8, courtesies)
        atomic_store(own + _SINCE * 8, now)
        atomic_store(own + _SEEN * 8, now)
    return word(own, _SINCE) + _TURN_NS if courtesies > 0 else 0


@njit
def _halt(pool, index, unit):
    atomic_store(pool + _AT_ROW * 8, index)
    atomic_store(pool + _AT_UNIT * 8, unit)
    atomic_store(pool + _HALTED * 8, 1)


@njit
def _ticket(pool, part):
    return pool + (_TICKETS + part * 8) * 8


@njit
def _first_of(part, ranges, units):
    """The first of an op's units, or of a matrix's bytes, in a range; of few units, the first ranges have more."""
    return (units * part + ranges - 1) // ranges


@njit
def _share_out(row, after, ranges, step, shares, counts):
    """Counts the units of the ops at these rows, each op's once, and writes at `shares` how many are in each range, at
    `counts` how many the first ops have. Returns how many there are in all."""
    for part in range(ranges):
        store(shares + part * 8, 0)
    total = 0
    for op in range(row, after, _ENTRY):
        units = _units(word(op, 1), word(op, 2), step)
        if (op - row) // _ENTRY < _COUNTED:
            store(counts + (op - row) // _ENTRY * 8, units)
        total += units
        for part in range(ranges):
            own = _first_of(part + 1, ranges, units) - _first_of(part, ranges, units)
            store(shares + part * 8, word(shares, part) + own)
    return total


@njit
def _say_what_comes(pool, coming):
    """Copies what a row of the table says. Who reads the copy meanwhile asks for memory of which nothing comes, and of
    which nothing need be."""
    if coming == word(pool, _COMES):
        return
    for i in range(2 * COMING):
        store(pool + (_COMING + i) * 8, word(coming, i))
    atomic_store(pool + _COMES * 8, coming)


@njit
def _ask(pool, own):
    """Ask for some more of what this thread will read next: the beginning of its range of every matrix."""
    coming, ranges, number = atomic_load(pool + _COMES * 8), atomic_load(pool + _RANGES * 8), word(own, _NUMBER)
    if coming != word(own, _ASKED_OF):
        store(own + _ASKED_OF * 8, coming)
        store(own + _ASKED * 8, 0)
    at = word(own, _ASKED)
    if coming == 0 or at >= _ASK_AT_MOST or number >= ranges:
        return
    store(own + _ASKED * 8, at + _ASK_AT_ONCE)
    for i in range(COMING):
        address, size = word(pool, _COMING + 2 * i), word(pool, _COMING + 2 * i + 1)
        first = _first_of(number, ranges, size)
        share = _first_of(number + 1, ranges, size) - first
        if at < share:
            for line in range(0, _ASK_AT_ONCE, 64):
                prefetch(address + first + at + line)
            return
        at -= share
    store(own + _ASKED * 8, _ASK_AT_MOST)


@njit
def _look_ahead(row, end):
    """Ask for the arguments of the ops from a row on, and for the rows behind them: a step before, weights went through
    all caches."""
    for op in range(row, min(row + _AHEAD * _ENTRY, end), _ENTRY):
        prefetch(word(op, 2))
        prefetch(word(op, 2) + 64)
    prefetch(row + 2 * _AHEAD * _ENTRY)


@njit
def _open_phase(pool, scratch, index, done):
    """Publish the tickets of the first phase at or after table row `index` that has units, or the end.

    scratch: of the calling thread, which holds no unit. done: units of that phase that have been done already, where
    there is one range."""
    step, length, ranges = word(pool, _STEP), word(pool, _LENGTH), word(pool, _RANGES)
    while index < length:
        row = word(pool, _TABLE) + index * _ENTRY
        after = row + word(row, 3) * _ENTRY
        units = _share_out(row, after, ranges, step, scratch, pool + _COUNTS * 8)
        if units > 0:
            _look_ahead(after, word(pool, _TABLE) + length * _ENTRY)
            _say_what_comes(pool, word(row, 4))
            atomic_store(pool + _UNITS * 8, units)
            atomic_store(pool + _DONE * 8, done)
            for part in range(ranges - 1, -1, -1):
                share = word(scratch, part)
                atomic_store(_ticket(pool, part), (index << _ROW_SHIFT) | (share << _UNITS_SHIFT) | done)
            return
        index += word(row, 3)
    _end(pool, ranges)


@njit
def _end(pool, ranges):
    for part in range(ranges - 1, -1, -1):
        atomic_store(_ticket(pool, part), _END)


@njit
def _run_from_phase(pool, row, part, ranges, unit, scratch):
    """Unit number `unit` in a range of the phase that opens at `row`: its ops' units follow each other."""
    step, op = word(pool, _STEP), 0
    while True:
        units = word(pool, _COUNTS + op) if op < _COUNTED else _units(word(row, 1), word(row, 2), step)
        first = _first_of(part, ranges, units)
        share = _first_of(part + 1, ranges, units) - first
        if unit < share:
            _run_unit(word(row, 0), word(row, 2), step, first + unit, scratch)
            return
        unit -= share
        row += _ENTRY
        op += 1


@njit
def _waiting(pool, own):
    """The range of which a unit is to be had, the thread's own before others; -1: none. -2: the program has ended.

    A phase whose tickets are being written may have that of another range before the thread's own, which is waited for.
    """
    ranges = atomic_load(pool + _RANGES * 8)
    part = word(own, _NUMBER) % ranges
    row = -1
    for _ in range(ranges):
        ticket = atomic_load(_ticket(pool, part))
        if row < 0:
            if ticket & _END:
                return -2
            row = ticket >> _ROW_SHIFT
        if ticket >> _ROW_SHIFT == row and ticket & _FIELD < (ticket >> _UNITS_SHIFT) & _FIELD:
            return part
        part = part + 1 if part + 1 < ranges else 0
    return -1


@njit
def _replay(pool, scratch):
    """Take units until the program has ended, or the time is up."""
    own = scratch + SCRATCH_BYTES
    atomic_store(own + _SEEN * 8, _now(own))
    spins = 0
    while True:
        part = _waiting(pool, own)
        if part == -2:
            return
        if part == -1:
            _ask(pool, own)
            pause()
            spins += 1
            if spins > _YIELD_AFTER:
                _yield_core()
            if spins % _NOTICE_EVERY == 0 or spins > _YIELD_AFTER:
                _notice(own)
            continue
        turn_ends = _make_way(own)
        spins = 0
        at = _ticket(pool, part)
        ticket = atomic_add(at, 1)
        # from the first unit taken until `mine` is reported the phase stays open, and this run the one it is of
        share, index = (ticket >> _UNITS_SHIFT) & _FIELD, ticket >> _ROW_SHIFT
        ranges = atomic_load(pool + _RANGES * 8)
        mine = 0
        while ticket & _FIELD < share:
            row = word(pool, _TABLE) + index * _ENTRY
            _run_from_phase(pool, row, part, ranges, ticket & _FIELD, scratch)
            mine += 1
            if _is_up(pool, own):
                ticket = _swap(at, (index << _ROW_SHIFT) | (share << _UNITS_SHIFT) | share)
                if ticket & _FIELD < share:
                    _halt(pool, index, ticket & _FIELD)
                    mine += share - (ticket & _FIELD)  # nobody else will report them
                break
            if turn_ends != 0 and _now(own) >= turn_ends:
                break
            ticket = atomic_add(at, 1)
        if mine > 0:
            _report(pool, own, index, mine)


@njit
def _report(pool, own, index, mine):
    """So many units of the open phase were done here, or given up. Who reports the last ones opens the next phase, or
    ends the run. Nobody else looks at anything: the run may be over by then."""
    units = atomic_load(pool + _UNITS * 8)
    if atomic_add(pool + _DONE * 8, mine) + mine != units:
        return
    following = index + word(word(pool, _TABLE) + index * _ENTRY, 3)
    if atomic_load(pool + _HALTED * 8) == 0 and following < word(pool, _LENGTH) and _is_up(pool, own):
        _halt(pool, following, 0)
    if atomic_load(pool + _HALTED * 8) == 0:
        _open_phase(pool, own - SCRATCH_BYTES, following, 0)
    else:
        _end(pool, word(pool, _RANGES))


def _launch(pool, scratch):
    atomic_store(pool + _HALTED * 8, 0)
    _open_phase(pool, scratch, word(pool, _FIRST_ROW), word(pool, _FIRST_UNIT))
    _lock(pool + _MUTEX * 8)
    atomic_add(pool + _GENERATION * 8, 1)
    _wake_all(pool + _CONDITION * 8)
    _unlock(pool + _MUTEX * 8)
    _replay(pool, scratch)


def _work(pool, scratch):
    # counting from 0, not from what the generation is now: a launch before this thread first ran is not missed
    seen = 0
    while True:
        spins = 0
        while atomic_load(pool + _GENERATION * 8) == seen and spins < _SLEEP_AFTER:
            _ask(pool, scratch + SCRATCH_BYTES)
            pause()
            spins += 1
        if atomic_load(pool + _GENERATION * 8) == seen:
            _lock(pool + _MUTEX * 8)
            while atomic_load(pool + _GENERATION * 8) == seen:
                _wait(pool + _CONDITION * 8, pool + _MUTEX * 8)
            _unlock(pool + _MUTEX * 8)
        seen = atomic_load(pool + _GENERATION * 8)
        if word(pool, _STOP) != 0:
            return
        _replay(pool, scratch)


_ENTRY_SIGNATURE = "void(int64, int64)"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program goes on: the first unit that is not done, of the phase that opens at this row of the table."""

    row: int = 0
    unit: int = 0


class Threads:
    """`count` threads in all, the caller of `run` included. Used by one caller at a time."""

    def __init__(self, count: int, kernels: CompiledKernels) -> None:
        self.count = count
        self.step = np.zeros(STEP_WORDS, np.int64)  # the header every kernel sees
        self._memory = np.zeros((_TICKETS + count * 8) * 8 + ALIGNMENT, np.uint8)
        stride = _aligned(SCRATCH_BYTES + _OWN_WORDS * 8)
        self._scratch_memory = np.zeros(count * stride + ALIGNMENT, np.uint8)
        self._scratch = _aligned(self._scratch_memory.ctypes.data)
        for i in range(count):
            own = self._scratch - self._scratch_memory.ctypes.data + i * stride + SCRATCH_BYTES
            self._scratch_memory[own : own + _OWN_WORDS * 8].view(np.int64)[_NUMBER] = i
        pool = _aligned(self._memory.ctypes.data)
        start = pool - self._memory.ctypes.data
        self._pool = self._memory[start : start + (_TICKETS + count * 8) * 8].view(np.int64)
        self._pool[_RANGES] = 1
        self._address = pool
        c = ctypes.CDLL(None)
        c.pthread_mutex_init(ctypes.c_void_p(pool + _MUTEX * 8), None)
        c.pthread_cond_init(ctypes.c_void_p(pool + _CONDITION * 8), None)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)  # calls release the GIL
        self._launch = entry(kernels.address("threads.launch", _launch, _ENTRY_SIGNATURE))
        work = entry(kernels.address("threads.work", _work, _ENTRY_SIGNATURE))
        self._threads = [
            threading.Thread(target=work, args=(pool, self._scratch + i * stride), name=f"cpu-{i}", daemon=True)
            for i in range(1, count)
        ]
        # what sleeps in this memory keeps it: freed and used again, it would be woken by others and wake them
        memory = (self._memory, self._scratch_memory, self.step, kernels)
        for thread in self._threads:
            thread.memory = memory  # type: ignore[attr-defined]
            thread.start()
        # whoever forgets to close leaves no sleepers behind
        weakref.finalize(self, _stop, self._pool, self._launch, self._scratch, memory).atexit = False

    def run(self, program: Program) -> None:
        """Replay the program over what `step` says now; returns when every thread is done."""
        self._set(program, self.step, Place(), 0)
        self._launch(self._address, self._scratch)

    def run_for(self, program: Program, step: np.ndarray, place: Place, seconds: float) -> Place | None:
        """Replay the program over another header from a place on, for so long; math.inf: to its end.

        Returns where it has to go on, with the same header and inputs; None: it has ended.
        """
        deadline = 0 if seconds == math.inf else time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
        self._set(program, step, place, deadline)
        self._launch(self._address, self._scratch)
        if not self._pool[_HALTED]:
            return None
        return Place(int(self._pool[_AT_ROW]), int(self._pool[_AT_UNIT]))

    def _set(self, program: Program, step: np.ndarray, place: Place, deadline: int) -> None:
        pool = self._pool
        pool[_TABLE], pool[_LENGTH], pool[_STEP] = program.address, len(program.table), step.ctypes.data
        pool[_FIRST_ROW], pool[_FIRST_UNIT], pool[_DEADLINE] = place.row, place.unit, deadline
        pool[_RANGES] = 1 if deadline or place.unit else self.count
        step[STEP_THREADS] = self.count

    def close(self) -> None:
        """End the threads. Idempotent."""
        _stop(self._pool, self._launch, self._scratch)
        for thread in self._threads:
            thread.join()


def _stop(pool: np.ndarray, launch: Callable[[int, int], None], scratch: int, *_kept: object) -> None:
    """Wake all threads to a program of nothing, after which they end."""
    if not pool[_STOP]:
        pool[_STOP], pool[_LENGTH] = 1, 0
        launch(pool.ctypes.data, scratch)


def _aligned(address: int) -> int:
    return -(-address // ALIGNMENT) * ALIGNMENT
