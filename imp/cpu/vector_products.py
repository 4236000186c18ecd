"""Products of some rows of weights with a few tokens, in vectors: floats on any machine, integers where byte products
add up in 32 bits.

One vector of weights is 4 columns of as many rows as a vector has floats, and meets the 4 activations of a token
broadcast to all rows, so nothing is ever summed across a register. Float layouts take float32 rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from llvmlite import ir

from ..jit import njit
from .activations import COUNTED, TILE, TILE_BLOCK_BYTES, TILE_COUNTS, TILE_SCALES, TILE_SUMS
from .pack import BLOCK, Layout
from .simd import (
    F32,
    I16,
    I32,
    Micro,
    V,
    Var,
    Vector,
    add_quads_u8i8,
    bits,
    broadcast,
    f32x8,
    f32x16,
    fma,
    from_bf16,
    from_half,
    i8x32,
    i8x64,
    int64,
    lanes_of,
    load,
    load_f32,
    load_f32x16,
    loop,
    micro,
    nibbles,
    prefetch,
    runs,
    store,
    store_f32,
    to_float,
    when,
    zeros,
)

AHEAD = 2048  # bytes the prefetch runs ahead of the weights; 1 to 4 KiB are the same within the noise
FLOATS: dict[int, Vector] = {8: f32x8, 16: f32x16}
OCTETS: dict[int, Vector] = {8: i8x32, 16: i8x64}
ARGUMENTS = (int64,) * 9
MOST = 4  # tokens whose sums fit in the registers of AVX2


def scales_of(layout: Layout, record: V) -> list[V]:
    """The scales of a record's rows, as floats."""
    names = ("d", "d1")[: layout.scales]
    return [load_halves(layout, record, name) for name in names]


def load_halves(layout: Layout, record: V, field: str) -> V:
    assert layout.record.fields is not None
    return from_half(load(record + layout.record.fields[field][1], ir.VectorType(I16, layout.rows)))


def added(layout: Layout, scales: Sequence[V], minimum: V | None, integers: Sequence[V], own: Sequence[V], to: V) -> V:
    """A block's part added to a token's outputs. integers: the sums of both halves, as floats; own: the token's scale
    for each, and the sum of its values.

    The order of these operations is what makes a result the same bits everywhere."""
    (left, right), (left_scale, right_scale, values) = integers, own
    if layout.scales == 1:
        to = fma(scales[0], fma(right, right_scale, left * left_scale), to)
    else:
        to = fma(scales[1], right * right_scale, fma(scales[0], left * left_scale, to))
    return to if minimum is None else fma(minimum, values, to)


def integer_tile(layout: Layout, tokens: int) -> Micro:
    """For so many tokens, which lie in one record of activations. `beside`: the first one's first scale."""
    kind, field = FLOATS[layout.rows], layout.record.fields
    assert field is not None

    @micro(*ARGUMENTS)
    def tile(weight: V, x: V, beside: V, blocks: V, out: V, out_stride: V, bias: V, y: V, y_stride: V) -> None:
        if not runs("vnni") or (tokens > MOST and not runs("avx512")):
            return  # never called: there is no such instruction, or there are not so many registers
        totals = [Var(zeros(kind)) for _ in range(tokens)]
        w, at, scale = Var(weight), Var(x), Var(beside)
        for _ in loop(blocks):
            here, near = V(w.ir), V(scale.ir)
            for line in range(0, layout.record.itemsize, 64):
                prefetch(here + (AHEAD + line))
            counts = near + (TILE_COUNTS - TILE_SCALES)
            factors = (0, TILE * 4, TILE_SUMS - TILE_SCALES)
            scales = scales_of(layout, here)
            minimum = load_halves(layout, here, "m") if layout.minimum else None
            integers = _block_sums(layout, here + field["q"][1], V(at.ir), counts, tokens)
            for t, (total, sums) in enumerate(zip(totals, integers, strict=True)):
                own = [spread(near + (offset + t * 4), layout.rows) for offset in factors]
                halves = [to_float(half) for half in sums]
                total.set(added(layout, scales, minimum, halves, own, V(total.ir)))
            w += layout.record.itemsize
            at += TILE_BLOCK_BYTES
            scale += TILE_BLOCK_BYTES
        for t, total in enumerate(totals):
            finish([V(total.ir)], out + out_stride * t, bias, y, y + y_stride * t)

    return tile


def spread(address: V, lanes: int) -> V:
    """The float at an address in every lane."""
    return broadcast(load(address, F32), lanes)


def _quad(x: V, token: int, quad: int, lanes: int) -> V:
    """4 activations of a token in every lane."""
    return bits(broadcast(load(x + (token * BLOCK + quad * 4), I32), lanes), OCTETS[lanes].ir)


def _block_sums(layout: Layout, weights: V, x: V, counts: V, tokens: int) -> Iterable[list[V]]:
    """Of each token the integer sums of both halves of a block."""
    lanes = layout.rows
    loaded = [load(weights + v * 4 * lanes, OCTETS[lanes].ir) for v in range(layout.bits)]
    if layout.bits == 4:
        low, high = zip(*map(nibbles, loaded), strict=True)
        loaded = [*low, *high]
    signed = layout.bits == 8 and not layout.minimum
    offset = 128 if signed else layout.bias
    return _unsigned_sums([q ^ -128 for q in loaded] if signed else loaded, x, counts, tokens, offset, lanes)


def _start(counts: V, half: int, token: int, offset: int, lanes: int) -> V:
    """-offset times the sum of a half's activations: what the weights' integers have too much."""
    if not offset:
        return zeros_of(lanes)
    start = broadcast(load(counts + (half * TILE + token) * 4, I32), lanes)
    times = offset // COUNTED  # a power of 2
    return start << (times.bit_length() - 1) if times > 1 else start


def zeros_of(lanes: int) -> V:
    """Integers."""
    return bits(zeros(FLOATS[lanes]), ir.VectorType(I32, lanes))


def _unsigned_sums(quads: Sequence[V], x: V, counts: V, tokens: int, offset: int, lanes: int) -> Iterator[list[V]]:
    """Of 8 vectors of unsigned bytes. A token's are made when they are asked for, so that no registers are needed for
    those of all."""
    for t in range(tokens):
        sums = []
        for half in (0, 1):
            total = _start(counts, half, t, offset, lanes)
            for quad in range(half * 4, half * 4 + 4):
                total = add_quads_u8i8(total, quads[quad], _quad(x, t, quad, lanes))
            sums.append(total)
        yield sums


def float_tile(layout: Layout, tokens: int) -> Micro:
    """For so many tokens, whose rows lie `x_stride` bytes apart."""
    widen: Callable[[V], V] = {"f16": from_half, "bf16": from_bf16, "f32": _as_floats}[layout.name]
    number, size = (I32, 4) if layout.name == "f32" else (I16, 2)

    @micro(*ARGUMENTS)
    def tile(weight: V, x: V, x_stride: V, blocks: V, out: V, out_stride: V, bias: V, y: V, y_stride: V) -> None:
        if tokens > MOST and not runs("avx512"):
            return  # never called
        lanes = 16 if runs("avx512") else 8
        parts, raw = range(layout.rows // lanes), ir.VectorType(number, lanes)
        sums = [[Var(zeros(FLOATS[lanes])) for _ in parts] for _ in range(tokens)]
        rows = [x + x_stride * t for t in range(tokens)]
        for column in loop(blocks):
            here = weight + column * layout.record.itemsize
            prefetch(here + AHEAD)
            weights = [widen(load(here + part * lanes * size, raw)) for part in parts]
            for row, totals in zip(rows, sums, strict=True):
                value = spread(row + column * 4, lanes)
                for total, w in zip(totals, weights, strict=True):
                    total.set(fma(w, value, V(total.ir)))
        for t, totals in enumerate(sums):
            finish([V(total.ir) for total in totals], out + out_stride * t, bias, y, y + y_stride * t)

    return tile


def _as_floats(raw: V) -> V:
    return bits(raw, lanes_of(raw, F32))


def finish(parts: Sequence[V], out: V, bias: V, adds: V, residual: V) -> None:
    """Store a token's outputs, plus the biases where their address is not 0, and plus what is at `residual` where
    `adds` is not."""
    for i, part in enumerate(parts):
        total, offset = Var(part), i * part.type.count * 4
        with when(bias > 0):
            total.set(total + load(bias + offset, part.type))
        with when(adds > 0):
            total.set(total + load(residual + offset, part.type))
        store(out + offset, V(total.ir))


@njit
def copy_outputs(source, source_stride, y, y_stride, tokens, outputs):
    """So many outputs of some tokens, from rows of floats to others."""
    whole = outputs // 16 * 16
    for row in range(tokens):
        here, there = source + row * source_stride, y + row * y_stride
        for i in range(0, whole, 16):
            store(there + i * 4, load_f32x16(here + i * 4))
        for i in range(whole, outputs):
            store_f32(there + i * 4, load_f32(here + i * 4))
