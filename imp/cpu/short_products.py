"""Products of weights with tokens where byte products add up in 16 bits: AVX2 without VNNI, and machines that have only
what LLVM makes of generic code.

Two products of bytes fit in 16 bits, and where weights have 4 or 5 bits 16 do. So the sums of both halves of a block
are made side by side, columns of the left half beside such of the right one (`crossed` layouts of pack.py), and scaled
and added by one instruction, as the scales of the halves are integers (activations.py). Weights of 8 bits meet
activations of 16 instead: a product and its neighbour's add up in 32 bits at once, and hardly anything is lost. What
the integers are units of is multiplied once for a span of blocks.

What one vector of weights has is multiplied with all tokens before the next one is looked at: their sums are in
registers, and no product waits for the one before. One token goes through four groups at a time, far enough from each
other for streams of their own: it takes weights as quickly as memory gives them. Eight tokens stay in the first level
cache while all groups of a unit meet them, since eight of them are more bytes than the weights that come by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ..jit import njit
from .activations import (
    SHORTS_BLOCK_BYTES,
    SHORTS_UNITS,
    TILE,
    TILE_BLOCK_BYTES,
    TILE_COUNTS,
    TILE_SCALES,
    TILE_SUMS,
    TILE_UNITS,
)
from .emit import Emission
from .pack import BLOCK, Layout
from .simd import (
    I32,
    Micro,
    V,
    Var,
    bits,
    broadcast,
    dot_pairs_i16,
    dot_pairs_u8i8,
    f32x8,
    fma,
    i8x32,
    i16x16,
    int64,
    kept_apart,
    load,
    loop,
    micro,
    nibbles,
    prefetch,
    select,
    smaller,
    store,
    to_float,
    when,
    zeros,
)
from .vector_products import AHEAD, copy_outputs, finish, load_halves, scales_of, spread

MOST = 8  # tokens at once
_IN_REGISTERS = 4  # tokens or streams whose float sums have registers beside those of a block
_CENTRE = 16  # what sums of products with 5 bits are made without, so that they fit
_SUMS_AT = 1024  # of float sums, in scratch; what is before is for outputs
_SUMS_BYTES = MOST * 32


def short_tile(layout: Layout, tokens: int, streams: int = 1) -> Micro:
    """For so many tokens, which lie in one record of activations, from its place on; `wanted` of them are stored.
    beside: the first one's scale. sums: where floats may be kept meanwhile. span: of blocks whose unit is the same.
    streams: of groups that are read side by side, `apart` bytes from each other, their outputs `columns` bytes."""
    add_block, step, unit = _add_bytes, TILE_BLOCK_BYTES, TILE_UNITS - TILE_SCALES
    if layout.in_pairs:
        add_block, step, unit = _add_shorts, SHORTS_BLOCK_BYTES, 0

    @micro(*(int64,) * 14)
    def tile(
        weight: V, apart: V, x: V, beside: V, blocks: V, out: V, columns: V, out_stride: V, bias: V, y: V, y_stride: V,
        wanted: V, sums: V, span: V,
    ) -> None:  # fmt: skip
        every = streams * tokens
        in_memory = every > _IN_REGISTERS
        totals = [_Total(sums + (_SUMS_BYTES + t * 32), in_memory) for t in range(every)]
        of_span = [_Total(sums + t * 32, in_memory) for t in range(every)]
        by_stream = [of_span[s * tokens : (s + 1) * tokens] for s in range(streams)]
        w, at, scale, left = Var(weight), Var(x), Var(beside), Var(blocks)
        for _ in loop((blocks + span - 1) // span):
            for part in of_span:
                part.set(zeros(f32x8))
            for _ in loop(smaller(V(left.ir), span)):
                records = [V(w.ir) + apart * s for s in range(streams)]
                if streams == 1:
                    for line in range(0, layout.record.itemsize, 64):
                        prefetch(records[0] + (AHEAD + line))
                add_block(layout, records, V(at.ir), V(scale.ir), by_stream)
                w += layout.record.itemsize
                at += step
                scale += step
            for i, (part, total) in enumerate(zip(of_span, totals, strict=True)):
                own = spread(V(scale.ir) + (unit - step + i % tokens * 4), 8)
                total.set(fma(own, part.value, total.value))
            left += 0 - span
        plain = (bias | y | (wanted - tokens)).equals(0)
        places = [(columns * (i // tokens), i % tokens, total) for i, total in enumerate(totals)]
        with when(plain):
            for column, t, total in places:
                store(out + column + out_stride * t, total.value)
        with when(plain.equals(0)):
            for column, t, total in places:
                with when(wanted > t):
                    own_bias = select(bias.equals(0), bias, bias + column)
                    finish([total.value], out + column + out_stride * t, own_bias, y, y + column + y_stride * t)

    return tile


class _Total:
    """8 outputs of a token: in a register, or in memory, where the compiler does not look for registers."""

    def __init__(self, address: V, in_memory: bool) -> None:
        self.address, self.register = address, None if in_memory else Var(zeros(f32x8))
        if in_memory:
            store(address, zeros(f32x8))

    @property
    def value(self) -> V:
        return load(self.address, f32x8.ir) if self.register is None else V(self.register.ir)

    def set(self, value: V) -> None:
        if self.register is None:
            store(self.address, value)
        else:
            self.register.set(value)


Sums = Sequence[Sequence[_Total]]  # of each stream and token


def _add_bytes(layout: Layout, records: Sequence[V], x: V, beside: V, totals: Sums) -> None:
    """The part of a block of 4 or 5 bits, of each stream's record."""
    tokens, streams = range(len(totals[0])), range(len(records))
    centre = _CENTRE if layout.bits == 8 else layout.bias
    starts: list[V | None] = [_start(beside, t, centre) if centre else None for t in tokens]
    sums = [list(starts) for _ in streams]
    for v in range(layout.bits):
        loaded = [load(_integers_of(layout, record) + v * 32, i8x32.ir) for record in records]
        quads = [nibbles(each) if layout.bits == 4 else (each,) for each in loaded]
        for quad in range(len(quads[0])):
            for t in tokens:
                values = bits(_all(x + (t * BLOCK + (v * len(quads[0]) + quad) * 4)), i8x32.ir)
                for s in streams:
                    sums[s][t] = _added(sums[s][t], dot_pairs_u8i8(quads[s][quad], values))
    for record, own, to in zip(records, sums, totals, strict=True):
        (scale,) = scales_of(layout, record)
        minimum = load_halves(layout, record, "m") if layout.minimum else None
        if minimum is not None and centre:
            minimum = fma(scale, centre, minimum)
        for t, (pairs, total) in enumerate(zip(own, to, strict=True)):
            assert pairs is not None
            scales = bits(_all(beside + t * 4), i16x16.ir)
            value = fma(scale, to_float(dot_pairs_i16(pairs, scales)), total.value)
            if minimum is not None:
                value = fma(minimum, spread(beside + (TILE_SUMS - TILE_SCALES + t * 4), 8), value)
            total.set(value)


def _add_shorts(layout: Layout, records: Sequence[V], x: V, beside: V, totals: Sums) -> None:
    """The part of a block of 8 bits, of each stream's record."""
    tokens, streams, halves = range(len(totals[0])), range(len(records)), range(layout.scales)
    sums: list[list[list[V | None]]] = [[[None for _ in halves] for _ in tokens] for _ in streams]
    for pair in range(BLOCK // 2):
        half = pair * layout.scales // (BLOCK // 2)
        weights = []
        for record in records:
            raw = load(_integers_of(layout, record) + pair * 16, ir.VectorType(ir.IntType(8), 16))
            weights.append(V(Emission.builder.sext(raw.ir, i16x16.ir)))
        for t in tokens:
            values = bits(_all(x + (t * BLOCK * 2 + pair * 4)), i16x16.ir)
            for s in streams:
                sums[s][t][half] = _added(sums[s][t][half], dot_pairs_i16(weights[s], values))
    for record, own, to in zip(records, sums, totals, strict=True):
        scales = scales_of(layout, record)
        for of_token, total in zip(own, to, strict=True):
            for scale, part in zip(scales, of_token, strict=True):
                assert part is not None
                total.set(fma(scale, to_float(part), total.value))


def _integers_of(layout: Layout, record: V) -> V:
    assert layout.record.fields is not None
    return record + layout.record.fields["q"][1]


def _all(address: V) -> V:
    """The 4 bytes at an address in all lanes."""
    return broadcast(load(address, I32), 8)


def _start(beside: V, token: int, centre: int) -> V:
    """-centre times the sums of both halves of a token: what products with unsigned weights have too much."""
    start = bits(_all(beside + (TILE_COUNTS - TILE_SCALES + token * 4)), i16x16.ir)
    return start + start if centre == _CENTRE else start


def _added(total: V | None, product: V) -> V:
    return product if total is None else kept_apart(total + product)


def _one_token(layout: Layout, streams: int) -> Callable[..., int]:
    """Compiled code for one token and groups first to last - 1, whole ones, as many as there are in so many streams of
    one length. Returns the first group that is left."""
    tile, rows = short_tile(layout, 1, streams), layout.rows

    @njit
    def products(
        weights, group_bytes, first, last, x, beside, blocks, y_start, y_stride, bias, add, span, sums
    ):  # fmt: skip
        length = max(0, last - first) // streams
        for group in range(first, first + length):
            column = group * rows * 4
            w, y, own = weights + group * group_bytes, y_start + column, bias + column if bias != 0 else 0
            old, apart, columns = y if add != 0 else 0, length * group_bytes, length * rows * 4
            tile(w, apart, x, beside, blocks, y, columns, y_stride, own, old, y_stride, 1, sums, span)
        return first + length * streams

    return products


def short_products(layout: Layout) -> Callable[..., None]:
    """As matmul.share_products."""
    tile1, tile2, tile3, tile4, tile6, tile8 = (short_tile(layout, tokens) for tokens in (1, 2, 3, 4, 6, MOST))
    in_four, in_two, rows = _one_token(layout, 4), _one_token(layout, 2), layout.rows
    size, scales, step = (
        (2, SHORTS_UNITS, SHORTS_BLOCK_BYTES) if layout.in_pairs else (1, TILE_SCALES, TILE_BLOCK_BYTES)
    )

    @njit
    def products(
        weights, group_bytes, first, last, blocks, outputs, x_start, x_stride, y_start, y_stride, bias, add, start,
        stop, span, scratch,
    ):  # fmt: skip
        sums, t = scratch + _SUMS_AT, start
        while t < stop:
            tokens, here = min(stop - t, MOST - t % MOST), first
            record = x_start + t // TILE * blocks * step
            x, beside = record + t % TILE * (BLOCK * size), record + scales + t % TILE * 4
            if tokens == 1:
                end, own = min(last, outputs // rows), (y_start + t * y_stride, y_stride, bias, add, span, sums)
                here = in_four(weights, group_bytes, here, end, x, beside, blocks, *own)
                here = in_two(weights, group_bytes, here, end, x, beside, blocks, *own)
            for group in range(here, last):
                w, left = weights + group * group_bytes, outputs - group * rows
                b = bias + group * rows * 4 if bias != 0 else 0
                y = y_start + t * y_stride + group * rows * 4
                old = y if add != 0 else 0
                whole = left >= rows
                out, out_stride = (y, y_stride) if whole else (scratch, 64)
                if tokens == 1:
                    tile1(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                elif tokens == 2:
                    tile2(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                elif tokens == 3:
                    tile3(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                elif tokens == 4:
                    tile4(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                elif tokens <= 6:
                    tile6(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                else:
                    tile8(w, 0, x, beside, blocks, out, 0, out_stride, b, old, y_stride, tokens, sums, span)
                if not whole:  # the columns behind belong to another part of the row
                    copy_outputs(scratch, 64, y, y_stride, tokens, left)
            t += tokens

    return products
