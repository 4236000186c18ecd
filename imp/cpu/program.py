"""The op program: what a kernel is, and how recorded ops become the table the threads replay.

Kernel convention. A kernel is machine code `void(args, step, unit, scratch)`, all int64:
  args     address of the op's argument block: one int64 per argument in the order the op was recorded with (read them
           with `word(args, i)`; Python floats are stored as float64, read with `real(args, i)`; a Buffer or a NumPy
           array is its address);
  step     address of the step header, int64 words numbered by the STEP constants below; pointers are to int32 arrays;
  unit     which share of the op this call does, 0 <= unit < count; calls of one op run at the same time on any thread,
           so they may not depend on each other;
  scratch  SCRATCH_BYTES of memory of the calling thread, 64-byte aligned, contents undefined.
Its count is machine code `int64(args, step)`: how many units the op has in this step (0: the op is skipped).

    @count
    def per_token(args, step): return word(step, STEP_TOKENS)

    @kernel(per_token)
    def double(args, step, unit, scratch): ...

The bodies are compiled by Numba in nopython mode and may use everything of simd.py. Addresses are data of the table and
never constants of the code: compiled kernels are shared by all models and cached on disk. Kernels made by a factory
pass their own `name`, because a kernel's name must be unique. All kernels run without the GIL and cannot raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..jit import njit
from ..model.buffers import ALIGNMENT, Buffer, place
from ..model.inputs import StepInputs

# Words of the step header: StepInputs, and what attention_plan.py derives from it each step.
STEP_TOKENS = 0  # T, positions in the step
STEP_ROWS = 1  # B, sequences
STEP_WANTED = 2  # R, positions that want logits
STEP_TOKEN_IDS = 3  # int32* [T]
STEP_POSITIONS = 4  # int32* [T]
STEP_SLOTS = 5  # int32* [T]
STEP_ROW_STARTS = 6  # int32* [B + 1]
STEP_CONTEXTS = 7  # int32* [B]
STEP_TABLE_STARTS = 8  # int32* [B + 1]
STEP_TABLE = 9  # int32* block table
STEP_WANTED_IDS = 10  # int32* [R]
STEP_DECODE_COUNT, STEP_MERGE_COUNT = 12, 17  # attention_plan.py's: items of attention, and queries that are merged
STEP_POOLED = 18  # P, positions whose hidden states are wanted
STEP_POOLED_IDS = 19  # int32* [P]
STEP_ADAPTED = 20  # S, spans of positions with one adapter
STEP_ADAPTED_SPANS = 21  # int32* [S][3]
STEP_ADAPTERS, STEP_ADAPTER_BYTES = 22, 23  # adapters.py's table, and bytes of a slot in it
STEP_OUTPUTS = 24  # int32* [B]; 0: not said
STEP_SPARSE_COUNT, STEP_SCORE_COUNT = 25, 26  # attention_plan.py's: positions that choose, and chunks that are scored
STEP_THREADS = 27  # threads.py's: how many there are
STEP_PROMPTS = 28  # of the positions, the first that is multiplied as prompts are; T: none
STEP_WORDS = 32

SCRATCH_BYTES = 2 << 20
COMING = 4  # weights that are said ahead
LANES = 8  # rows of floats are whole vectors

Body = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    name: str
    body: Body  # (args, step) -> units


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    name: str
    body: Body  # (args, step, unit, scratch)
    count: Count


def _name(body: Body) -> str:
    return f"{body.__module__.rpartition('.')[2]}.{body.__qualname__}"


def count(body: Body) -> Count:
    return Count(_name(body), body)


def kernel(units: Count, name: str | None = None) -> Callable[[Body], Kernel]:
    return lambda body: Kernel(name or _name(body), body, units)


@njit
def apart(stride):
    """What keeps rows of so many bytes apart: a multiple of 1 KiB would make them meet in the cache."""
    return stride if stride % 1024 else stride + 64


def row_bytes(columns: int) -> int:
    """From one row of floats to the next."""
    return apart.py_func(-(-columns // LANES) * LANES * 4)


def fill_header(step: np.ndarray, inputs: StepInputs, apart: bool = False) -> np.ndarray:
    """The words of a step header, int64 [STEP_WORDS], that say what is computed. What is returned, the arrays of the
    inputs one after the other, has to stay: asking for one address is quicker than asking for ten.

    apart: whether prompts are multiplied in another way than outputs."""
    tokens, rows, wanted = len(inputs.tokens), len(inputs.contexts), len(inputs.wanted)
    step[STEP_TOKENS], step[STEP_ROWS], step[STEP_WANTED] = tokens, rows, wanted
    step[STEP_POOLED], step[STEP_ADAPTED] = len(inputs.pooled), len(inputs.adapted)
    step[STEP_PROMPTS] = inputs.prompts_from if apart else tokens
    arrays = (
        (STEP_TOKEN_IDS, inputs.tokens),
        (STEP_POSITIONS, inputs.positions),
        (STEP_SLOTS, inputs.slots),
        (STEP_ROW_STARTS, inputs.row_starts),
        (STEP_CONTEXTS, inputs.contexts),
        (STEP_TABLE_STARTS, inputs.table_starts),
        (STEP_TABLE, inputs.table),
        (STEP_WANTED_IDS, inputs.wanted),
        (STEP_POOLED_IDS, inputs.pooled),
        (STEP_ADAPTED_SPANS, inputs.adapted.ravel()),
        (STEP_OUTPUTS, inputs.outputs),
    )
    joined = np.concatenate([array for _, array in arrays])
    at = joined.ctypes.data
    for number, array in arrays:
        step[number] = at
        at += len(array) * 4
    if not len(inputs.outputs):
        step[STEP_OUTPUTS] = 0
    return joined


class Placed(Protocol):
    """Anything with an address by the time the program is built: a Buffer, a packed weight."""

    @property
    def address(self) -> int: ...


class Matrix(Placed, Protocol):
    """A packed weight."""

    @property
    def size(self) -> int: ...


Argument = int | float | Placed | np.ndarray


@dataclass(slots=True, eq=False)
class Op:
    """One launch. `reads` and `writes` are the buffers it touches, for their lifetimes. An op that `joins` runs beside
    the op before it, without a barrier between them. `weight`: what it reads in every step, and nobody else."""

    kernel: Kernel
    args: Sequence[Argument]
    reads: Sequence[Buffer] = ()
    writes: Sequence[Buffer] = ()
    joins: bool = False
    weight: Matrix | np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """`table` [ops, 5] int64: kernel, count and args addresses, how many ops are in the phase this op opens, and the
    address of what comes next of weights, up to a phase with matrices, int64 [COMING][2]: addresses and bytes.
    """

    table: np.ndarray
    keep: tuple[Any, ...]  # everything the table points into
    buffer_bytes: int
    address: int = field(init=False)  # of the table

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.table.ctypes.data)


def build(ops: Sequence[Op], addresses: dict[Kernel | Count, int], pinned: Sequence[Buffer] = ()) -> Program:
    """Give every buffer its memory and every op its row. `pinned` buffers are never shared and outlive the run."""
    size = _place(ops, pinned)
    arena = np.zeros(size + 2 * ALIGNMENT, np.uint8)  # vector loads may look past the last float
    base = -(-arena.ctypes.data // ALIGNMENT) * ALIGNMENT
    for buffer in _buffers(ops, pinned):
        buffer.address += base
    table = np.zeros((len(ops), 5), np.int64)
    blocks = _blocks(len(ops), max([1, *(len(op.args) for op in ops)]))
    keep: list[Any] = [arena, blocks]
    opener = 0
    for i, op in enumerate(ops):
        opener = opener if op.joins else i
        _fill_block(blocks[i], op.args)
        keep.append(op)
        table[i] = addresses[op.kernel], addresses[op.kernel.count], blocks[i].ctypes.data, 0, 0
        table[opener, 3] += 1
    keep.append(_foretell(ops, table))
    return Program(table, tuple(keep), size)


def _foretell(ops: Sequence[Op], table: np.ndarray) -> np.ndarray:
    """Fill the table's last column, and return what it points to. Behind the last phase the first one follows."""
    openers = np.flatnonzero(table[:, 3]).tolist()
    said = np.zeros((len(table), COMING, 2), np.int64)
    coming: list[tuple[int, int]] = []
    places: dict[tuple[tuple[int, int], ...], int] = {}  # the same is in one place
    for opener in [*openers[::-1], *openers[::-1]]:  # the second time around it is known what follows the last one
        said[opener, : len(coming)] = np.array(coming, np.int64).reshape(-1, 2)
        table[opener, 4] = places.setdefault(tuple(coming), said[opener].ctypes.data)
        weights = [op.weight for op in ops[opener : opener + int(table[opener, 3])] if op.weight is not None]
        own = [(w.ctypes.data, w.nbytes) if isinstance(w, np.ndarray) else (w.address, w.size) for w in weights]
        is_small = all(isinstance(weight, np.ndarray) for weight in weights)
        coming = (own + coming if is_small else own)[:COMING]
    return said


def _blocks(count: int, words: int) -> np.ndarray:
    """int64 [count, words or more]: each from a cache line on, since they are in no cache when a step comes by."""
    words = -(-words // 8) * 8
    memory = np.zeros((count + 1) * words, np.int64)
    start = -memory.ctypes.data % 64 // 8
    return memory[start : start + count * words].reshape(count, words)


def _fill_block(block: np.ndarray, args: Sequence[Argument]) -> None:
    for i, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            assert arg.flags.c_contiguous, "an argument's array must be contiguous"
            block[i] = arg.ctypes.data
        elif isinstance(arg, float):
            block.view(np.float64)[i] = arg
        else:
            block[i] = arg if isinstance(arg, int) else arg.address


def _buffers(ops: Sequence[Op], pinned: Sequence[Buffer]) -> list[Buffer]:
    found = dict.fromkeys(pinned)
    for op in ops:
        found.update(dict.fromkeys((*op.writes, *op.reads)))
    return list(found)


def _place(ops: Sequence[Op], pinned: Sequence[Buffer]) -> int:
    """Offsets as addresses; the bytes they need. Lifetimes are counted in phases, because the ops of one phase run
    together."""
    phase, life = -1, {buffer: [0, math.inf] for buffer in pinned}
    for op in ops:
        phase += not op.joins
        for buffer in (*op.writes, *op.reads):
            life.setdefault(buffer, [phase, phase])[1] = max(life.get(buffer, [0, 0])[1], phase)
    return place({buffer: (first, last) for buffer, (first, last) in life.items()})
