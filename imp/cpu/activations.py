"""How activations lie in memory that meet integer weights.

They are int8 with a scale for every 16 columns (half a block: what costs accuracy is their outliers), TILE tokens side
by side. Block b of these tokens is one record: [TILE][32] int8, [2][TILE] float32 scales, [TILE] float32 sums of the 32
values as quantised (what a weight's minimum is multiplied by), [2][TILE] int32 sums of the integers, negative (what an
offset of the weights' integers is multiplied by). So all addresses in it are a base plus constants.
"""

from __future__ import annotations

from ..jit import njit
from .pack import BLOCK
from .program import STEP_THREADS
from .simd import word

TILE = 16
MANY = 32  # tokens for each thread; fewer are not worth unpacking and fetching all weights for
TILE_SCALES = TILE * BLOCK  # offset of the scales in a record
TILE_SUMS = TILE_SCALES + 2 * TILE * 4
TILE_COUNTS = TILE_SUMS + TILE * 4
TILE_BLOCK_BYTES = TILE_COUNTS + 2 * TILE * 4


def quantised_bytes(tokens: int, columns: int) -> int:
    """Of all records."""
    return -(-tokens // TILE) * (columns // BLOCK) * TILE_BLOCK_BYTES


@njit
def are_many(tokens, step):
    """Whether every thread has tokens of its own. If not, threads share the rows of weights, that is columns of y."""
    return tokens >= word(step, STEP_THREADS) * MANY
