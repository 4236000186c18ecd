"""y = x W^T [+ bias] [+ y]: one kernel for each weight layout of pack.py.

Integer layouts multiply integers: activations come as activations.py has them. Float layouts take rows of floats.
Where byte products add up in 32 bits, a few tokens meet a group of weights in vectors (vector_products.py), and 16 in
tiles where the machine has them (tile_products.py); where they add up in 16, eight at most in vectors
(short_products.py). A token's result is the same bits in whatever tile, batch, share or thread it is computed, and for
integer weights on whatever machine adds up in the same width: the float operations of one output are always block after
block in one accumulator. Positions of prompts have products of their own where there are tiles (pair_products.py).

Order of work: a unit is a share of the row groups for a part of the tokens, whose activations stay in L2 while each
group, in L1, meets them a few at a time, or each few of them, in L1, meet all its groups. Parts come before shares and
every thread has as many of them: threads.py gives it the tokens that it has in the ops before and after, too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..jit import njit
from .activations import BLOCK, TILE, TILE_BLOCK_BYTES, TILE_SCALES, are_many
from .pack import LAYOUTS, Layout
from .program import STEP_THREADS, Kernel, count, kernel
from .shares import rows_of_part
from .short_products import short_products
from .simd import Micro, V, int64, integer, micro, runs, word
from .tile_products import tile_products, tokens_in_tiles
from .variants import WIDE
from .vector_products import copy_outputs, float_tile, integer_tile

TOKENS_AT_ONCE = 128
UNIT_BYTES = 64 << 10  # of weights: small enough to share well, large enough to stream (32 KiB costs 8 % at decode)
ALONE_BYTES = 256 << 10  # of a unit for one token, where it takes weights in streams (short_products.py)

# Argument block
WEIGHT, INPUT_BLOCKS, OUTPUTS, GROUP_BYTES, GROUPS, SHARES = range(6)
X, X_STRIDE, Y, Y_STRIDE, BIAS, ADD, TOKENS_WORD, SPAN_BLOCKS = range(6, 14)


@micro(returns=int64)
def _tokens_at_once() -> V:
    """Of a unit, at most. In tiles weights are worth unpacking and fetching once for more of them: 512 instead of 128
    tokens made a prompt's products 14 % faster."""
    return integer(512 if runs("amx") else TOKENS_AT_ONCE)


@micro(returns=int64)
def _alone_bytes() -> V:
    """Of a unit for one token; 0: as for more."""
    return integer(0 if runs("vnni") else ALONE_BYTES)


@njit
def tokens_of_unit(tokens, step):
    """Of a unit."""
    return rows_of_part(tokens, _tokens_at_once(), step) if are_many(tokens, step) else _tokens_at_once()


@count
def matmul_units(args, step):
    tokens = word(step, word(args, TOKENS_WORD))
    at_once = tokens_of_unit(tokens, step)
    return (tokens + at_once - 1) // at_once * _shares(args, step, tokens)


@njit
def _shares(args, step, tokens):
    """Into how many units the groups are cut: for one token in streams as many for every thread."""
    if tokens > 1 or _alone_bytes() == 0:
        return word(args, SHARES)
    threads, size = word(step, STEP_THREADS), word(args, GROUPS) * word(args, GROUP_BYTES)
    wanted = (size + _alone_bytes() - 1) // _alone_bytes()
    return min(word(args, SHARES), (wanted + threads - 1) // threads * threads)


def shares_of(groups: int, group_bytes: int, threads: int) -> int:
    """Into how many shares the groups of a weight are cut: as many for every thread, of UNIT_BYTES at most. They differ
    by one group: of 36 groups in shares of 5 one of two threads had 20."""
    most = max(1, UNIT_BYTES // group_bytes)
    wanted = max(-(-groups // most), 4 * threads)
    return min(groups, -(-wanted // threads) * threads)


@micro(returns=int64)
def most_at_once() -> V:
    """Tokens whose sums fit in registers."""
    return integer(16 if runs("avx512") else 4)


def group_products(layout: Layout) -> Callable[..., None]:
    """Compiled code for one group of rows of a weight and tokens start to stop - 1. `outputs`: rows of the group that
    are there. bias, add: 0 for none; with `add`, what is in y is added to. `scratch`: of the thread, all of it."""
    if layout.rows == WIDE and layout.integers:
        return _with_tiles(_vector_products(layout), tile_products(layout))
    return _vector_products(layout)


def _with_tiles(vectors: Callable[..., None], tiles: Callable[..., None]) -> Callable[..., None]:
    @njit
    def products(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start, stop, scratch):
        between = start + tokens_in_tiles(start, stop, blocks)
        if between > start:
            tiles(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start, between, scratch)
        vectors(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, between, stop, scratch)

    return products


def _vector_products(layout: Layout) -> Callable[..., None]:
    packed, rows = layout.integers, layout.rows
    make: Callable[[Layout, int], Micro] = integer_tile if packed else float_tile
    tile1, tile2, tile3, tile4, tile8, tile12, tile16 = (make(layout, tokens) for tokens in (1, 2, 3, 4, 8, 12, 16))

    @njit
    def products(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start, stop, scratch):
        whole = outputs >= rows
        t = start
        while t < stop:
            tokens = min(stop - t, most_at_once())
            if packed:
                tokens = min(tokens, TILE - t % TILE)
                record = x_start + t // TILE * blocks * TILE_BLOCK_BYTES
                x, beside = record + t % TILE * BLOCK, record + TILE_SCALES + t % TILE * 4
            else:
                x, beside = x_start + t * x_stride, x_stride
            y = y_start + t * y_stride
            residual = y if add != 0 else 0
            out, out_stride = (y, y_stride) if whole else (scratch, 64)
            if tokens == 1:
                tile1(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            elif tokens == 2:
                tile2(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            elif tokens == 3:
                tile3(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            elif tokens < 8:
                tokens = 4
                tile4(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            elif tokens < 12:
                tokens = 8
                tile8(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            elif tokens < 16:
                tokens = 12
                tile12(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            else:
                tile16(weight, x, beside, blocks, out, out_stride, bias, residual, y_stride)
            if not whole:  # the columns behind belong to another part of the row
                copy_outputs(scratch, 64, y, y_stride, tokens, outputs)
            t += tokens

    return products


def share_products(layout: Layout) -> Callable[..., None]:
    """Compiled code for groups first to last - 1 of a weight, as group_products; weight, outputs, y and bias are those
    of group 0. span: blocks whose activations have a unit (activations.py)."""
    if layout.crossed:
        return short_products(layout)
    products, rows = group_products(layout), layout.rows

    @njit
    def of_share(
        weight, group_bytes, first, last, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start,
        stop, span, scratch,
    ):  # fmt: skip
        for group in range(first, last):
            at, column = weight + group * group_bytes, group * rows
            own = bias + column * 4 if bias != 0 else 0
            left, y = outputs - column, y_start + column * 4
            products(at, blocks, left, x_start, x_stride, y, y_stride, own, add, start, stop, scratch)

    return of_share


def _matmul(layout: Layout) -> Kernel:
    products = share_products(layout)

    @kernel(matmul_units, name=f"matmul.{layout.name}")
    def matmul(args, step, unit, scratch):
        tokens, groups = word(step, word(args, TOKENS_WORD)), word(args, GROUPS)
        at_once, shares = tokens_of_unit(tokens, step), _shares(args, step, tokens)
        start, share = unit // shares * at_once, unit % shares
        stop = min(start + at_once, tokens)
        first, last = share * groups // shares, (share + 1) * groups // shares
        weights, blocks = word(args, WEIGHT), word(args, INPUT_BLOCKS)
        given = weights, word(args, GROUP_BYTES), first, last, blocks, word(args, OUTPUTS)
        places = word(args, X), word(args, X_STRIDE), word(args, Y), word(args, Y_STRIDE), word(args, BIAS)
        products(*given, *places, word(args, ADD), start, stop, word(args, SPAN_BLOCKS), scratch)

    return matmul


MATMULS = {name: _matmul(layout) for name, layout in LAYOUTS.items()}
