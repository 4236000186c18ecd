"""Buffers share memory only when they are never alive together; phases, arguments and damaged or shared caches."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numba import types

from imp.cpu import threads as threads_module
from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.program import COMING, STEP_TOKENS, Op, build, count, kernel
from imp.cpu.simd import atomic_add, atomic_load, detect, load_f32, pause, real, store, store_f32, word
from imp.cpu.threads import Place, Threads
from imp.model.buffers import Buffer


@count
def one_per_token(args, step):
    return word(step, STEP_TOKENS)


@kernel(one_per_token)
def add(args, step, unit, scratch):
    """args: 0 words, 1 what to add"""
    at = word(args, 0) + unit * 8
    store(at, word(at, 0) + word(args, 1))


@kernel(one_per_token)
def scale(args, step, unit, scratch):
    """args: 0 floats, 1 factor; goes through the scratch"""
    at = word(args, 0) + unit * 4
    store_f32(scratch, load_f32(at) * real(args, 1))
    store_f32(at, load_f32(scratch))


@pytest.fixture(scope="module")
def kernels(kernel_folder: Path) -> CompiledKernels:
    return CompiledKernels(kernel_folder, detect())


@pytest.fixture(scope="module", params=[1, 2, 7], ids="{} threads".format)
def threads(request: pytest.FixtureRequest, kernels: CompiledKernels):
    """Seven are more than most test machines have cores."""
    threads = Threads(request.param, kernels)
    yield threads
    threads.close()


@pytest.mark.parametrize("tokens", [0, 1, 2, 100, 5000])
def test_every_unit_of_every_op_runs_once_and_in_order(threads, kernels, tokens):
    words = np.zeros(5000, np.int64)
    ops = [Op(add, (words, 1 << (i % 40))) for i in range(200)]
    program = build(ops, compile_all(kernels, [add]))
    threads.step[STEP_TOKENS] = tokens
    for _ in range(3):
        threads.run(program)
    assert (words[:tokens] == 3 * 5 * ((1 << 40) - 1)).all() and not words[tokens:].any()


def test_a_later_phase_sees_all_of_an_earlier_one(threads, kernels):
    floats = np.full(3000, 3.0, np.float32)
    program = build([Op(scale, (floats, 2.0)), Op(scale, (floats, 0.5))] * 50, compile_all(kernels, [scale]))
    threads.step[STEP_TOKENS] = 3000
    threads.run(program)
    assert (floats == 3.0).all()


def test_joined_ops_share_a_phase(threads, kernels):
    a, b = np.zeros(300, np.int64), np.ones(300, np.float32)
    ops = [Op(add, (a, 5)), Op(scale, (b, 4.0), joins=True), Op(add, (a, 7))]
    program = build(ops, compile_all(kernels, [add, scale]))
    assert program.table[:, 3].tolist() == [2, 0, 1]
    threads.step[STEP_TOKENS] = 300
    threads.run(program)
    assert (a == 12).all() and (b == 4).all()


@dataclass
class Somewhere:
    """A matrix that nobody reads."""

    address: int
    size: int


def test_what_comes_next_of_weights_is_said_before(threads, kernels):
    """Vectors up to the next matrices, from whatever phase on; behind the last phase follows the first. Wherever such
    a matrix is said to be, a step is the same."""
    words, vector = np.zeros(64, np.int64), np.ones(16, np.float32)
    first, second, third = (Somewhere(address, 1 << 20) for address in (0, 1 << 40, words.ctypes.data))
    weights = [None, first, vector, None, second, third]
    joins = [False, False, False, False, False, True]
    ops = [Op(add, (words, 1), joins=j, weight=w) for w, j in zip(weights, joins, strict=True)]
    program = build(ops, compile_all(kernels, [add]))
    one, two, three = ((each.address, each.size) for each in (first, second, third))
    small = (vector.ctypes.data, vector.nbytes)
    expected = [[one], [small, two, three], [two, three], [two, three], [one]]
    for row, wanted in zip((0, 1, 2, 3, 4), expected, strict=True):
        said = np.ctypeslib.as_array((ctypes.c_int64 * (2 * COMING)).from_address(int(program.table[row, 4])))
        assert [tuple(pair) for pair in said.reshape(-1, 2).tolist() if any(pair)] == wanted
    threads.step[STEP_TOKENS] = 64
    for _ in range(50):
        threads.run(program)
    assert (words == 50 * len(ops)).all()


@kernel(one_per_token)
def meet(args, step, unit, scratch):
    """args: 0 who ran each unit, 1 how many came; nobody leaves before the second, but for some seconds' waiting"""
    store(word(args, 0) + unit * 8, scratch)
    atomic_add(word(args, 1), 1)
    for _ in range(1 << 27):
        if atomic_load(word(args, 1)) == 2:
            break
        pause()


def test_a_thread_has_the_same_share_of_every_op(kernels):
    """Two units of each op, which wait for each other: whoever has an op's first has those of the others, too."""
    threads = Threads(2, kernels)
    who, came = np.zeros((12, 2), np.int64), np.zeros(12, np.int64)
    ops = [Op(meet, (who[i], came[i : i + 1]), joins=i % 3 > 0) for i in range(12)]
    program = build(ops, compile_all(kernels, [meet]))
    threads.step[STEP_TOKENS] = 2
    threads.run(program)
    threads.close()
    assert (came == 2).all()
    assert (who == who[0]).all() and who[0, 0] != who[0, 1]


@kernel(one_per_token)
def chain(args, step, unit, scratch):
    """args: 0 words, 1 factor: x becomes x * factor + 1, so that order and number of the ops show"""
    at = word(args, 0) + unit * 8
    store(at, word(at, 0) * word(args, 1) + 1)


@pytest.mark.parametrize("seconds", [0.0, 20e-6, 200e-6, math.inf])
def test_a_program_that_is_run_for_a_while_goes_on_where_it_was(threads, kernels, seconds):
    """Every unit once and in order, however often it is interrupted, and whatever runs in between."""
    words, other = np.zeros(3000, np.int64), np.zeros(50, np.int64)
    factors = [2 + i % 3 for i in range(30)]
    addresses = compile_all(kernels, [chain, add])
    ops = [Op(chain, (words, factor)) for factor in factors]
    pair = np.zeros((2, 3000), np.int64)
    joined = [Op(add, (pair[0], 1)), Op(add, (pair[1], 5), joins=True)]  # one phase of twice as many units
    program, between = build([*ops[:10], *joined, *ops[10:]], addresses), build([Op(add, (other, 1))] * 3, addresses)
    header = threads.step.copy()
    header[STEP_TOKENS] = len(words) if seconds else 40
    place, runs = Place(), 0
    while place is not None:
        place = threads.run_for(program, header, place, seconds)
        runs += 1
        threads.step[STEP_TOKENS] = 50
        threads.run(between)
        assert (other == 3 * runs).all()
    expected = 0
    for factor in factors:
        expected = expected * factor + 1
    count = int(header[STEP_TOKENS])
    assert (words[:count] == np.int64(expected % (1 << 64) - (1 << 64) * (expected >> 63 & 1))).all()
    assert not words[count:].any()
    assert (pair[:, :count].T == (1, 5)).all() and not pair[:, count:].any()
    # with no time at all each run does a unit at least, and each thread one at most
    assert runs == 1 if seconds == math.inf else seconds or 30 * 40 / (threads.count + 1) <= runs <= 32 * 40


def test_a_program_that_was_interrupted_can_be_given_up(threads, kernels):
    words = np.zeros(100, np.int64)
    program = build([Op(add, (words, 1))] * 50, compile_all(kernels, [add]))
    header = threads.step.copy()
    header[STEP_TOKENS] = threads.step[STEP_TOKENS] = 100
    assert threads.run_for(program, header, Place(), 0.0) is not None
    done = words.copy()
    threads.run(program)
    assert (words == done + 50).all()


def test_sleeping_threads_use_no_cpu(kernels):
    threads = Threads(4, kernels)
    words = np.zeros(8, np.int64)
    program = build([Op(add, (words, 1))], compile_all(kernels, [add]))
    threads.step[STEP_TOKENS] = 8
    threads.run(program)
    time.sleep(0.05)  # past the spin
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03
    threads.run(program)
    assert (words == 2).all()
    threads.close()


def test_run_leaves_other_python_threads_running(kernels):
    """The GIL is free while a step runs."""
    threads, turns, stop = Threads(2, kernels), [0], threading.Event()
    words = np.zeros(1 << 20, np.int64)
    program = build([Op(add, (words, 1))] * 10, compile_all(kernels, [add]))
    threads.step[STEP_TOKENS] = len(words)

    def spin() -> None:
        while not stop.is_set():
            turns[0] += 1

    other = threading.Thread(target=spin)
    other.start()
    before = turns[0]
    threads.run(program)
    assert turns[0] > before
    stop.set()
    other.join()
    threads.close()


def test_many_threads_come_and_go(kernels):
    """A launch before a thread has first run is not missed, and closing twice is harmless."""
    words = np.zeros(64, np.int64)
    program = build([Op(add, (words, 1))] * 10, compile_all(kernels, [add]))
    for _ in range(30):
        threads = Threads(4, kernels)
        threads.step[STEP_TOKENS] = 64
        threads.run(program)
        threads.close()
        threads.close()
    assert (words == 300).all()


def random_ops(rng: random.Random, buffers: list[Buffer]) -> list[Op]:
    ops = [Op(add, (), writes=[buffer]) for buffer in buffers]
    for _ in range(40):
        touched = rng.sample(buffers, 3)
        ops.append(Op(add, (), reads=touched[:2], writes=touched[2:], joins=rng.random() < 0.3))
    rng.shuffle(ops)
    ops[0].joins = False
    return ops


@pytest.mark.parametrize("seed", range(30))
def test_buffers_alive_together_never_overlap(seed):
    rng = random.Random(seed)
    buffers = [Buffer(rng.choice([64, 100, 4096, 7]), str(i)) for i in range(12)]
    ops = random_ops(rng, buffers)
    pinned = buffers[:2]
    build(ops, {add: 1, one_per_token: 1}, pinned)
    phases = np.cumsum([not op.joins for op in ops])
    life = {b: [p for op, p in zip(ops, phases, strict=True) if b in op.reads or b in op.writes] for b in buffers}
    for i, a in enumerate(buffers):
        for b in buffers[i + 1 :]:
            together = {a, b} & set(pinned) or (min(life[a]) <= max(life[b]) and min(life[b]) <= max(life[a]))
            if together:
                assert a.address + a.size <= b.address or b.address + b.size <= a.address


def test_buffers_that_do_not_meet_share_memory():
    chain = [Buffer(1 << 20, str(i)) for i in range(20)]
    ops = [Op(add, (), reads=[a], writes=[b]) for a, b in itertools.pairwise(chain)]
    assert build(ops, {add: 1, one_per_token: 1}).buffer_bytes <= 3 << 20


SECOND_PROCESS = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.simd import detect
from imp.cpu.pointwise import norm, quantise
from imp.cpu.threads import Threads
kernels = CompiledKernels(Path({folder!r}), detect())
compile_all(kernels, [norm, quantise])
Threads(2, kernels).close()
print(kernels.compiled)
"""


def start_process(folder: Path) -> subprocess.Popen:
    root = str(Path(__file__).resolve().parents[2])
    code = SECOND_PROCESS.format(root=root, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def test_a_second_process_compiles_nothing_and_two_at_once_are_harmless(tmp_path):
    first = [start_process(tmp_path) for _ in range(2)]
    assert [p.communicate(timeout=240)[0].strip() != "" for p in first] == [True, True]
    assert [p.returncode for p in first] == [0, 0]
    second = start_process(tmp_path)
    assert second.communicate(timeout=120)[0].strip() == "0"
    (files,) = (tmp_path / "kernels").iterdir()
    assert not [path.name for path in files.iterdir() if path.name.startswith("tmp")]
    damaged = next(iter(files.iterdir()))
    damaged.write_bytes(damaged.read_bytes()[:100])
    third = start_process(tmp_path)
    assert third.communicate(timeout=120)[0].strip() == "1"


def test_threads_that_are_forgotten_end_and_keep_their_memory_till_then(kernels):
    """Their memory given to somebody else while they sleep in it, the next pool there would wake them, and hang."""
    forgotten = Threads(3, kernels)
    sleepers, memory = forgotten._threads, weakref.ref(forgotten._memory)
    del forgotten
    for sleeper in sleepers:
        sleeper.join(10)
        assert not sleeper.is_alive()
    del sleepers, sleeper
    gc.collect()
    assert memory() is None


@kernel(one_per_token)
def add_slowly(args, step, unit, scratch):
    """args: 0 words, 1 what to add; long enough to be taken for a thread that was off its core"""
    began = threads_module._now(scratch)
    while threads_module._now(scratch) - began < 1_500_000:
        pass
    at = word(args, 0) + unit * 8
    store(at, word(at, 0) + word(args, 1))


def test_who_gives_up_its_core_between_units_loses_none(threads, kernels):
    words = np.zeros(7, np.int64)
    program = build([Op(add_slowly, (words, 1 << i)) for i in range(4)], compile_all(kernels, [add_slowly]))
    threads.step[STEP_TOKENS] = len(words)
    threads.run(program)
    assert (words == 15).all()


def make_way(own):
    return threads_module._make_way(own)


def test_a_thread_that_was_off_its_core_gives_it_up_after_a_turn(kernels):
    signature = types.int64(types.int64)
    called = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(kernels.address("test.make_way", make_way, signature))
    own = np.zeros(8, np.int64)
    since, seen, courtesies = 0, 1, 2

    def after(milliseconds: int) -> int:
        own[seen] = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 1_000_000 * milliseconds
        return called(own.ctypes.data)

    while own[seen] == 0 or own[courtesies]:  # until the test itself was not interrupted
        own[courtesies] = 0
        assert after(0) == 0 or own[courtesies]  # it has its core to itself
    turn_ends = after(500)
    assert turn_ends == own[since] + 2_000_000 and own[courtesies] == 16
    own[since] -= 1_000_000_000  # its turn is over
    before = own[since]
    assert after(0) == own[since] + 2_000_000 and own[since] > before
    assert own[courtesies] in (15, 16)  # nobody wanted the core, or somebody did
    for _ in range(1000):
        own[since] -= 1_000_000_000
        after(0)
        if own[courtesies] == 0:
            break
    assert own[courtesies] == 0 and after(0) == 0
