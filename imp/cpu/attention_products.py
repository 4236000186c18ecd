"""Micro-kernels of attention in products of tiles (AMX), over groups of 64 keys: factors, scores, softmax, values.

A float is the sum of two bfloat16, but for 2^-16 of it: the nearest one, and the one nearest to what is left; a half is
that exactly. Of the four products of two such sums the three largest are made, so what is missing is 2^-16 of a term,
a thirtieth of what keeping keys and values in halves may cost. Products are added up in float32. In which order is the
machine's own; it is the same for every row of a tile, whatever is in the others, so a query's sums are the same bits
whoever shares the tile with it.

A factor has 32 numbers a step, in pairs: number j of 16 with number j + 16 of them, so that no lane has to move.
  left    [16 rows][16 pairs]: queries x dimensions, weights x keys
  right   [16 pairs][16 columns]: dimensions x keys, keys x columns of the values
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from .attention_chunks import EXP2, NOTHING, scale_to
from .emit import Emission
from .kept import BLOCK, FLOAT, Element
from .simd import (
    F32,
    I16,
    Micro,
    V,
    bits,
    broadcast,
    call,
    constant,
    f32x16,
    float32,
    fma,
    i32x16,
    int32,
    int64,
    largest,
    load,
    load_f32x16,
    loop,
    maximum,
    micro,
    prefetch,
    select,
    store,
    tanh,
    total,
    upper_halves,
    when,
    zeros,
)
from .tiles import ROWS, add_products_bf16, clear_tile, load_tile, store_tile

LINE = 64  # bytes of a cache line, of a tile's row, of a vector
TILE_BYTES = ROWS * LINE
STEP = 32  # numbers that one product adds up
GROUP = 64  # keys between two looks at the largest score
PARTS = 2  # bfloat16 of a float
_SIDE_BY_SIDE = [lane + 16 * right for lane in range(16) for right in (0, 1)]
SLACK = 8.0  # how far scores may be above what they are taken relative to, before that moves
SCORE_ROW = GROUP * 4  # bytes of a row's scores; then of its weights, the parts of a step side by side


def products_of(parts: int) -> tuple[tuple[int, int], ...]:
    """Which parts of a left and of a right factor meet, the smallest first. parts: of the right one."""
    return ((1, 0), (0, 0), (0, 1)) if parts == PARTS else ((1, 0), (0, 0))


# -- factors


def _upper(x: V) -> V:
    """The nearest bfloat16, as the bits of a float."""
    return (bits(x, i32x16.ir) + 0x8000) & -0x10000


def _paired(a: V, b: V, parts: int, bits_left: bool = True) -> list[V]:
    """The parts of floats a and b as pairs of bfloat16, the largest first. bits_left: whether the last is rounded."""
    found = []
    for part in range(parts):
        rounds = bits_left or part < parts - 1
        upper = (_upper(a), _upper(b)) if rounds else (bits(a, i32x16.ir), bits(b, i32x16.ir))
        found.append(upper_halves(*upper, _SIDE_BY_SIDE))
        a, b = (x - bits(u, f32x16.ir) for x, u in zip((a, b), upper, strict=True))
    return found


@micro(int64, float32, int64, int64, int64, int64)
def pair_queries(x: V, factor: V, d: V, room: V, dims: V, out: V) -> None:
    """A row of `out` [dims / 32][2 parts][16 rows][64 bytes] from d floats times a factor; the rest of dims is 0.
    room: memory for dims floats."""
    for i in loop(0, dims, 16):
        store(room + i * 4, zeros(f32x16))
    scale_to(x, factor, room, d)
    for s in loop(0, dims, STEP):
        pairs = _paired(load_f32x16(room + s * 4), load_f32x16(room + (s + 16) * 4), PARTS)
        for part, pair in enumerate(pairs):
            store(out + s * (PARTS * TILE_BYTES // STEP) + part * TILE_BYTES, pair)


def _address(there: V, address: V, otherwise: V) -> V:
    return V(Emission.builder.select(there.ir, address.ir, otherwise.ir))


def pair_keys_of(element: Element, parts: int, ahead: int) -> Micro:
    """[dims / 32][parts][16 pairs][16 keys] of K [d][16].

    nothing: zeros, as many as a row has. following: memory of which `ahead` lines are asked for with each pair."""
    row = BLOCK * element.size

    def put(a: V, b: V, out: V, s: V, j: Any) -> None:
        for part, pair in enumerate(_paired(element.load16(a), element.load16(b), parts, element is FLOAT)):
            store(out + s * (parts * TILE_BYTES // STEP) + (j * LINE + part * TILE_BYTES), pair)

    @micro(int64, int64, int64, int64, int64)
    def pair_keys(k: V, d: V, nothing: V, out: V, following: V) -> None:
        whole = d & -STEP
        for s in loop(0, whole, STEP):
            for quad in loop(0, 16, 4):
                for i in range(4):
                    for line in range(ahead):
                        prefetch(following + ((s * 16 // STEP + quad + i) * ahead + line) * LINE)
                    at = k + (s + quad + i) * row
                    put(at, at + 16 * row, out, s, quad + i)
        with when(whole < d):
            for j in loop(16):
                first, second = whole + j, whole + j + 16
                a = _address(first < d, k + first * row, nothing)
                put(a, _address(second < d, k + second * row, nothing), out, whole, j)

    return pair_keys


def pair_values_of(element: Element, parts: int) -> Micro:
    """[columns / 16][parts][16 pairs][16 columns] of V [keys][d] of two blocks, of which so many keys are there."""

    @micro(int64, int64, int64, int64, int64, int64, int64)
    def pair_values(va: V, keys_a: V, vb: V, keys_b: V, d: V, nothing: V, out: V) -> None:
        for j in loop(16):
            a = _address(j < keys_a, va + j * d * element.size, nothing)
            b = _address(j < keys_b, vb + j * d * element.size, nothing)
            for c in loop(0, d - 15, 16):
                x, y = element.load16(a + c * element.size), element.load16(b + c * element.size)
                for part, pair in enumerate(_paired(x, y, parts, element is FLOAT)):
                    store(out + (c * (parts * TILE_BYTES // 16) + j * LINE) + part * TILE_BYTES, pair)
            with when((d & 15) > 0):
                x, y = (_widened(element.load8(v + (d - 8) * element.size)) for v in (a, b))
                for part, pair in enumerate(_paired(x, y, parts, element is FLOAT)):
                    store(out + ((d & -16) * (parts * TILE_BYTES // 16) + j * LINE) + part * TILE_BYTES, pair)

    return pair_values


def _widened(v: V) -> V:
    """8 lanes and 8 zeros."""
    b = Emission.builder
    order = ir.Constant(ir.VectorType(ir.IntType(32), 16), list(range(16)))
    return V(b.shuffle_vector(v.ir, ir.Constant(v.type, [0.0] * 8), order))


# -- products


@dataclass(frozen=True, slots=True)
class _Lie:
    """How the rows of a factor lie, and its parts."""

    row: int  # bytes from one to the next
    part: int


WHOLE = _Lie(LINE, TILE_BYTES)
AS_SCORES = _Lie(SCORE_ROW, LINE)


def _multiply(left: list[V], right: list[V], parts: int, lie: _Lie) -> None:
    """Sums number len(right) r + c take in left r times right c, addresses of the first parts of factors. lie: of left
    ones.

    Of one left factor both parts are held, and many right ones pass by; of two, either part in turn."""
    if len(left) == 1:
        for part in range(PARTS):
            load_tile(4 + part, left[0] + part * lie.part, lie.row)
        for right_part in range(parts):
            for c, address in enumerate(right):
                load_tile(6 + c % 2, address + right_part * TILE_BYTES, LINE)
                for left_part, other in products_of(parts):
                    if other == right_part:
                        add_products_bf16(c, 4 + left_part, 6 + c % 2)
        return
    now: list[int | None] = [None, None]
    for pair in products_of(parts):
        for side, (addresses, part, way) in enumerate(zip((left, right), pair, (lie, WHOLE), strict=True)):
            if now[side] != part:
                for i, address in enumerate(addresses):
                    load_tile(4 + 2 * side + i, address + part * way.part, way.row)
            now[side] = part
        for r in range(len(left)):
            for c in range(len(right)):
                add_products_bf16(len(right) * r + c, 4 + r, 6 + c)


def scores_of(blocks: int, width: int, parts: int) -> Micro:
    """Scores of `blocks` times 16 rows and `width` times 16 keys, in rows of SCORE_ROW bytes."""

    @micro(int64, int64, int64, int64)
    def scores(q: V, k: V, dims: V, out: V) -> None:
        for tile in range(blocks * width):
            clear_tile(tile)
        for s in loop(0, dims, STEP):
            left = [q + (dims * r + s) * (PARTS * TILE_BYTES // STEP) for r in range(blocks)]
            right = [k + (dims * c + s) * (parts * TILE_BYTES // STEP) for c in range(width)]
            _multiply(left, right, parts, WHOLE)
        for r in range(blocks):
            for c in range(width):
                store_tile(width * r + c, out + (r * ROWS * SCORE_ROW + c * LINE), SCORE_ROW)

    return scores


def values_of(blocks: int, width: int, parts: int) -> Micro:
    """o [rows][columns] of `blocks` times 16 rows and `width` times 16 columns += weights times V, of `steps` times 32
    keys. v: the first column's."""

    @micro(int64, int64, int64, int64, int64)
    def values(weights: V, v: V, steps: V, columns: V, o: V) -> None:
        places = [o + columns * (r * ROWS * 4) + c * LINE for r in range(blocks) for c in range(width)]
        for tile, place in enumerate(places):
            load_tile(tile, place, columns * 4)
        for s in loop(steps):
            left = [weights + s * (PARTS * LINE) + r * (ROWS * SCORE_ROW) for r in range(blocks)]
            right = [v + s * columns * (parts * TILE_BYTES // 16) + c * (parts * TILE_BYTES) for c in range(width)]
            _multiply(left, right, parts, AS_SCORES)
        for tile, place in enumerate(places):
            store_tile(tile, place, columns * 4)

    return values


# -- softmax


def _exp2(x: V) -> V:
    """2^x for x <= 0 to 2e-7 relative; exactly 1 at 0, and 0 far below."""
    whole = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum's low bits are the nearest integer
    r = x - whole
    p = fma(r, EXP2[6], EXP2[5])
    for c in EXP2[4::-1]:
        p = fma(p, r, c)
    none, all_lanes, as_set = zeros(f32x16), constant(-1, I16), constant(4, ir.IntType(32))
    return call("llvm.x86.avx512.mask.scalef.ps.512", f32x16.ir, p, whole, none, all_lanes, as_set)


@micro(int64, float32)
def cap_group(scores: V, cap: V) -> None:
    for i in range(0, GROUP, 16):
        at = scores + i * 4
        store(at, broadcast(cap, 16) * tanh(load_f32x16(at)))


@micro(int64, int32, int32, int64)
def hide_keys(scores: V, first: V, after: V, blocks: V) -> None:
    """Scores of keys outside first..after, and of blocks whose bit is not set, become NOTHING, whatever they were."""
    b = Emission.builder
    for block in range(GROUP // BLOCK):
        there = (blocks & (1 << block)) > 0
        end = V(b.select(there.ir, after.ir, constant(0, after.type).ir))
        lane = V(ir.Constant(i32x16.ir, list(range(block * BLOCK, (block + 1) * BLOCK))))
        seen = (lane >= broadcast(first, 16)) & (lane < broadcast(end, 16))
        at = scores + block * LINE
        store(at, select(seen, load_f32x16(at), constant(NOTHING, f32x16.ir)))


@micro(int64, int64, int64, int64, int64)
def weigh(scores: V, m: V, l: V, o: V, columns: V) -> None:
    """One row, one group: its scores become weights 2^(score - m), in their place, a row of the left factor of values.
    m, l [16] (a sum per lane) and o [columns] follow."""
    given = [load_f32x16(scores + i * 4) for i in range(0, GROUP, 16)]
    before = load(m, F32)
    top = largest(maximum(maximum(given[0], given[1]), maximum(given[2], given[3])))
    with when(top > before + SLACK):
        factor = _exp2(broadcast(before - top, 16))
        store(m, top)
        store(l, load_f32x16(l) * factor)
        for i in loop(0, columns, 16):
            store(o + i * 4, load_f32x16(o + i * 4) * factor)
    now = broadcast(load(m, F32), 16)
    found = [_exp2(each - now) for each in given]
    store(l, load_f32x16(l) + ((found[0] + found[1]) + (found[2] + found[3])))
    for s in range(GROUP // STEP):
        for part, pair in enumerate(_paired(found[2 * s], found[2 * s + 1], PARTS)):
            store(scores + (s * PARTS + part) * LINE, pair)


@micro(int64)
def weigh_nothing(scores: V) -> None:
    """The weights of a row that sees no key of the group."""
    for i in range(GROUP // STEP * PARTS):
        store(scores + i * LINE, zeros(f32x16))


@micro(int64, returns=float32)
def whole_weight(l: V) -> V:
    return total(load_f32x16(l))
