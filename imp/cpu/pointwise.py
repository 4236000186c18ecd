"""All of a step but matrix products and attention: embedding, norms, gating, rope, storing keys and values, softcap.

Rows of floats are `stride` bytes apart, which is a multiple of 32, so whole vectors may be stored past a row's last
column. A producer whose result only integer matrices read writes it quantised at once, in the tiles of matmul.py.
Every kernel handles a token by itself, in a fixed order, so a token's result does not depend on the others.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import njit
from .activations import are_many, factors_row, top_of, top_of_products
from .kept import BLOCK as KV_BLOCK
from .kept import Kept, turn
from .kv import KEPT
from .pack import BLOCK, LAYOUTS, Layout
from .program import (
    STEP_POOLED,
    STEP_POOLED_IDS,
    STEP_POSITIONS,
    STEP_PROMPTS,
    STEP_SLOTS,
    STEP_THREADS,
    STEP_TOKEN_IDS,
    STEP_TOKENS,
    STEP_WANTED,
    STEP_WANTED_IDS,
    Kernel,
    count,
    kernel,
)
from .shares import part_of, parts, per_token, span_of, units_of
from .simd import (
    V,
    exp,
    floats,
    fma,
    lane,
    load_bf16,
    load_f16,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i8,
    load_i32,
    load_u8,
    micro,
    prefetch,
    prefetch_to_write,
    real,
    same,
    splat,
    splat16,
    store,
    store_f32,
    tanh,
    total,
    word,
)

GLU_COLUMNS, GLU_COLUMNS_OF_FEW = 512, 256  # of a unit; whole quantisation blocks
CAP_COLUMNS = 4096
LINE = 64  # bytes of a cache line


@count
def _parts_of_tokens(args, step):
    return parts(word(step, STEP_TOKENS), word(args, 2), step)


@kernel(_parts_of_tokens)
def quantise(args, step, unit, scratch):
    """args: 0 x, 1 stride, 2 columns, what is made of it or 0: 3 tiles, 4 shorts, 5 pairs"""
    columns, prompts = word(args, 2), word(step, STEP_PROMPTS)
    first, stop, begin, end = part_of(unit, word(step, STEP_TOKENS), columns, step)
    for token in range(first, stop):
        x = word(args, 0) + token * word(args, 1)
        top = top_of(x, columns)
        factors_row(x, token, begin, end, columns, word(args, 3), word(args, 4), word(args, 5), prompts, top)


# Embedding


def _embed(layout: Layout) -> Kernel:
    fields = {name: layout.record.fields[name][1] for name in layout.record.names}  # type: ignore[index, union-attr]
    record, rows, columns_per_record = layout.record.itemsize, layout.rows, layout.columns
    first_scale, second_scale = fields.get("d", 0), fields.get("d1", fields.get("d", 0))
    minimum, integers, bias = fields.get("m", -1), fields.get("q", 0), float(layout.bias)
    nibbles, halves, wide = layout.bits == 4, layout.name == "f16", layout.name == "f32"
    # of the first of the rows side by side; the others' are as far from it as the columns beside each other are many
    places = np.array([layout.place(column, 0) for column in range(BLOCK)] if layout.integers else [(0, 0)], np.int64)
    width = layout.place(0, 1)[0] if layout.integers else 0

    @njit
    def integer_record(at, side, scale, y):
        for column in range(BLOCK):
            there = at + integers + side * width + places[column, 0]
            if nibbles:
                value = float(load_u8(there) >> places[column, 1] & 15) - bias
            else:
                value = float(load_i8(there)) - bias
            value *= load_f16(at + (first_scale if column < BLOCK // 2 else second_scale) + side * 2)
            if minimum >= 0:
                value += load_f16(at + minimum + side * 2)
            store_f32(y + column * 4, value * scale)

    @njit
    def float_record(at, side, scale, y):
        if wide:
            store_f32(y, load_f32(at + side * 4) * scale)
        elif halves:
            store_f32(y, load_f16(at + side * 2) * scale)
        else:
            store_f32(y, load_bf16(at + side * 2) * scale)

    row = integer_record if layout.integers else float_record

    @kernel(per_token, name=f"pointwise.embed_{layout.name}")
    def embed(args, step, unit, scratch):
        """args: 0 table, 1 records in a row, 2 bytes of a group, 3 scale, 4 y, 5 stride"""
        first, stop = span_of(unit, word(step, STEP_TOKENS))
        for token in range(first, stop):
            index = load_i32(word(step, STEP_TOKEN_IDS) + token * 4)
            at = word(args, 0) + index // rows * word(args, 2)
            y = word(args, 4) + token * word(args, 5)
            for i in range(word(args, 1)):
                row(at + i * record, index % rows, real(args, 3), y + i * columns_per_record * 4)

    return embed


EMBEDS = {name: _embed(layout) for name, layout in LAYOUTS.items()}


# Norms


@njit
def _rms_inverse(x, columns, eps):
    """1 / sqrt(mean(x^2) + eps)"""
    sums = splat16(0.0)
    whole = columns // 16 * 16
    for i in range(0, whole, 16):
        v = load_f32x16(x + i * 4)
        sums = fma(v, v, sums)
    squares = total(sums)
    for i in range(whole, columns):
        squares += load_f32(x + i * 4) * load_f32(x + i * 4)
    return np.float32(1.0) / np.sqrt(squares / np.float32(columns) + eps)


@njit
def _scaled(x, weight, columns, factor, y):
    whole = columns // 16 * 16
    for i in range(0, whole, 16):
        store(y + i * 4, load_f32x16(x + i * 4) * splat16(factor) * load_f32x16(weight + i * 4))
    for i in range(whole, columns, 8):
        store(y + i * 4, load_f32x8(x + i * 4) * splat(factor) * load_f32x8(weight + i * 4))


@njit
def _norm_row(args, x, row, begin, end, prompts, scratch):
    """Columns begin..end of what a row `x` becomes, which is row number `row` of the results."""
    columns = word(args, 2)
    y = word(args, 5) + row * word(args, 6) if word(args, 5) != 0 else scratch
    factor = _rms_inverse(x, columns, real(args, 4))
    _scaled(x + begin * 4, word(args, 3) + begin * 4, end - begin, factor, y + begin * 4)
    tiles, shorts = word(args, 7), word(args, 8)
    top = top_of_products(x, word(args, 3), columns, factor) if tiles != 0 or shorts != 0 else np.float32(0)
    factors_row(y, row, begin, end, columns, tiles, shorts, word(args, 9), prompts, top)


@kernel(_parts_of_tokens)
def norm(args, step, unit, scratch):
    """args: 0 x, 1 stride, 2 columns, 3 weight, 4 eps, 5 y or 0, 6 stride of y, y or 0 as 7 tiles, 8 shorts, 9 pairs"""
    first, stop, begin, end = part_of(unit, word(step, STEP_TOKENS), word(args, 2), step)
    for token in range(first, stop):
        _norm_row(args, word(args, 0) + token * word(args, 1), token, begin, end, word(step, STEP_PROMPTS), scratch)


@count
def _parts_of_wanted(args, step):
    return parts(word(step, STEP_WANTED), word(args, 2), step)


@kernel(_parts_of_wanted)
def norm_wanted(args, step, unit, scratch):
    """The rows that want logits, one after the other. args: as norm's"""
    first, stop, begin, end = part_of(unit, word(step, STEP_WANTED), word(args, 2), step)
    for i in range(first, stop):
        token = load_i32(word(step, STEP_WANTED_IDS) + i * 4)
        _norm_row(args, word(args, 0) + token * word(args, 1), i, begin, end, word(step, STEP_PROMPTS), scratch)


@count
def _parts_of_pooled(args, step):
    return parts(word(step, STEP_POOLED), word(args, 2), step)


@kernel(_parts_of_pooled)
def norm_pooled(args, step, unit, scratch):
    """The rows whose hidden states are wanted, one after the other. args: as norm's"""
    first, stop, begin, end = part_of(unit, word(step, STEP_POOLED), word(args, 2), step)
    for i in range(first, stop):
        token = load_i32(word(step, STEP_POOLED_IDS) + i * 4)
        _norm_row(args, word(args, 0) + token * word(args, 1), i, begin, end, word(step, STEP_PROMPTS), scratch)


@kernel(per_token)
def norm_add(args, step, unit, scratch):
    """y += norm(x). args: 0 x, 1 stride, 2 columns, 3 weight, 4 eps, 5 y, 6 stride of y"""
    first, stop = span_of(unit, word(step, STEP_TOKENS))
    for token in range(first, stop):
        x, y = word(args, 0) + token * word(args, 1), word(args, 5) + token * word(args, 6)
        columns, weight = word(args, 2), word(args, 3)
        factor = splat(_rms_inverse(x, columns, real(args, 4)))
        for i in range(0, columns, 8):
            store(y + i * 4, load_f32x8(y + i * 4) + load_f32x8(x + i * 4) * factor * load_f32x8(weight + i * 4))


# Gated activations


@micro(floats, returns=same)
def _silu(x: V) -> V:
    return x / (exp(0.0 - x) + 1.0)


@micro(floats, returns=same)
def _gelu_tanh(x: V) -> V:
    """(1 + tanh u) / 2 is 1 / (1 + e^-2u), which loses nothing where tanh u is near -1."""
    inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
    return x / (exp(inner * -2.0) + 1.0)


def _gated(activation):
    @njit
    def gated(gate, columns, first, stop, y):
        """act(gate) * up of columns first..stop. gate: a row of columns, then as many of up. y: a row."""
        up = gate + columns * 4
        whole = first + (stop - first) // 16 * 16
        for i in range(first, whole, 16):
            store(y + i * 4, activation(load_f32x16(gate + i * 4)) * load_f32x16(up + i * 4))
        for i in range(whole, stop, 8):
            store(y + i * 4, activation(load_f32x8(gate + i * 4)) * load_f32x8(up + i * 4))

    return gated


GATED = {name: _gated(activation) for name, activation in (("silu", _silu), ("gelu_tanh", _gelu_tanh))}


@count
def _glu_units(args, step):
    """Of many tokens, a part of one; of few, some columns of all, as they were computed."""
    tokens = word(step, word(args, 8))
    if are_many(tokens, step):
        return tokens * ((word(args, 2) + GLU_COLUMNS - 1) // GLU_COLUMNS)
    return (word(args, 2) + GLU_COLUMNS_OF_FEW - 1) // GLU_COLUMNS_OF_FEW if tokens > 0 else 0


def _glu(name: str) -> Kernel:
    gated = GATED[name]

    @kernel(_glu_units, name=f"pointwise.glu_{name}")
    def glu(args, step, unit, scratch):
        """args: 0 gate_up, 1 stride, 2 columns of y, 3 y or 0, 4 stride of y, y or 0 as 5 tiles, 6 shorts, 7 pairs, 8
        the word of the step that says how many tokens"""
        columns, tokens, prompts = word(args, 2), word(step, word(args, 8)), word(step, STEP_PROMPTS)
        if are_many(tokens, step):
            shares = (columns + GLU_COLUMNS - 1) // GLU_COLUMNS
            begin, end = unit // shares, unit // shares + 1
            first, width = unit % shares * GLU_COLUMNS, GLU_COLUMNS
        else:
            begin, end = 0, tokens
            first, width = unit * GLU_COLUMNS_OF_FEW, GLU_COLUMNS_OF_FEW
        for token in range(begin, end):
            y = word(args, 3) + token * word(args, 4) if word(args, 3) != 0 else scratch
            row = word(args, 0) + token * word(args, 1)
            last = min(first + width, columns)
            gated(row, columns, first, last, y)
            tiles, shorts, pairs = word(args, 5), word(args, 6), word(args, 7)
            factors_row(y, token, first, last, columns, tiles, shorts, pairs, prompts, np.float32(0))

    return glu


GLUS = {name: _glu(name) for name in GATED}


# Rope and the KV cache


@njit
def _rotate(x, cos, sin, half):
    """(x[i], x[i + half]) turn by the angle of column i."""
    whole = half // 16 * 16
    for i in range(0, whole, 16):
        a, b = load_f32x16(x + i * 4), load_f32x16(x + (i + half) * 4)
        c, s = load_f32x16(cos + i * 4), load_f32x16(sin + i * 4)
        store(x + i * 4, a * c - b * s)
        store(x + (i + half) * 4, b * c + a * s)
    for i in range(whole, half):
        a, b = load_f32(x + i * 4), load_f32(x + (i + half) * 4)
        c, s = load_f32(cos + i * 4), load_f32(sin + i * 4)
        store_f32(x + i * 4, a * c - b * s)
        store_f32(x + (i + half) * 4, b * c + a * s)


@njit
def _prepared(args, x, y, norm_weight, eps, position):
    """One head from x to y: norm where there is a weight, rope where there are tables."""
    d, half = word(args, 5), word(args, 8)
    if norm_weight != 0:
        _scaled(x, norm_weight, d, _rms_inverse(x, d, eps), y)
    else:
        for i in range(0, d, 8):
            store(y + i * 4, load_f32x8(x + i * 4))
    if half != 0:
        _rotate(y, word(args, 6) + position * half * 4, word(args, 7) + position * half * 4, half)


@njit
def _are_very_few(tokens, step):
    return tokens < 4 * word(step, STEP_THREADS)


@count
def _rotate_units(args, step):
    """Of many tokens, a record's; of few, one; of very few, a kv head of one: in the order in which attention has
    them."""
    tokens = word(step, STEP_TOKENS)
    if are_many(tokens, step):
        return units_of(tokens)
    return tokens * word(args, 4) if _are_very_few(tokens, step) else tokens


def _rotate_store(kept: Kept) -> Kernel:
    store_key, store_value, turns = kept.store_key, kept.store_value, kept.format.turns

    @njit
    def place_of(args, step, token, head):
        """Where the keys of a kv head begin that this token's goes beside."""
        slot = load_i32(word(step, STEP_SLOTS) + token * 4)
        block = word(args, 13) + slot // KV_BLOCK * word(args, 14)
        return block + head * 2 * KV_BLOCK * word(args, 15)

    @njit
    def queries_of(args, head):
        """The first query head that goes with this kv head, and the one after the last."""
        heads, kv_heads = word(args, 3), word(args, 4)
        return head * heads // kv_heads, (head + 1) * heads // kv_heads

    @njit
    def ask_for(args, step, token, head):
        """The lines that rotate_head will write. Of many tokens, neighbours write the same ones."""
        d, place = word(args, 5), place_of(args, step, token, head)
        first, after = queries_of(args, head)
        for line in range(0, KV_BLOCK * word(args, 15), LINE):  # a key's numbers are all over the keys of its block
            prefetch(place + line)
        q = word(args, 2) + (token * word(args, 3) + first) * d * 4
        for line in range(0, (after - first) * d * 4, LINE):
            prefetch_to_write(q + line)

    @njit
    def rotate_head(args, step, token, head, scratch):
        """A kv head of one token, and the query heads that attend to it."""
        heads, kv_heads, d, record = word(args, 3), word(args, 4), word(args, 5), word(args, 15)
        position = load_i32(word(step, STEP_POSITIONS) + token * 4)
        place, offset = place_of(args, step, token, head), load_i32(word(step, STEP_SLOTS) + token * 4) % KV_BLOCK
        x, (first, after) = word(args, 0) + token * word(args, 1), queries_of(args, head)
        for query in range(first, after):
            q = word(args, 2) + (token * heads + query) * d * 4
            _prepared(args, x + query * d * 4, q, word(args, 9), real(args, 10), position)
            if turns:
                turn(q, d)
        memory = scratch + d * 4
        _prepared(args, x + (heads + head) * d * 4, scratch, word(args, 11), real(args, 12), position)
        if turns:
            turn(scratch, d)
            centre = word(args, 16) + head * d * 4
            for i in range(0, d, 8):
                store(scratch + i * 4, load_f32x8(scratch + i * 4) - load_f32x8(centre + i * 4))
        store_key(scratch, place, offset, d, record, memory)
        v = x + (heads + kv_heads + head) * d * 4
        if turns:
            for i in range(0, d, 8):
                store(scratch + i * 4, load_f32x8(v + i * 4))
            turn(scratch, d)
            v = scratch
        store_value(v, place, offset, d, record, memory)

    @kernel(_rotate_units, name=f"pointwise.rotate_store_{kept.name}")
    def rotate_store(args, step, unit, scratch):
        """args: 0 qkv, 1 stride, 2 q out [T, H*d], 3 heads, 4 kv heads, 5 head size, 6 cos, 7 sin, 8 their columns or
        0, 9 q norm or 0, 10 its eps, 11 k norm or 0, 12 its eps, 13 the layer's cache, 14 bytes of a block in it,
        15 bytes of a record, 16 centres [kv heads, d] of turned keys"""
        kv_heads, tokens = word(args, 4), word(step, STEP_TOKENS)
        if _are_very_few(tokens, step):
            ask_for(args, step, unit // kv_heads, unit % kv_heads)
            rotate_head(args, step, unit // kv_heads, unit % kv_heads, scratch)
            return
        many = are_many(tokens, step)
        first, stop = span_of(unit, tokens) if many else (unit, unit + 1)
        for token in range(first, stop):
            for head in range(kv_heads):
                if not many:
                    ask_for(args, step, token, head)
                rotate_head(args, step, token, head, scratch)

    return rotate_store


ROTATE_STORES = {kept: _rotate_store(kept) for kept in KEPT.values()}


# Logits


@count
def _cap_units(args, step):
    return word(step, STEP_WANTED) * ((word(args, 2) + CAP_COLUMNS - 1) // CAP_COLUMNS)


@kernel(_cap_units)
def softcap(args, step, unit, scratch):
    """y = cap * tanh(y / cap). args: 0 y, 1 stride, 2 columns, 3 cap"""
    columns, cap = word(args, 2), real(args, 3)
    shares = (columns + CAP_COLUMNS - 1) // CAP_COLUMNS
    row, first = word(args, 0) + unit // shares * word(args, 1), unit % shares * CAP_COLUMNS
    stop = min(first + CAP_COLUMNS, columns)
    whole = first + (stop - first) // 8 * 8
    for i in range(first, whole, 8):
        store(row + i * 4, tanh(load_f32x8(row + i * 4) / cap) * cap)
    for i in range(whole, stop):  # rows of logits touch each other
        store_f32(row + i * 4, lane(tanh(splat(load_f32(row + i * 4)) / cap) * cap, 0))
