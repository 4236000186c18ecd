"""Products of 16 rows of weights with 16 tokens at once, of more than 16, in tiles of bytes (AMX).

The activations of half a block are a left factor, a row for each token, and the weights a right one, a column for each
row of theirs. Integers of 4 bits become bytes first, once for all tokens. What the sums need is done in vectors, just
as for few tokens: while the products of the next block are made, those of this one are scaled and added.
"""

from __future__ import annotations

from collections.abc import Callable

from ..jit import njit
from .activations import BLOCK, TILE, TILE_BLOCK_BYTES, TILE_SCALES
from .pack import Layout
from .program import SCRATCH_BYTES
from .simd import (
    I1,
    Micro,
    V,
    Var,
    boolean,
    constant,
    f32x16,
    i8x64,
    i32x16,
    int64,
    integer,
    load,
    loop,
    micro,
    nibbles,
    prefetch,
    runs,
    smaller,
    store,
    to_float,
    when,
    zeros,
)
from .tiles import add_products_i8, clear_tile, load_tile, release_tiles, shape_tiles, store_tile
from .vector_products import AHEAD, ARGUMENTS, added, copy_outputs, finish, load_halves, scales_of, spread

LEAST = 13  # tokens behind whole tiles that are worth one more; alone, up to 16 are faster in vectors
_SUMS_BYTES = 2 * TILE * 64  # of a block's integers, in scratch
_BYTES_AT = 4096  # weights as bytes, in scratch; what is before is also products'
_BLOCK_BYTES = 64 * BLOCK // 4  # of weights as bytes
MOST_BLOCKS = (SCRATCH_BYTES - _BYTES_AT) // _BLOCK_BYTES


@micro(returns=boolean)
def has_tiles() -> V:
    return constant(runs("amx"), I1)


@njit
def tokens_in_tiles(start, stop, blocks):
    """How many of these tokens, from the first one on, are for tile_products; in rows of so many blocks."""
    if not has_tiles() or stop - start <= TILE or start % TILE != 0 or blocks > MOST_BLOCKS:
        return 0
    return stop - start if (stop - start) % TILE >= LEAST else (stop - start) // TILE * TILE


def _unpack(layout: Layout, record: V, out: V) -> None:
    """Integers of 4 bits as signed bytes, in the order of right factors."""
    assert layout.record.fields is not None
    at = layout.record.fields["q"][1]
    for v in range(4):
        for half, q in enumerate(nibbles(load(record + (at + v * 64), i8x64.ir))):
            store(out + (half * 4 + v) * 64, q - layout.bias if layout.bias else q)


def _multiply(x: V, right: V) -> None:
    """Begin a block: sums 0 and 1 are those of its halves."""
    for half in (0, 1):
        clear_tile(half)
        load_tile(4 + half, x + half * (BLOCK // 2), BLOCK)
        load_tile(6 + half, right + half * (_BLOCK_BYTES // 2), 64)
        add_products_i8(half, 4 + half, 6 + half)


def _tile(layout: Layout, right_step: int, unpacks: bool = False) -> Micro:
    """For the first `tokens` of a record of activations. right: the first right factor; ahead: of what is fetched.
    unpacks: makes the right factors, for itself and those that come then, while the products of others are made."""

    @micro(*ARGUMENTS, *(int64,) * 3)
    def tile(
        weight: V, x: V, right: V, blocks: V, out: V, out_stride: V, bias: V, y: V, y_stride: V,
        tokens: V, scratch: V, ahead: V,
    ) -> None:  # fmt: skip
        if not runs("amx"):
            return
        totals = [Var(zeros(f32x16)) for _ in range(TILE)]
        if unpacks:
            for block in (integer(0), smaller(integer(1), blocks - 1)):
                _unpack(layout, weight + block * layout.record.itemsize, right + block * right_step)
        _multiply(x, right)
        for block in loop(blocks):
            for half in (0, 1):
                store_tile(half, scratch + half * (TILE * 64), 64)
            following = smaller(block + 1, blocks - 1)  # behind the last block may be nothing to read
            _multiply(x + following * TILE_BLOCK_BYTES, right + following * right_step)
            here, own = weight + block * layout.record.itemsize, x + (block * TILE_BLOCK_BYTES + TILE_SCALES)
            for line in range(0, layout.record.itemsize, 64):
                prefetch(here + ahead + line)
            if unpacks:
                later = smaller(block + 2, blocks - 1)
                _unpack(layout, weight + later * layout.record.itemsize, right + later * right_step)
            scales = scales_of(layout, here)
            minimum = load_halves(layout, here, "m") if layout.minimum else None
            for t, total in enumerate(totals):
                halves = [to_float(load(scratch + (half * TILE + t) * 64, i32x16.ir)) for half in (0, 1)]
                factors = [spread(own + (kind * TILE + t) * 4, 16) for kind in range(3)]
                total.set(added(layout, scales, minimum, halves, factors, V(total.ir)))
        for t, total in enumerate(totals):
            with when(tokens > t):
                finish([V(total.ir)], out + out_stride * t, bias, y, y + y_stride * t)

    return tile


def tile_products(layout: Layout) -> Callable[..., None]:
    """As matmul.group_products, for tokens from the beginning of a record of activations on."""
    assert layout.record.fields is not None
    packed, at = layout.bits == 4, layout.record.fields["q"][1]
    right_step = _BLOCK_BYTES if packed else layout.record.itemsize
    tile = _tile(layout, right_step)
    first_tile = _tile(layout, right_step, unpacks=True) if packed else tile
    record = layout.record.itemsize

    @njit
    def products(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start, stop, scratch):
        whole = outputs >= 16
        right = scratch + _BYTES_AT if packed else weight + at
        shape_tiles(TILE)
        for t in range(start, stop, TILE):
            tokens = min(TILE, stop - t)
            x, y = x_start + t // TILE * blocks * TILE_BLOCK_BYTES, y_start + t * y_stride
            out, out_stride = (y, y_stride) if whole else (scratch + _SUMS_BYTES, 64)
            residual = y if add != 0 else 0
            if t == start:
                ahead = AHEAD if stop - start <= TILE else blocks * record  # many tokens leave time for all of a group
                first_tile(weight, x, right, blocks, out, out_stride, bias, residual, y_stride, tokens, scratch, ahead)
            else:
                tile(weight, x, right, blocks, out, out_stride, bias, residual, y_stride, tokens, scratch, 0)
            if not whole:  # the columns behind belong to another part of the row
                copy_outputs(scratch + _SUMS_BYTES, 64, y, y_stride, tokens, outputs)
        release_tiles()

    return products
