"""Memory in front of the blocks in use is there before it is written, and nothing in it changes."""

from __future__ import annotations

import ctypes
import mmap
import time
from dataclasses import replace

import numpy as np
import pytest

from imp.cpu.ahead import AHEAD_BYTES, PAGE, Ahead
from imp.cpu.cache import CompiledKernels
from imp.cpu.kept import BLOCK
from imp.cpu.simd import detect
from imp.model.inputs import StepInputs, packed, prompt_inputs

LAYERS, BLOCK_BYTES, BLOCKS = 3, 1 << 20, 200  # of each layer
AHEAD = AHEAD_BYTES // (LAYERS * BLOCK_BYTES)  # blocks


class Cache:
    """A KV cache of which nothing has been touched, in pages of the smallest size."""

    def __init__(self, kernels) -> None:
        self.map = mmap.mmap(-1, LAYERS * BLOCKS * BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.memory = np.frombuffer(self.map, np.uint8)
        planes = [(self.memory.ctypes.data + i * BLOCKS * BLOCK_BYTES, BLOCK_BYTES) for i in range(LAYERS)]
        self.ahead = Ahead(self.memory, planes, BLOCKS, kernels)

    def present(self) -> np.ndarray:
        """bool [layers, blocks]: whether all pages of a block are there."""
        pages = np.zeros(len(self.memory) // PAGE, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address, size = ctypes.c_void_p(self.memory.ctypes.data), ctypes.c_size_t(len(self.memory))
        assert libc.mincore(address, size, ctypes.c_void_p(pages.ctypes.data)) == 0
        return (pages & 1).reshape(LAYERS, BLOCKS, -1).all(axis=2)

    def until(self, ready: int) -> None:
        """The thread has got so far."""
        deadline = time.monotonic() + 60
        while self.ahead.ready < ready:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture(scope="module")
def kernels(kernel_folder):
    return CompiledKernels(kernel_folder, detect())


@pytest.fixture
def kv(kernels):
    made = Cache(kernels)
    yield made
    made.ahead.close()


def writes(block: int) -> StepInputs:
    """A step with one position, in this block."""
    return replace(prompt_inputs([1], 0, 1, BLOCK), slots=packed((block * BLOCK + 3,)))


def test_nothing_is_touched_before_the_first_step(kv):
    assert not kv.present().any() and kv.ahead.ready == 0


def test_what_comes_next_is_there_and_what_is_far_is_not(kv):
    kv.ahead.used(writes(0))
    kv.until(1 + AHEAD)
    assert kv.present().all(axis=0).tolist() == [False, *[True] * AHEAD, *[False] * (BLOCKS - AHEAD - 1)]
    kv.ahead.used(writes(AHEAD // 2))
    kv.until(AHEAD // 2 + 1 + AHEAD)
    assert kv.present()[:, AHEAD : AHEAD // 2 + 1 + AHEAD].all()


def test_after_a_jump_what_lies_between_stays_untouched(kv):
    kv.ahead.reached(101)  # blocks that came from elsewhere
    kv.until(101 + AHEAD)
    assert not kv.present()[:, :101].any() and kv.present()[:, 101 : 101 + AHEAD].all()


def test_contents_stay_and_the_end_is_the_end(kv):
    rng = np.random.default_rng(1)
    kv.memory[:] = rng.integers(0, 256, len(kv.memory), np.uint8)
    before = kv.memory.copy()
    kv.ahead.used(writes(BLOCKS - AHEAD // 2))
    kv.until(BLOCKS)
    assert kv.ahead.ready == BLOCKS and np.array_equal(kv.memory, before)


def test_it_can_be_closed_twice_and_while_it_is_at_work(kernels):
    made = Cache(kernels)
    made.ahead.used(writes(0))
    made.ahead.close()
    made.ahead.close()
