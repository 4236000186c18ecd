"""How activations lie in memory that meet integer weights.

They are int8 with a scale for every 16 columns (half a block: what costs accuracy is their outliers), TILE tokens side
by side. Block b of these tokens is one record: [TILE][32] int8, [2][TILE] float32 scales, [TILE] float32 sums of the 32
values as quantised (what a weight's minimum is multiplied by), [2][TILE] int32 sums of the integers times -COUNTED
(with which products begin where weights have an offset). So all addresses in it are a base plus constants.

What prompts multiply in tiles of bfloat16 (pair_products.py) lies in plain rows: 2^PAIR_BITS times the value, and of
each 32 columns those that are two apart are a pair, in the order in which weights are unpacked.
"""

from __future__ import annotations

from ..jit import njit
from .pack import BLOCK
from .program import STEP_THREADS, apart
from .simd import V, bits, i32x16, int64, load_f32x16, micro, runs, store, upper_halves, word

TILE = 16
COUNTED = 8  # offsets are multiples of it, and most are this
MANY = 32  # tokens for each thread; fewer are not worth unpacking and fetching all weights for
TILE_SCALES = TILE * BLOCK  # offset of the scales in a record
TILE_SUMS = TILE_SCALES + 2 * TILE * 4
TILE_COUNTS = TILE_SUMS + TILE * 4
TILE_BLOCK_BYTES = TILE_COUNTS + 2 * TILE * 4
PAIR_BITS = 104


def quantised_bytes(tokens: int, columns: int) -> int:
    """Of all records."""
    return -(-tokens // TILE) * (columns // BLOCK) * TILE_BLOCK_BYTES


@njit
def are_many(tokens, step):
    """Whether every thread has tokens of its own. If not, threads share the rows of weights, that is columns of y."""
    return tokens >= word(step, STEP_THREADS) * MANY


@njit
def pairs_stride(columns):
    """Bytes from one row of pairs to the next."""
    return apart(columns * 2)


def pairs_bytes(tokens: int, columns: int) -> int:
    """Of all rows, and of those behind that tiles read."""
    return (tokens + 2 * TILE) * apart.py_func(columns * 2)


_PAIR_ORDER = [
    16 * half + 4 * v + odd + second for v in range(4) for odd in (0, 1) for half in (0, 1) for second in (0, 2)
]


@micro(int64, int64)
def pair_block(x: V, out: V) -> None:
    """32 floats as bfloat16, in the order of pairs."""
    if not runs("amx"):
        return
    left, right = (bits(load_f32x16(x + at) * 2.0**PAIR_BITS, i32x16.ir) + 0x8000 for at in (0, 64))
    store(out, upper_halves(left, right, _PAIR_ORDER))


@njit
def pair_row(x, first, stop, out):
    """Columns first..stop, whole blocks, of a row of floats into their places in a row of pairs."""
    for column in range(first, stop, BLOCK):
        pair_block(x + column * 4, out + column * 2)
