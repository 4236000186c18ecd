"""act(gate) * up of prompts, without the sums of gate and up ever leaving a core's cache: they are four times what
comes of them, and of a few hundred tokens more than the second level holds.

A unit has some blocks of 32 columns for some tokens. A group of gate and the same one of up meet the tokens as two
groups of one weight do (pair_products.py); their sums are gated at once, and the columns of two such groups become a
block of pairs. Every number is computed as it is where products and gating are ops of their own, to the bit.
"""

from __future__ import annotations

from ..jit import njit
from .activations import pair_block, pairs_stride
from .pack import BLOCK, WIDE_LAYOUTS, Layout
from .pair_products import (
    BLOCKS_AT_ONCE,
    MOST_TOKENS,
    RIGHT_BYTES,
    STAGED,
    blocks_at_once,
    meet,
    prompts_of,
    units_of_prompts,
    unpack_pairs,
)
from .pointwise import GATED
from .program import Kernel, count, kernel
from .simd import word
from .tiles import ROWS, release_tiles, shape_deep_tiles

_ROW = 2 * ROWS * 4  # bytes: a token's sums of a group of gate and one of up; or what comes of them, of two groups
_SUMS = STAGED + 2 * BLOCKS_AT_ONCE * RIGHT_BYTES  # in scratch, behind what is unpacked
_GATED = _SUMS + MOST_TOKENS * _ROW

# Argument block
GATE, UP, INPUT_BLOCKS, GROUP_BYTES, SHARES, X, COLUMNS, OUT, OUT_COLUMNS = range(9)


@count
def _units(args, step):
    return units_of_prompts(word(args, COLUMNS), word(args, SHARES), step)


def _kernel(layout: Layout, activation: str) -> Kernel:
    unpack, record, gated = unpack_pairs(layout), layout.record.itemsize, GATED[activation]

    @njit
    def sums_of(gate, up, blocks, x, x_stride, start, stop, scratch):
        """Rows of _ROW bytes, from the start'th token's on."""
        right, at_once = scratch + STAGED, blocks_at_once(blocks)
        for block in range(0, blocks, at_once):
            some = min(at_once, blocks - block)
            unpack(gate + block * record, some, right)
            unpack(up + block * record, some, right + some * RIGHT_BYTES)
            y = scratch + _SUMS - start * _ROW
            meet(right, some, True, x + block * 64, x_stride, y, _ROW, block, start, stop, 2 * ROWS, scratch)

    @kernel(_units, name=f"pair_glu.{layout.name}_{activation}")
    def pair_glu(args, step, unit, scratch):
        shares, blocks = word(args, SHARES), word(args, OUT_COLUMNS) // BLOCK
        start, stop = prompts_of(unit, word(args, COLUMNS), shares, step)
        share = unit % shares
        x, x_stride = word(args, X), pairs_stride(word(args, COLUMNS))
        out_stride = pairs_stride(word(args, OUT_COLUMNS))
        shape_deep_tiles(ROWS)
        for block in range(share * blocks // shares, (share + 1) * blocks // shares):
            for half in range(2):
                group = (2 * block + half) * word(args, GROUP_BYTES)
                gate, up = word(args, GATE) + group, word(args, UP) + group
                sums_of(gate, up, word(args, INPUT_BLOCKS), x, x_stride, start, stop, scratch)
                for row in range(stop - start):
                    to = scratch + _GATED + row * _ROW + half * ROWS * 4
                    gated(scratch + _SUMS + row * _ROW, ROWS, 0, ROWS, to)
            for row in range(stop - start):
                out = word(args, OUT) + (start + row) * out_stride + block * BLOCK * 2
                pair_block(scratch + _GATED + row * _ROW, out)
        release_tiles()

    return pair_glu


PAIR_GLUS = {(layout.name, name): _kernel(layout, name) for layout in WIDE_LAYOUTS for name in GATED}
