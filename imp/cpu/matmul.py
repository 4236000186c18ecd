"""y = x W^T [+ bias] [+ y]: one kernel for each weight layout of pack.py.

Integer layouts multiply bytes: activations come quantised to int8 with a scale for every 16 columns (half a block: what
costs accuracy is their outliers), packed so that all addresses of a tile are a base plus constants. A *tile* is TILE
tokens; block b of a tile is one record: [TILE][32] int8, [2][TILE] float32 scales, [TILE] float32 sums of the 32 values
as quantised (what a weight's minimum is multiplied by). One vector of weights is 4 columns of 8 rows, and meets the 4
activations of a token broadcast to all rows, so nothing is ever summed across a register. Float layouts take float32
rows as they are.

A token's result is the same bits in whatever tile, batch, share or thread it is computed: the float operations of one
output are always block after block in one accumulator. Order of work: a unit is a run of row groups for up to
TOKENS_AT_ONCE tokens; their activations stay in L2 while each group, in L1, meets tile after tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numba import njit

from .emit import runs
from .pack import BLOCK, LAYOUTS, Layout
from .program import Kernel, count, kernel
from .simd import (
    V,
    Var,
    absolute_i8,
    add_quads_u8i8,
    broadcast_f32,
    broadcast_i8x4,
    dot_pairs_u8i8,
    f32x8,
    fma,
    i32x8,
    int64,
    load_bf16x8,
    load_f16x8,
    load_f32,
    load_f32x8,
    load_i8x32,
    loop,
    micro,
    nibbles,
    prefetch,
    signed_as,
    store,
    store_f32,
    sum_pairs_i16,
    to_float,
    when,
    word,
    zeros,
)

TILE = 4  # more tokens than this need more registers than AVX2 has
TOKENS_AT_ONCE = 128
TILE_SCALES = TILE * BLOCK  # offset of the scales in a tile's block
TILE_SUMS = TILE_SCALES + 2 * TILE * 4
TILE_BLOCK_BYTES = TILE_SUMS + TILE * 4
UNIT_BYTES = 64 << 10  # of weights: small enough to share well, large enough to stream (32 KiB costs 8 % at decode)
AHEAD = 2048  # bytes the prefetch runs ahead of the weights; 1 to 4 KiB are the same within the noise

# Argument block
WEIGHT, INPUT_BLOCKS, OUTPUTS, GROUP_BYTES, GROUPS, GROUPS_PER_UNIT = range(6)
X, X_STRIDE, Y, Y_STRIDE, BIAS, ADD, TOKENS_WORD = range(6, 13)


TILE_ARGUMENTS = (int64,) * 9


def quantised_bytes(tokens: int, columns: int) -> int:
    """Size of packed activations."""
    return -(-tokens // TILE) * (columns // BLOCK) * TILE_BLOCK_BYTES


def _quad_sums(halves: Sequence[Sequence[V]], x: V, tokens: int) -> list[list[V]]:
    """Of a block of two times 4 vectors of unsigned bytes. The way where an instruction adds products up in 32 bits."""
    sums: list[list[V]] = [[] for _ in range(tokens)]
    for half, quads in enumerate(halves):
        for t in range(tokens):
            total = zeros(i32x8)
            for i, q in enumerate(quads):
                total = add_quads_u8i8(total, q, broadcast_i8x4(x + (t * BLOCK + (half * 4 + i) * 4)))
            sums[t].append(total)
    return sums


def _nibble_sums(weights: V, x: V, tokens: int) -> list[list[V]]:
    """Four products of at most 15 * 127 twice fit in 16 bits, so one widening serves half a block."""
    if runs("vnni"):
        low, high = zip(*[nibbles(load_i8x32(weights + v * 32)) for v in range(4)], strict=True)
        return _quad_sums([low, high], x, tokens)
    pairs: list[list[V | None]] = [[None, None] for _ in range(tokens)]
    for v in range(4):
        for half, q in enumerate(nibbles(load_i8x32(weights + v * 32))):
            for t in range(tokens):
                product = dot_pairs_u8i8(q, broadcast_i8x4(x + (t * BLOCK + (half * 4 + v) * 4)))
                before = pairs[t][half]
                pairs[t][half] = product if before is None else before + product
    return [[sum_pairs_i16(p) for p in halves] for halves in pairs]


def _small_byte_sums(weights: V, x: V, tokens: int) -> list[list[V]]:
    """Integers of 0 to 31: four products of at most 31 * 127 twice fit in 16 bits."""
    if runs("vnni"):
        return _quad_sums([[load_i8x32(weights + (first + i) * 32) for i in range(4)] for first in (0, 4)], x, tokens)
    sums: list[list[V]] = [[] for _ in range(tokens)]
    for first in (0, 4):
        pairs: list[V | None] = [None] * tokens
        for quad in range(first, first + 4):
            q = load_i8x32(weights + quad * 32)
            for t in range(tokens):
                product = dot_pairs_u8i8(q, broadcast_i8x4(x + (t * BLOCK + quad * 4)))
                before = pairs[t]
                pairs[t] = product if before is None else before + product
        for t, p in enumerate(pairs):
            sums[t].append(sum_pairs_i16(p))
    return sums


def _byte_sums(weights: V, x: V, tokens: int) -> list[list[V]]:
    """|w| times x with w's sign: the instruction wants one side unsigned."""
    sums: list[list[V | None]] = [[None, None] for _ in range(tokens)]
    for quad in range(8):
        q = load_i8x32(weights + quad * 32)
        size = absolute_i8(q)
        for t in range(tokens):
            turned = signed_as(broadcast_i8x4(x + (t * BLOCK + quad * 4)), q)
            before = sums[t][quad // 4]
            sums[t][quad // 4] = add_quads_u8i8(zeros(i32x8) if before is None else before, size, turned)
    return sums  # type: ignore[return-value]


def _integer_tile(layout: Layout, tokens: int):
    block_sums = _nibble_sums if layout.bits == 4 else _small_byte_sums if layout.minimum else _byte_sums
    fields = {name: layout.record.fields[name][1] for name in layout.record.names}  # type: ignore[index, union-attr]

    @micro(*TILE_ARGUMENTS)
    def tile(weight: V, x: V, x_stride: V, blocks: V, out: V, out_stride: V, bias: V, y: V, y_stride: V) -> None:
        sums = [[Var(zeros(f32x8))] for _ in range(tokens)]
        w, x = Var(weight), Var(x)
        for _ in loop(blocks):
            here, at = V(w.ir), V(x.ir)
            for line in range(0, layout.record.itemsize, 64):
                prefetch(here + (AHEAD + line))
            integers = block_sums(here + fields["q"], at, tokens)
            scales = [load_f16x8(here + fields[name]) for name in ("d", "d1")[: layout.scales]]
            if layout.bias:
                offset = scales[0] * -float(layout.bias)
            elif layout.minimum:
                offset = load_f16x8(here + fields["m"])
            for t in range(tokens):
                (total,) = sums[t]
                left, right = (
                    to_float(integer) * broadcast_f32(at + (TILE_SCALES + (half * TILE + t) * 4))
                    for half, integer in enumerate(integers[t])
                )
                if layout.scales == 1:
                    total.set(fma(scales[0], left + right, total))
                else:
                    total.set(fma(scales[1], right, fma(scales[0], left, total)))
                if layout.bias or layout.minimum:
                    total.set(fma(offset, broadcast_f32(at + (TILE_SUMS + t * 4)), total))
            w += layout.record.itemsize
            x += TILE_BLOCK_BYTES
        _finish(sums, out, out_stride, bias, y, y_stride)

    return tile


def _float_tile(layout: Layout, tokens: int):
    load, half = {"f16": (load_f16x8, 16), "bf16": (load_bf16x8, 16), "f32": (load_f32x8, 32)}[layout.name]

    @micro(*TILE_ARGUMENTS)
    def tile(weight: V, x: V, x_stride: V, blocks: V, out: V, out_stride: V, bias: V, y: V, y_stride: V) -> None:
        sums = [[Var(zeros(f32x8)), Var(zeros(f32x8))] for _ in range(tokens)]
        rows = [x + x_stride * t for t in range(tokens)]
        for column in loop(blocks):
            here = weight + column * layout.record.itemsize
            prefetch(here + AHEAD)
            halves = [load(here), load(here + half)]
            for row, total in zip(rows, sums, strict=True):
                value = broadcast_f32(row + column * 4)
                for part, w in zip(total, halves, strict=True):
                    part.set(fma(w, value, part))
        _finish(sums, out, out_stride, bias, y, y_stride)

    return tile


def _finish(sums: list[list[Var]], out: V, out_stride: V, bias: V, residual: V, residual_stride: V) -> None:
    """Store the outputs of a group for each token, plus bias and residual where their addresses are not 0."""
    for t, parts in enumerate(sums):
        for i, total in enumerate(parts):
            with when(bias > 0):
                total.set(total + load_f32x8(bias + i * 32))
            with when(residual > 0):
                total.set(total + load_f32x8(residual + (residual_stride * t + i * 32)))
            store(out + (out_stride * t + i * 32), V(total.ir))


@count
def matmul_units(args, step):
    tokens = word(step, word(args, TOKENS_WORD))
    shares = (word(args, GROUPS) + word(args, GROUPS_PER_UNIT) - 1) // word(args, GROUPS_PER_UNIT)
    return (tokens + TOKENS_AT_ONCE - 1) // TOKENS_AT_ONCE * shares


def group_products(layout: Layout) -> Callable[..., None]:
    """Compiled code for one group of rows of a weight and tokens start to stop - 1. `outputs`: rows of the group that
    are there. bias, add: 0 for none; with `add`, what is in y is added to."""
    make = _integer_tile if layout.integers else _float_tile
    tile1, tile2, tile3, tile4 = (make(layout, tokens) for tokens in (1, 2, 3, TILE))
    packed, rows = layout.integers, layout.rows

    @njit
    def products(weight, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start, stop, scratch):
        whole = outputs >= rows
        for t in range(start, stop, TILE):
            x = x_start + (t // TILE * blocks * TILE_BLOCK_BYTES if packed else t * x_stride)
            y = y_start + t * y_stride
            residual = y if add != 0 else 0
            out, out_stride = (y, y_stride) if whole else (scratch, 64)
            if stop - t >= TILE:
                tile4(weight, x, x_stride, blocks, out, out_stride, bias, residual, y_stride)
            elif stop - t == 1:
                tile1(weight, x, x_stride, blocks, out, out_stride, bias, residual, y_stride)
            elif stop - t == 2:
                tile2(weight, x, x_stride, blocks, out, out_stride, bias, residual, y_stride)
            else:
                tile3(weight, x, x_stride, blocks, out, out_stride, bias, residual, y_stride)
            if not whole:  # the columns behind belong to another part of the row
                for row in range(min(TILE, stop - t)):
                    for column in range(outputs):
                        store_f32(y + row * y_stride + column * 4, load_f32(scratch + row * 64 + column * 4))

    return products


def _matmul(layout: Layout) -> Kernel:
    products, rows = group_products(layout), layout.rows

    @kernel(matmul_units, name=f"matmul.{layout.name}")
    def matmul(args, step, unit, scratch):
        groups, share = word(args, GROUPS), word(args, GROUPS_PER_UNIT)
        shares = (groups + share - 1) // share
        blocks, x, x_stride = word(args, INPUT_BLOCKS), word(args, X), word(args, X_STRIDE)
        y_stride, add = word(args, Y_STRIDE), word(args, ADD)
        start = unit // shares * TOKENS_AT_ONCE
        stop = min(start + TOKENS_AT_ONCE, word(step, word(args, TOKENS_WORD)))
        first = unit % shares * share
        for group in range(first, min(first + share, groups)):
            weight = word(args, WEIGHT) + group * word(args, GROUP_BYTES)
            bias = word(args, BIAS) + group * rows * 4 if word(args, BIAS) != 0 else 0
            left = word(args, OUTPUTS) - group * rows
            y = word(args, Y) + group * rows * 4
            products(weight, blocks, left, x, x_stride, y, y_stride, bias, add, start, stop, scratch)

    return matmul


MATMULS = {name: _matmul(layout) for name, layout in LAYOUTS.items()}
