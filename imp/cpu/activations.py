"""How activations lie in memory that meet integer weights.

They are int8 with a scale for every 16 columns (half a block: what costs accuracy is their outliers), TILE tokens side
by side. Block b of these tokens is one record: [TILE][32] int8, [2][TILE] float32 scales, [TILE] float32 sums of the 32
values as quantised (what a weight's minimum is multiplied by), [2][TILE] int32 sums of the integers times -COUNTED
(with which products begin where weights have an offset). So all addresses in it are a base plus constants.

Code whose byte products add up in 16 bits (short_products.py) has other records of the same size. Pairs of columns take
turns, one of the left half, one of the right. The scales of the halves are integers times the unit of their span,
so that one instruction scales and adds: [TILE] pairs of int16 [left, right], [TILE] float32 units; [TILE] float32, sums
of the 32 values as quantised, in that unit; and [TILE] pairs of int16, sums of the integers times -COUNTED. For weights
of 8 bits it has records of shorts: [TILE][32] int16, [TILE] float32 units. A span is a whole row, or where nobody has
all of one at hand SPAN columns.

What prompts multiply in tiles of bfloat16 (pair_products.py) lies in plain rows: 2^PAIR_BITS times the value, and of
each 32 columns those that are two apart are a pair, in the order in which weights are unpacked.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..jit import njit
from .emit import Emission
from .pack import BLOCK
from .program import STEP_THREADS, apart
from .simd import (
    F32,
    I8,
    I16,
    I32,
    V,
    Var,
    absolute,
    bits,
    broadcast,
    call,
    constant,
    f32x16,
    float32,
    i32x16,
    int64,
    integer,
    largest,
    load_f32x16,
    loop,
    maximum,
    micro,
    minimum,
    runs,
    store,
    store_as_i8,
    to_float,
    to_int,
    total_i32,
    upper_halves,
    word,
    zeros,
)

TILE = 16
COUNTED = 8  # offsets are multiples of it, and most are this
MANY = 32  # tokens for each thread; fewer are not worth unpacking and fetching all weights for
TILE_SCALES = TILE * BLOCK  # offset of the scales in a record
TILE_SUMS = TILE_SCALES + 2 * TILE * 4
TILE_COUNTS = TILE_SUMS + TILE * 4
TILE_BLOCK_BYTES = TILE_COUNTS + 2 * TILE * 4
PAIR_BITS = 104

SPAN = 256  # columns
TILE_UNITS = TILE_SCALES + TILE * 4
LARGEST_SCALE = 32767  # integer; twice the largest sum of a half, 16 * 16 * 127, times it is below 2^31
SHORTS_UNITS = TILE * BLOCK * 2  # offset of the units in a record of shorts
SHORTS_BLOCK_BYTES = SHORTS_UNITS + TILE * 4
LARGEST_SHORT = 32767
SMALLEST = 1e-30  # what is divided by: blocks of less are zeros, and inverses stay finite


def quantised_bytes(tokens: int, columns: int) -> int:
    """Of all records."""
    return -(-tokens // TILE) * (columns // BLOCK) * TILE_BLOCK_BYTES


def shorts_bytes(tokens: int, columns: int) -> int:
    """Of all records of shorts."""
    return -(-tokens // TILE) * (columns // BLOCK) * SHORTS_BLOCK_BYTES


@micro(returns=int64)
def span_blocks() -> V:
    """Blocks whose scales have to be found together."""
    return integer(1 if runs("vnni") else SPAN // BLOCK)


@micro(int64, int64, returns=float32)
def top_of(x: V, columns: V) -> V:
    """The largest magnitude of some blocks of floats, which a unit is made of; 0 where there are none."""
    return _top(columns, lambda at: load_f32x16(x + at))


@micro(int64, int64, int64, float32, returns=float32)
def top_of_products(x: V, weight: V, columns: V, factor: V) -> V:
    """As top_of, of x times weight times a factor that is not negative."""
    return _top(columns, lambda at: load_f32x16(x + at) * load_f32x16(weight + at), factor)


def _top(columns: V, values: Callable[[V], V], factor: V | float = 1.0) -> V:
    """values: 16 of them, by where they are in a row of floats."""
    if runs("vnni"):
        return constant(0, F32)
    found = Var(zeros(f32x16))
    for i in loop(0, columns, 16):
        found.set(maximum(absolute(values(i * 4)), V(found.ir)))
    return maximum(largest(V(found.ir)) * factor, constant(SMALLEST, F32))


@micro(int64, int64, int64, float32)
def _byte_block(x: V, integers: V, scales: V, top: V) -> None:
    """32 floats -> 32 int8 and what else a record has of a token; scales: where its first scale goes, top: of its
    span."""
    if runs("vnni"):
        _bytes_by_halves(x, integers, scales)
    else:
        _crossed_bytes(x, integers, scales, top)


def _bytes_by_halves(x: V, integers: V, scales: V) -> None:
    """Each 16 by their largest magnitude."""
    sums = []
    for half in (0, 1):
        values = load_f32x16(x + half * 64)
        top = largest(absolute(values))
        inverse = 127.0 / maximum(top, constant(SMALLEST, F32))
        whole = to_int(values * broadcast(inverse, 16))
        store_as_i8(integers + half * 16, whole)
        scale, count = top * (1.0 / 127.0), total_i32(whole)
        store(scales + half * TILE * 4, scale)
        store(scales + (TILE_COUNTS - TILE_SCALES + half * TILE * 4), count * -COUNTED)
        sums.append(scale * to_float(count))
    store(scales + (TILE_SUMS - TILE_SCALES), sums[0] + sums[1])


def _crossed_bytes(x: V, integers: V, scales: V, top: V) -> None:
    """Each 16 by the smallest multiple of the span's unit that their largest magnitude fits in."""
    b, wholes, counts, steps = Emission.builder, [], [], []
    unit = top * (1.0 / (127 * LARGEST_SCALE))
    for half in (load_f32x16(x + at) for at in (0, 64)):
        step = call("llvm.ceil.f32", F32, largest(absolute(half)) * (LARGEST_SCALE / top))
        step = minimum(maximum(step, constant(1, F32)), constant(LARGEST_SCALE, F32))
        wholes.append(to_int(half * broadcast(1.0 / (step * unit), 16)))
        counts.append(total_i32(wholes[-1]))
        steps.append(V(b.fptosi(step.ir, I32)))
    left, right = (bits(V(b.trunc(whole.ir, ir.VectorType(I8, 16))), ir.VectorType(I16, 8)) for whole in wholes)
    turns = ir.Constant(ir.VectorType(I32, 16), [i // 2 + i % 2 * 8 for i in range(16)])
    store(integers, V(b.shuffle_vector(left.ir, right.ir, turns)))
    store(scales, _pair(*steps))
    store(scales + (TILE_UNITS - TILE_SCALES), unit)
    store(scales + (TILE_SUMS - TILE_SCALES), to_float(steps[0] * counts[0] + steps[1] * counts[1]))
    store(scales + (TILE_COUNTS - TILE_SCALES), _pair(*(count * -COUNTED for count in counts)))


def _pair(low: V, high: V) -> V:
    """Two integers as int16, in 32 bits."""
    return (low & 0xFFFF) | (high << 16)


@micro(int64, int64, int64, float32)
def _short_block(x: V, integers: V, unit: V, top: V) -> None:
    """32 floats -> 32 int16, and where their unit goes; top: of their span."""
    inverse = broadcast(LARGEST_SHORT / top, 16)
    for at in (0, 1):
        whole = to_int(load_f32x16(x + at * 64) * inverse)
        store(integers + at * 32, V(Emission.builder.trunc(whole.ir, ir.VectorType(I16, 16))))
    store(unit, top * (1.0 / LARGEST_SHORT))


@njit
def quantise_row(x, token, first, stop, blocks, tiles, shorts, top):
    """Columns first..stop of one token's row `x` into its place in the records of bytes and of shorts, where these are
    (0: not); `blocks` in a whole row. top: of the row; 0: spans have SPAN columns, and these are whole ones but for the
    last one of a row."""
    if tiles == 0 and shorts == 0:
        return
    records, place, after = token // TILE * blocks, token % TILE, stop // BLOCK
    for span in range(first // BLOCK, after, span_blocks()):
        end = min(span + span_blocks(), after)
        own = top if top > 0 else top_of(x + span * BLOCK * 4, (end - span) * BLOCK)
        for block in range(span, end):
            if tiles != 0:
                at = tiles + (records + block) * TILE_BLOCK_BYTES
                _byte_block(x + block * BLOCK * 4, at + place * BLOCK, at + TILE_SCALES + place * 4, own)
            if shorts != 0:
                at = shorts + (records + block) * SHORTS_BLOCK_BYTES
                _short_block(x + block * BLOCK * 4, at + place * BLOCK * 2, at + SHORTS_UNITS + place * 4, own)


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
def factors_row(x, token, first, stop, columns, tiles, shorts, pairs, prompts, top):
    """Columns first..stop, whole blocks, of one token's row `x` as products want them: of the first `prompts` tokens
    quantised, where there are `tiles` or `shorts`; of those behind as pairs, if there is a place for them. top: as
    quantise_row's."""
    if pairs != 0 and token >= prompts:
        row = pairs + token * pairs_stride(columns)
        for column in range(first, stop, BLOCK):
            pair_block(x + column * 4, row + column * 2)
    else:
        quantise_row(x, token, first, stop, columns // BLOCK, tiles, shorts, top)
