"""Products of weights with the positions of prompts, in tiles of bfloat16 (AMX).

Weights become bfloat16 once for all tokens of a unit: their integers times their scales in halves, rounded to the 8
bits that a bfloat16 has. A half's exponent is that of a bfloat16 which is 2^112 times smaller, so three shifted bits
are all the conversion there is; what is missing, the activations have more (activations.py). Some blocks of two groups
meet 32 tokens at a time, whose sums stay in tiles meanwhile: nothing is scaled on the way. That makes three to four
times the products of bytes, whose sums need a scale for each block.

In which order a tile adds up is the machine's own, the same for every row and column of it, so a token's result is the
same bits whatever is beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from ..jit import njit
from .activations import PAIR_BITS, pairs_stride
from .emit import Emission
from .pack import WIDE_LAYOUTS, Layout
from .program import STEP_PROMPTS, STEP_THREADS, STEP_TOKENS, Kernel, count, kernel
from .shares import rows_of_part
from .simd import (
    F16,
    I16,
    Micro,
    V,
    bits,
    call,
    constant,
    i8x64,
    int64,
    load,
    load_f32,
    load_f32x16,
    loop,
    micro,
    prefetch,
    runs,
    shuffle,
    store,
    store_f32,
    when,
    word,
)
from .tiles import ROWS, add_products_bf16, clear_tile, load_tile, release_tiles, shape_deep_tiles, store_tile
from .vector_products import AHEAD, copy_outputs

TOKENS = 2 * ROWS  # that meet two groups at once
MOST_TOKENS, UNIT_BYTES = 512, 800 << 10  # of a unit's activations, which the second level cache has to keep
MANY = 96  # tokens for each thread; fewer are not worth unpacking all weights for
BLOCKS_AT_ONCE = 18  # of two groups, unpacked: what the first level cache holds beside activations
RIGHT_BYTES = ROWS * 64  # of a block as a right factor: 16 pairs of columns of 16 rows
STAGED = 4096  # bytes of sums of TOKENS and two groups, at the beginning of scratch
STAGED_STRIDE = 128

LIFT_BITS = 112 - PAIR_BITS  # weights are that much larger as halves, so that none of them is subnormal that matters
LARGEST = 65504 / 2.0**LIFT_BITS  # a weight that is one then

# Argument block
WEIGHT, INPUT_BLOCKS, OUTPUTS, GROUP_BYTES, GROUPS, SHARES = range(6)
X, COLUMNS, Y, Y_STRIDE, BIAS, ADD = range(6, 12)

_HALVES, _WORDS = ir.VectorType(F16, 32), ir.VectorType(I16, 32)


def _in_both(vector: V) -> V:
    """A half for each row, as it meets the two columns of a pair."""
    return bits(shuffle(vector, [row // 2 for row in range(32)]), _HALVES)


def _rounded(h: V) -> V:
    """bfloat16 of halves, 2^112 times smaller: (magnitude + 4) >> 3 with the sign where it was."""
    return call("llvm.x86.avx512.pmul.hr.sw.512", _WORDS, bits(h, _WORDS), constant(1 << 12, _WORDS)) & 0x8FFF


def _numbers(layout: Layout, integers: V) -> list[tuple[int, V]]:
    """The pairs of columns that a vector of quads has, as halves: which of the first two quads' (0 even, 1 odd columns,
    plus 2 for high nibbles), and their numbers."""
    words = bits(integers, _WORDS)
    if layout.bits == 4:
        codes = np.array([(i & 15) - layout.bias for i in range(32)], np.float16).view(np.int16).tolist()
        table = V(ir.Constant(_WORDS, codes))
        looked = [call("llvm.x86.avx512.permvar.hi.512", _WORDS, table, words >> 4 * k) for k in range(4)]
        return [(k // 2 + k % 2 * 2, bits(v, _HALVES)) for k, v in enumerate(looked)]
    b = Emission.builder
    eight = constant(8, _WORDS).ir
    found = (b.ashr((words << 8).ir, eight), b.ashr(words.ir, eight))
    return [(k, V(b.sitofp(v, _HALVES))) for k, v in enumerate(found)]


def unpack_pairs(layout: Layout) -> Micro:
    """Blocks of a group as right factors: of each, RIGHT_BYTES at `out`. A right factor's row v * 4 + 2 * odd + half is
    columns 16 * half + 4 * v + odd and the second one after it."""
    assert layout.record.fields is not None
    at = {name: layout.record.fields[name][1] for name in layout.record.names or ()}

    @micro(int64, int64, int64)
    def unpack(weight: V, blocks: V, out: V) -> None:
        if not runs("amx"):
            return
        fused = f"llvm.fma.v{_HALVES.count}f16"

        def field(here: V, name: str) -> V:
            return _in_both(load(here + at[name], ir.VectorType(I16, layout.rows))) * 2.0**LIFT_BITS

        for block in loop(blocks):
            here, there = weight + block * layout.record.itemsize, out + block * RIGHT_BYTES
            for line in range(0, layout.record.itemsize, 64):
                prefetch(here + (AHEAD + line))
            scales = [field(here, name) for name in ("d", "d1")[: layout.scales]]
            minimum = field(here, "m") if layout.minimum else None
            for v in range(layout.bits):
                for kind, numbers in _numbers(layout, load(here + (at["q"] + v * 64), i8x64.ir)):
                    odd, half = kind % 2, (kind // 2) + v // 4
                    scale = scales[half if layout.scales == 2 else 0]
                    value = numbers * scale if minimum is None else call(fused, _HALVES, numbers, scale, minimum)
                    store(there + ((v % 4) * 4 + odd * 2 + half) * 64, _rounded(value))

    return unpack


def _tile(token_tiles: int, groups: int) -> Micro:
    """y [+]= x W^T for so many times 16 tokens and rows of weights. x: rows of pairs; right: factors of the first
    group, `right_step` bytes before those of the second."""

    @micro(*(int64,) * 8)
    def tile(x: V, x_stride: V, right: V, right_step: V, blocks: V, y: V, y_stride: V, add: V) -> None:
        if not runs("amx"):
            return
        places = [(t * 2 + g, y + (y_stride * (t * ROWS) + g * 64)) for t in range(token_tiles) for g in range(groups)]
        with when(add.equals(0)):
            for sums, _ in places:
                clear_tile(sums)
        with when(add > 0):
            for sums, at in places:
                load_tile(sums, at, y_stride)
        for block in loop(blocks):
            for t in range(token_tiles):
                load_tile(4 + t, x + x_stride * (t * ROWS) + block * 64, x_stride)
                for g in range(groups):
                    if t == 0:
                        load_tile(6 + g, right + right_step * g + block * RIGHT_BYTES, 64)
                    add_products_bf16(t * 2 + g, 4 + t, 6 + g)
        for sums, at in places:
            store_tile(sums, at, y_stride)

    return tile


@njit
def _offset(y, y_stride, tokens, columns, bias, add):
    """y [+]= biases"""
    whole = columns // 16 * 16
    for t in range(tokens):
        row = y + t * y_stride
        for i in range(0, whole, 16):
            value = load_f32x16(bias + i * 4)
            store(row + i * 4, value + load_f32x16(row + i * 4) if add != 0 else value)
        for i in range(whole, columns):
            last = load_f32(bias + i * 4)
            store_f32(row + i * 4, last + load_f32(row + i * 4) if add != 0 else last)


_TILE11, _TILE12, _TILE21, _TILE22 = (_tile(t, g) for t in (1, 2) for g in (1, 2))


@njit
def meet(right, blocks, two, x, x_stride, y, y_stride, add, start, stop, columns, staged):
    """Some blocks of one or two groups, as right factors, and all tokens: y [+]= products. staged: STAGED bytes."""
    right_step = blocks * RIGHT_BYTES
    for t in range(start, stop, TOKENS):
        tokens = min(TOKENS, stop - t)
        at, here = x + t * x_stride, y + t * y_stride
        out, out_stride = here, y_stride
        whole = tokens % ROWS == 0 and columns % ROWS == 0
        if not whole:
            out, out_stride = staged, STAGED_STRIDE
            if add != 0:
                copy_outputs(here, y_stride, staged, STAGED_STRIDE, tokens, columns)
        if tokens > ROWS and two:
            _TILE22(at, x_stride, right, right_step, blocks, out, out_stride, add)
        elif tokens > ROWS:
            _TILE21(at, x_stride, right, right_step, blocks, out, out_stride, add)
        elif two:
            _TILE12(at, x_stride, right, right_step, blocks, out, out_stride, add)
        else:
            _TILE11(at, x_stride, right, right_step, blocks, out, out_stride, add)
        if not whole:
            copy_outputs(staged, STAGED_STRIDE, here, y_stride, tokens, columns)


@njit
def blocks_at_once(blocks):
    """Of a row's blocks, so many are unpacked before tokens meet them."""
    parts = (blocks + BLOCKS_AT_ONCE - 1) // BLOCKS_AT_ONCE
    return (blocks + parts - 1) // parts


def _pair_products(layout: Layout) -> Callable[..., None]:
    """Compiled code for `groups` of rows of a weight, `outputs` of which are there, and tokens start to stop - 1."""
    unpack, record = unpack_pairs(layout), layout.record.itemsize

    @njit
    def products(
        weight, blocks, groups, group_bytes, outputs, x, x_stride, y, y_stride, bias, add, start, stop, scratch
    ):
        right = scratch + STAGED
        at_once = blocks_at_once(blocks)
        shape_deep_tiles(ROWS)
        for group in range(0, groups, 2):
            two = group + 1 < groups
            columns = min(outputs - group * ROWS, 2 * ROWS if two else ROWS)
            here = y + group * ROWS * 4
            adds = add
            if bias != 0:
                _offset(here + start * y_stride, y_stride, stop - start, columns, bias + group * ROWS * 4, add)
                adds = 1
            for block in range(0, blocks, at_once):
                some = min(at_once, blocks - block)
                w = weight + group * group_bytes + block * record
                unpack(w, some, right)
                if two:
                    unpack(w + group_bytes, some, right + some * RIGHT_BYTES)
                meet(right, some, two, x + block * 64, x_stride, here, y_stride, adds, start, stop, columns, scratch)
                adds = 1
        release_tiles()

    return products


@njit
def tokens_of_unit(columns, prompts, step):
    """So many that every thread has the same number of shares, or all but the last; few are not shared.

    columns: of the activations."""
    most = MOST_TOKENS
    while most > 2 * MANY and most * pairs_stride(columns) > UNIT_BYTES:
        most //= 2
    return most if prompts < word(step, STEP_THREADS) * MANY else rows_of_part(prompts, most, step)


@njit
def units_of_prompts(columns, shares, step):
    """How many units an op over a step's prompts has, whose other side is cut into so many shares."""
    prompts = word(step, STEP_TOKENS) - word(step, STEP_PROMPTS)
    if prompts == 0:
        return 0
    at_once = tokens_of_unit(columns, prompts, step)
    return (prompts + at_once - 1) // at_once * shares


@njit
def prompts_of(unit, columns, shares, step):
    """The first position of such a unit, and the one after its last."""
    first, tokens = word(step, STEP_PROMPTS), word(step, STEP_TOKENS)
    at_once = tokens_of_unit(columns, tokens - first, step)
    start = first + unit // shares * at_once
    return start, min(start + at_once, tokens)


@count
def _units(args, step):
    return units_of_prompts(word(args, COLUMNS), word(args, SHARES), step)


def _kernel(layout: Layout) -> Kernel:
    products = _pair_products(layout)

    @kernel(_units, name=f"pair_products.{layout.name}")
    def pair_products(args, step, unit, scratch):
        groups, shares = word(args, GROUPS), word(args, SHARES)
        twos = (groups + 1) // 2
        start, stop = prompts_of(unit, word(args, COLUMNS), shares, step)
        share = unit % shares
        first, after = share * twos // shares * 2, (share + 1) * twos // shares * 2
        weight = word(args, WEIGHT) + first * word(args, GROUP_BYTES)
        bias = word(args, BIAS) + first * ROWS * 4 if word(args, BIAS) != 0 else 0
        products(
            weight,
            word(args, INPUT_BLOCKS),
            min(after, groups) - first,
            word(args, GROUP_BYTES),
            word(args, OUTPUTS) - first * ROWS,
            word(args, X),
            pairs_stride(word(args, COLUMNS)),
            word(args, Y) + first * ROWS * 4,
            word(args, Y_STRIDE),
            bias,
            word(args, ADD),
            start,
            stop,
            scratch,
        )

    return pair_products


PAIR_PRODUCTS = {layout.name: _kernel(layout) for layout in WIDE_LAYOUTS}
