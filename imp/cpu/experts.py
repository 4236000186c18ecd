"""Mixtures of experts: who goes where, its products, and their sum.

An *entry* is a token with one of its K experts: entry k of token t is number t * K + k. Entries of an expert lie
together as rows, in order of their numbers, from a whole record of activations.py on. What is multiplied is an *item*:
up to TOKENS_AT_ONCE rows of one expert. A row's numbers are those of its products, which do not depend on its place,
and a token adds its rows up in the order of k: so its bits depend on nothing but itself.

    scores -> route -> arrange; x -> spread -> products (gate, up) -> gate -> products (down) -> weigh
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..jit import njit
from ..model.buffers import Buffer
from ..model.ops import Experts
from ..weights.checkpoint import UnsupportedModel, Weight
from .activations import SPAN, TILE, quantise_row, quantised_bytes, shorts_bytes
from .matmul import TOKENS_AT_ONCE, UNIT_BYTES, share_products
from .pack import BLOCK, BYTES, FLOATS, LAYOUTS, SHORTS, Layout, Packed
from .pointwise import GATED, GLU_COLUMNS
from .program import STEP_TOKENS, Argument, Kernel, Op, Placed, count, kernel, row_bytes
from .shares import per_token, span_of, units_of
from .simd import exp, fma, lane, load_f32, load_f32x8, load_i32, splat, store, store_f32, store_i32, word

# What `arrange` makes, int32: how many items there are, then each one's expert, first row and the row behind its last
ITEMS, ITEM_WORDS = 1, 3
LOW = np.float32(-np.inf)

# Argument block of products
TABLE, BLOCKS, OUTPUTS, GROUP_BYTES, GROUPS, GROUPS_PER_UNIT = range(6)
X, X_STRIDE, Y, Y_STRIDE, WORK = range(6, 11)


@kernel(per_token)
def route(args, step, unit, scratch):
    """The K experts with the largest scores, the largest first, of equals the first, and their weights.

    args: 0 scores, 1 stride, 2 E, 3 K, 4 whether weights add up to 1, 5 experts out int32 [T, K], 6 weights out float32
    [T, K]"""
    count, chosen = word(args, 2), word(args, 3)
    first, stop = span_of(unit, word(step, STEP_TOKENS))
    for token in range(first, stop):
        scores = word(args, 0) + token * word(args, 1)
        experts, weights = word(args, 5) + token * chosen * 4, word(args, 6) + token * chosen * 4
        for e in range(count):
            store_f32(scratch + e * 4, load_f32(scores + e * 4))
        top, total = LOW, np.float32(0.0)
        for k in range(chosen):
            at, best = 0, LOW
            for e in range(count):
                if load_f32(scratch + e * 4) > best:
                    at, best = e, load_f32(scratch + e * 4)
            top = best if k == 0 else top
            weight = lane(exp(splat(best - top)), 0)
            total += weight
            store_i32(experts + k * 4, at)
            store_f32(weights + k * 4, weight)
            store_f32(scratch + at * 4, LOW)
        if word(args, 4) == 0:
            for e in range(count):
                if load_f32(scratch + e * 4) > LOW:
                    total += lane(exp(splat(load_f32(scratch + e * 4) - top)), 0)
        for k in range(chosen):
            store_f32(weights + k * 4, load_f32(weights + k * 4) / total)


@count
def once(args, step):
    return 1


@kernel(once)
def arrange(args, step, unit, scratch):
    """args: 0 experts int32 [T, K], 1 E, 2 K, 3 items out, 4 places out int32 [T, K]: the row of each entry"""
    count, entries = word(args, 1), word(step, STEP_TOKENS) * word(args, 2)
    for e in range(count):
        store_i32(scratch + e * 4, 0)
    for entry in range(entries):
        size = scratch + load_i32(word(args, 0) + entry * 4) * 4
        store_i32(size, load_i32(size) + 1)
    row, items = 0, 0
    for e in range(count):
        size = load_i32(scratch + e * 4)
        store_i32(scratch + e * 4, row)
        for first in range(row, row + size, TOKENS_AT_ONCE):
            item = word(args, 3) + (ITEMS + items * ITEM_WORDS) * 4
            store_i32(item, e)
            store_i32(item + 4, first)
            store_i32(item + 8, min(first + TOKENS_AT_ONCE, row + size))
            items += 1
        row += (size + TILE - 1) // TILE * TILE
    store_i32(word(args, 3), items)
    for entry in range(entries):
        place = scratch + load_i32(word(args, 0) + entry * 4) * 4
        store_i32(word(args, 4) + entry * 4, load_i32(place))
        store_i32(place, load_i32(place) + 1)


@count
def per_entry(args, step):
    return units_of(word(step, STEP_TOKENS) * word(args, 0))


@kernel(per_entry)
def spread(args, step, unit, scratch):
    """Each entry's row of x to its place. args: 0 K, 1 x, 2 stride, 3 columns, 4 places, 5 y or 0, 6 stride of y, y or
    0 as 7 tiles, 8 shorts"""
    chosen, columns = word(args, 0), word(args, 3)
    first, stop = span_of(unit, word(step, STEP_TOKENS) * chosen)
    for entry in range(first, stop):
        x, row = word(args, 1) + entry // chosen * word(args, 2), load_i32(word(args, 4) + entry * 4)
        if word(args, 5) != 0:
            y = word(args, 5) + row * word(args, 6)
            for i in range(0, columns, 8):
                store(y + i * 4, load_f32x8(x + i * 4))
        quantise_row(x, row, 0, columns, columns // BLOCK, word(args, 7), word(args, 8), np.float32(0))


@njit
def _shares(args):
    return (word(args, GROUPS) + word(args, GROUPS_PER_UNIT) - 1) // word(args, GROUPS_PER_UNIT)


@count
def product_units(args, step):
    return load_i32(word(args, WORK)) * _shares(args)


def _products(layout: Layout) -> Kernel:
    products = share_products(layout)

    @kernel(product_units, name=f"experts.products_{layout.name}")
    def multiply(args, step, unit, scratch):
        """y = W x for the rows of one item and some groups of its expert's W."""
        shares, share = _shares(args), word(args, GROUPS_PER_UNIT)
        item = word(args, WORK) + (ITEMS + unit // shares * ITEM_WORDS) * 4
        matrix = word(word(args, TABLE), load_i32(item))
        first, after = load_i32(item + 4), load_i32(item + 8)
        x, x_stride, y_stride = word(args, X), word(args, X_STRIDE), word(args, Y_STRIDE)
        start = unit % shares * share
        stop, y = min(start + share, word(args, GROUPS)), word(args, Y)
        weights = matrix, word(args, GROUP_BYTES), start, stop, word(args, BLOCKS), word(args, OUTPUTS)
        products(*weights, x, x_stride, y, y_stride, 0, 0, first, after, SPAN // BLOCK, scratch)

    return multiply


PRODUCTS = {name: _products(layout) for name, layout in LAYOUTS.items()}


@count
def _gate_units(args, step):
    return word(step, STEP_TOKENS) * word(args, 0) * ((word(args, 3) + GLU_COLUMNS - 1) // GLU_COLUMNS)


def _gate(name: str) -> Kernel:
    gated = GATED[name]

    @kernel(_gate_units, name=f"experts.gate_{name}")
    def gate(args, step, unit, scratch):
        """act(gate) * up of each entry's row. args: 0 K, 1 gate_up, 2 stride, 3 columns of y, 4 places, 5 y or 0, 6
        stride of y, y or 0 as 7 tiles, 8 shorts"""
        shares = (word(args, 3) + GLU_COLUMNS - 1) // GLU_COLUMNS
        row = load_i32(word(args, 4) + unit // shares * 4)
        x = word(args, 1) + row * word(args, 2)
        y = word(args, 5) + row * word(args, 6) if word(args, 5) != 0 else scratch
        first, columns = unit % shares * GLU_COLUMNS, word(args, 3)
        last = min(first + GLU_COLUMNS, columns)
        gated(x, columns, first, last, y)
        quantise_row(y, row, first, last, columns // BLOCK, word(args, 7), word(args, 8), np.float32(0))

    return gate


GATES = {name: _gate(name) for name in GATED}


@kernel(per_token)
def weigh(args, step, unit, scratch):
    """y += the sum of a token's rows of x, each times its weight. args: 0 K, 1 x, 2 stride, 3 columns, 4 places, 5
    weights float32 [T, K], 6 y, 7 stride of y"""
    chosen = word(args, 0)
    first, stop = span_of(unit, word(step, STEP_TOKENS))
    for token in range(first, stop):
        places, weights = word(args, 4) + token * chosen * 4, word(args, 5) + token * chosen * 4
        y = word(args, 6) + token * word(args, 7)
        for i in range(0, word(args, 3), 8):
            total = splat(np.float32(0.0))
            for k in range(chosen):
                x = word(args, 1) + load_i32(places + k * 4) * word(args, 2)
                total = fma(splat(load_f32(weights + k * 4)), load_f32x8(x + i * 4), total)
            store(y + i * 4, load_f32x8(y + i * 4) + total)


# Recording


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of floats, `stride` bytes apart."""

    buffer: Buffer
    stride: int


class Matrices:
    """One matrix of every expert, packed alike. Its address is that of a table of theirs."""

    def __init__(self, packed: tuple[Packed, ...]) -> None:
        self.packed, self.one = packed, packed[0]
        self.table = np.zeros(len(packed), np.int64)
        if any(each.layout is not self.one.layout for each in packed):
            named = self.one.weight.name
            raise UnsupportedModel(f"the experts beside {named!r} have formats of their own; all must be kept alike")

    @property
    def address(self) -> int:
        self.table[:] = [each.address for each in self.packed]
        return self.table.ctypes.data

    @property
    def form(self) -> str:
        return self.one.layout.form


class Mixture:
    """The ops of one layer's experts."""

    def __init__(self, experts: Experts, tokens: int, packed: Callable[[Weight], Packed]) -> None:
        """tokens: of a step at most."""
        self.experts = experts
        self.gate, self.up, self.down = (
            Matrices(tuple(packed(weight) for weight in each)) for each in (experts.gate, experts.up, experts.down)
        )
        entries = tokens * experts.chosen
        used = min(entries, experts.count)
        self.rows = -(-(entries + (TILE - 1) * used) // TILE) * TILE
        self.chosen, self.weights = Buffer(entries * 4, "experts"), Buffer(entries * 4, "weights")
        self.places = Buffer(entries * 4, "places")
        self.items = Buffer((ITEMS + ITEM_WORDS * (used + entries // TOKENS_AT_ONCE)) * 4, "items")

    def ops(self, x: Rows, scores: Rows, out: Rows) -> list[Op]:
        """Scores are the router's of x; what the experts say of x is added to out."""
        experts, hidden = self.experts, self.down.one.outputs
        k, inner = experts.chosen, experts.inner
        chosen, placed = [self.chosen, self.weights], [self.items, self.places]
        sizes = scores.stride, experts.count, k, int(experts.normalised)
        route_args: tuple[Argument, ...] = (scores.buffer, *sizes, *chosen)
        found = [Op(route, route_args, [scores.buffer], chosen)]
        found.append(Op(arrange, (self.chosen, experts.count, k, *placed), [self.chosen], placed))
        spread_out, both = _Form(self.rows, hidden, (self.gate, self.up)), self._floats(2 * inner)
        spread_args = (k, x.buffer, x.stride, hidden, self.places, *spread_out.arguments)
        found.append(Op(spread, spread_args, [x.buffer, self.places], spread_out.buffers))
        found.append(self._product(self.gate, spread_out, both, 0))
        found.append(self._product(self.up, spread_out, both, inner, joins=True))
        gated = _Form(self.rows, inner, (self.down,))
        gate_args = (k, both.buffer, both.stride, inner, self.places, *gated.arguments)
        found.append(Op(GATES[experts.activation], gate_args, [both.buffer, self.places], gated.buffers))
        said = self._floats(hidden)
        found.append(self._product(self.down, gated, said, 0))
        weigh_args = (k, said.buffer, said.stride, hidden, self.places, self.weights, out.buffer, out.stride)
        found.append(Op(weigh, weigh_args, [said.buffer, self.places, self.weights, out.buffer], [out.buffer]))
        return found

    def _floats(self, columns: int) -> Rows:
        return Rows(Buffer(self.rows * row_bytes(columns), "experts out"), row_bytes(columns))

    def _product(self, matrices: Matrices, x: _Form, y: Rows, column: int, joins: bool = False) -> Op:
        one, source = matrices.one, x.read_by(matrices)
        share = max(1, min(UNIT_BYTES // one.group_bytes, one.groups))
        weight = (matrices, one.blocks, one.outputs, one.group_bytes, one.groups, share)
        args = (*weight, source, x.stride, _Column(y.buffer, column), y.stride, self.items)
        return Op(PRODUCTS[one.layout.name], args, [source, self.items], [y.buffer], joins)


class _Form:
    """Rows in the forms that matrices read."""

    def __init__(self, rows: int, columns: int, readers: tuple[Matrices, ...]) -> None:
        self.stride = row_bytes(columns)
        sizes = {
            FLOATS: rows * self.stride,
            BYTES: quantised_bytes(rows, columns),
            SHORTS: shorts_bytes(rows, columns),
        }
        self.forms = {each.form: Buffer(sizes[each.form], "experts in") for each in readers}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        floats, tiles, shorts = (self.forms.get(form, 0) for form in (FLOATS, BYTES, SHORTS))
        return floats, self.stride, tiles, shorts

    @property
    def buffers(self) -> list[Buffer]:
        return list(self.forms.values())

    def read_by(self, matrices: Matrices) -> Buffer:
        return self.forms[matrices.form]


@dataclass(frozen=True, slots=True)
class _Column:
    """Of the first of some rows of floats."""

    base: Placed
    number: int

    @property
    def address(self) -> int:
        return self.base.address + self.number * 4
