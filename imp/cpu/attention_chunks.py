"""The sums of a chunk of keys: how a chunk is added to those before it, and how it passes through memory between units.

Sums are m, the largest score, l, the sum of weights 2^(score - m), and o [d], that of weights times values. Chunks are
merged in order by one formula, by whoever holds them, so it cannot be seen who that was. Scores are in units of log2.
"""

from __future__ import annotations

from ..jit import njit
from .attention_plan import MERGE, merge_units
from .kept import turn
from .program import kernel
from .simd import (
    F32,
    I32,
    V,
    bits,
    constant,
    f32x8,
    float32,
    fma,
    int64,
    lane,
    lanes_of,
    load,
    load_f32,
    load_f32x8,
    load_i32,
    loop,
    micro,
    select,
    splat,
    store,
    store_f32,
    word,
    zeros,
)

NOTHING = -(2.0**100)  # the maximum of no scores; exact in float32

helper = njit(error_model="numpy")


def exp2(x: V) -> V:
    """2^x for x <= 0 to 1e-7 relative; exactly 1 at 0 and exactly 0 below -126."""
    shifted = x + 12582912.0  # 1.5 * 2^23: the sum's low bits are the nearest integer
    r = x - (shifted - 12582912.0)
    p = fma(r, EXP2[6], EXP2[5])
    for c in EXP2[4::-1]:
        p = fma(p, r, c)
    integers = lanes_of(x, I32)
    scaled = bits(p, integers) + (bits(shifted, integers) << 23)
    return select(x < -126.0, constant(0, x.type), bits(scaled, x.type))


# 2^r = sum of EXP2[i] r^i on [-1/2, 1/2] to 2e-9 relative: least squares at 400 Chebyshev points, the first held at 1
EXP2 = (1.0, 0.6931472056, 0.2402264846, 0.05550329035, 0.009618373251, 0.001339984829, 0.0001537070482)


@micro(int64, int64)
def clear(address: V, size: V) -> None:
    for i in loop(0, size, 8):
        store(address + i * 4, zeros(f32x8))


@micro(int64, int64, float32, float32, int64, int64)
def merge_into(state: V, sums: V, m: V, l: V, o: V, d: V) -> None:
    """state [m, l] and sums [d] of the chunks so far take in the next chunk's."""
    before, weight = load(state, F32), load(state + 4, F32)
    top = select(m > before, m, before)
    old, new = exp2(splat(before - top)), exp2(splat(m - top))
    store(state, top)
    store(state + 4, weight * lane(old, 0) + l * lane(new, 0))
    for i in loop(0, d, 8):
        at = sums + i * 4
        store(at, fma(load_f32x8(o + i * 4), new, load_f32x8(at) * old))


@micro(int64, float32, int64, int64)
def scale_to(sums: V, factor: V, out: V, d: V) -> None:
    for i in loop(0, d, 8):
        store(out + i * 4, load_f32x8(sums + i * 4) * splat(factor))


@helper
def record_of(args, record, head):
    """Address of a chunk's sums of one query head: m, l, 6 unused, o [d]."""
    heads, d = word(args, 6) * word(args, 7), word(args, 8)
    return word(args, 3) + (record * heads + head) * (d + 8) * 4


@helper
def keep_partial(args, record, head, m, weight, o, d):
    place = record_of(args, record, head)
    store_f32(place, m)
    store_f32(place + 4, weight)
    scale_to(o, 1.0, place + 32, d)


@helper
def close_chunk(args, record, head, m, weight, o, state, sums, d):
    """A chunk's sums of one query head into their place in memory, or, where that is -1, added to those before."""
    if record >= 0:
        keep_partial(args, record, head, m, weight, o, d)
    elif weight > 0:
        merge_into(state, sums, m, weight, o, d)


@helper
def write_out(args, state, sums, out, d):
    """What attention gives for one query head, from the sums of all its chunks."""
    scale_to(sums, 1.0 / load_f32(state + 4), out, d)
    if word(args, 13) != 0:
        turn(out, d)


@kernel(merge_units)
def merge(args, step, unit, scratch):
    """The chunks of one query's heads of one kv head. args: as attend's, with 2 the merge list."""
    kv_heads, share, d = word(args, 6), word(args, 7), word(args, 8)
    item, first = word(args, 2) + unit // kv_heads * MERGE, unit % kv_heads * share
    query, record, chunks = load_i32(item), load_i32(item + 4), load_i32(item + 8)
    state, sums = scratch, scratch + 64
    for head in range(first, first + share):
        clear(sums, d)
        store_f32(state, NOTHING)
        store_f32(state + 4, 0.0)
        for chunk in range(chunks):
            place = record_of(args, record + chunk, head)
            if load_f32(place + 4) > 0:
                merge_into(state, sums, load_f32(place), load_f32(place + 4), place + 32, d)
        write_out(args, state, sums, word(args, 1) + (query * kv_heads * share + head) * d * 4, d)
