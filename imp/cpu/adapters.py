"""Adapters beside the matrix products: y += B A x at the positions that have one.

A *site* is one `linear` of the model. The A of all its parts are one matrix, whose product h = A x is computed beside
the site's own; the B of each part then adds its share. Both use the tiles of float weights (matmul.py), so a token's
result is the same bits whatever else is in the step. Numbers are float16, whose rounding is far below that of quantised
weights; float32 for models that are float32 throughout. A step without adapters replays a program without these ops.

The *table* tells where everything lies: int64 [1 + slots, sites, SITE_WORDS], the largest sizes of all slots in front.
It is never changed, only replaced, so steps may run while adapters come and go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..jit import njit
from ..model.lora import MAX_RANK, Adapter, Base, Pair
from ..model.ops import Linear
from ..weights.checkpoint import InvalidModel, Weight
from ..weights.quant import FORMATS
from .matmul import group_products
from .pack import LAYOUTS, Arena, Packed
from .program import (
    STEP_ADAPTED,
    STEP_ADAPTED_SPANS,
    STEP_ADAPTER_BYTES,
    STEP_ADAPTERS,
    Buffer,
    Kernel,
    Op,
    Placed,
    count,
    kernel,
)
from .simd import load_i32, word

PARTS = 4  # of a site at most
# Words of a slot's site
A, A_ROWS = 0, 1  # address (0: the adapter has nothing here), and rows
PART_WORDS, B, B_FIRST, B_RANK = 3, 2, 3, 4  # of part p at p * PART_WORDS: address, first row of A that is its own
SITE_WORDS = 16
ROWS = 16  # of a group of float weights
FORMS: dict[str, tuple[str, type]] = {"f16": ("F16", np.float16), "f32": ("F32", np.float32)}
LARGEST_HALF = float(np.finfo(np.float16).max)

# Argument block: of both kernels, then of each
SITE, H, H_STRIDE = range(3)
X, X_STRIDE, INPUTS = range(3, 6)
Y, Y_STRIDE, PART, OUTPUTS, GROUPS_PER_UNIT = range(3, 8)


@njit
def _place(args, step, slot):
    """Of the table, what is said of this site in a slot; slot -1: the largest sizes."""
    return word(step, STEP_ADAPTERS) + (slot + 1) * word(step, STEP_ADAPTER_BYTES) + word(args, SITE) * SITE_WORDS * 8


@njit
def _groups(rows):
    return (rows + ROWS - 1) // ROWS


@njit
def _span(step, number):
    at = word(step, STEP_ADAPTED_SPANS) + number * 12
    return load_i32(at), load_i32(at + 4), load_i32(at + 8)


@count
def down_units(args, step):
    spans = word(step, STEP_ADAPTED)
    return spans * _groups(word(_place(args, step, -1), A_ROWS)) if spans > 0 else 0


@njit
def _shares(args):
    return (_groups(word(args, OUTPUTS)) + word(args, GROUPS_PER_UNIT) - 1) // word(args, GROUPS_PER_UNIT)


@count
def up_units(args, step):
    return word(step, STEP_ADAPTED) * _shares(args)


def _down(name: str) -> Kernel:
    products, record = group_products(LAYOUTS[name]), LAYOUTS[name].record.itemsize

    @kernel(down_units, name=f"adapters.down_{name}")
    def down(args, step, unit, scratch):
        """h = A x: one group of A's rows for one span."""
        groups = _groups(word(_place(args, step, -1), A_ROWS))
        first, after, slot = _span(step, unit // groups)
        place, group, inputs = _place(args, step, slot), unit % groups, word(args, INPUTS)
        if word(place, A) != 0 and group < _groups(word(place, A_ROWS)):
            weight, h = word(place, A) + group * inputs * record, word(args, H) + group * ROWS * 4
            x, x_stride, h_stride = word(args, X), word(args, X_STRIDE), word(args, H_STRIDE)
            products(weight, inputs, ROWS, x, x_stride, h, h_stride, 0, 0, first, after, scratch)

    return down


def _up(name: str) -> Kernel:
    products, record = group_products(LAYOUTS[name]), LAYOUTS[name].record.itemsize

    @kernel(up_units, name=f"adapters.up_{name}")
    def up(args, step, unit, scratch):
        """y += B h: some groups of a part's outputs for one span."""
        shares, share = _shares(args), word(args, GROUPS_PER_UNIT)
        first, after, slot = _span(step, unit // shares)
        part = _place(args, step, slot) + word(args, PART) * PART_WORDS * 8
        if word(part, B) != 0:
            rank, h_stride, y_stride = word(part, B_RANK), word(args, H_STRIDE), word(args, Y_STRIDE)
            h, start = word(args, H) + word(part, B_FIRST) * 4, unit % shares * share
            for group in range(start, min(start + share, _groups(word(args, OUTPUTS)))):
                weight, y = word(part, B) + group * rank * record, word(args, Y) + group * ROWS * 4
                left = word(args, OUTPUTS) - group * ROWS
                products(weight, rank, left, h, h_stride, y, y_stride, 0, 1, first, after, scratch)

    return up


DOWNS = {name: _down(name) for name in ("f16", "f32")}
UPS = {name: _up(name) for name in ("f16", "f32")}


def layout_for(base: Base) -> str:
    """The layout of adapters of this model."""
    return "f32" if base.formats == {"F32"} else "f16"


def most_bytes(base: Base, adapter: Adapter) -> int:
    """What an adapter of this model takes, if no parts of a site share a group of A's rows."""
    groups = 0  # of one column
    for name, pair in adapter.pairs.items():
        outputs, inputs = base.modules[name]
        groups += -(-pair.rank // ROWS) * inputs + -(-outputs // ROWS) * pair.rank
    return groups * LAYOUTS[layout_for(base)].record.itemsize


@dataclass(frozen=True, slots=True)
class Site:
    names: tuple[str, ...]  # of its parts
    inputs: int
    outputs: tuple[int, ...]  # of its parts


class Sites:
    """Where a model's program adds, numbered as they are recorded."""

    def __init__(self, layout: str, tokens: int, threads: int) -> None:
        """tokens: of a step at most."""
        self.layout, self.tokens, self.threads = layout, tokens, threads
        self.all: list[Site] = []

    def adapted(
        self, linear: Linear, x: Buffer, x_stride: int, out: Buffer, out_stride: int, column: Callable[[int], Placed]
    ) -> list[Op]:
        """To be recorded behind a linear's products. column: of the output's first row, by number."""
        assert len(linear.parts) <= PARTS
        site = Site(linear.names, linear.inputs, tuple(each.shape[0] for each in linear.parts))
        h_stride = len(linear.parts) * MAX_RANK * 4
        h = Buffer(self.tokens * h_stride, "adapters")
        shared = (len(self.all), h, h_stride)
        self.all.append(site)
        down = (*shared, x, x_stride, linear.inputs)
        ops = [Op(DOWNS[self.layout], down, [x], [h], joins=True)]
        for p, outputs in enumerate(site.outputs):
            groups = -(-outputs // ROWS)
            up = (*shared, column(sum(site.outputs[:p])), out_stride, p, outputs, max(1, groups // (2 * self.threads)))
            ops.append(Op(UPS[self.layout], up, [h, out], [out], joins=p > 0))
        return ops


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The adapters there are: the table, and for each slot its rows of it and its memory."""

    table: np.ndarray
    slots: tuple[tuple[np.ndarray, Arena] | None, ...] = ()

    def fill_header(self, step: np.ndarray) -> None:
        """The words of a step header that say where the adapters are, for as long as this is held."""
        step[STEP_ADAPTERS], step[STEP_ADAPTER_BYTES] = self.table.ctypes.data, self.table[0].nbytes


class Adapters:
    """Changed by one thread at a time; `kept` may be read by another."""

    def __init__(self, sites: Sites) -> None:
        self.layout, self.sites = sites.layout, tuple(sites.all)
        self.kept = Kept(self._table(()))

    def size(self, adapter: Adapter) -> int:
        """Bytes that it takes."""
        record, size = LAYOUTS[self.layout].record.itemsize, 0
        for site in self.sites:
            parts = zip(site.names, site.outputs, strict=True)
            found = [(adapter.pairs[name].rank, outputs) for name, outputs in parts if name in adapter.pairs]
            size += -(-sum(rank for rank, _ in found) // ROWS) * site.inputs * record
            size += sum(-(-outputs // ROWS) * rank * record for rank, outputs in found)
        return size

    def add(self, adapter: Adapter) -> int:
        """Raises InvalidModel where its numbers cannot be kept."""
        arena = Arena(self.size(adapter))
        rows = np.zeros((len(self.sites), SITE_WORDS), np.int64)
        for row, site in zip(rows, self.sites, strict=True):
            self._pack(row, site, adapter, arena)
        slots = list(self.kept.slots)
        slot = slots.index(None) if None in slots else len(slots)
        slots[slot : slot + 1] = [(rows, arena)]
        self._keep(slots)
        return slot

    def drop(self, slot: int) -> None:
        slots = list(self.kept.slots)
        slots[slot] = None
        self._keep(slots)

    def _keep(self, slots: Sequence[tuple[np.ndarray, Arena] | None]) -> None:
        self.kept = Kept(self._table(slots), tuple(slots))

    def _table(self, slots: Sequence[tuple[np.ndarray, Arena] | None]) -> np.ndarray:
        table = np.zeros((1 + len(slots), len(self.sites), SITE_WORDS), np.int64)
        for row, slot in zip(table[1:], slots, strict=True):
            row[:] = 0 if slot is None else slot[0]
        table[0] = table[1:].max(axis=0, initial=0)
        return table

    def _pack(self, row: np.ndarray, site: Site, adapter: Adapter, arena: Arena) -> None:
        """Put what a site gets into the arena: A of all parts as one matrix, then each B; `row` will say where."""
        parts = [(p, self._balanced(adapter.pairs[name])) for p, name in enumerate(site.names) if name in adapter.pairs]
        if not parts:
            return
        row[A], row[A_ROWS] = self._put(arena, np.concatenate([down for _, (down, _) in parts]))
        first = 0
        for p, (down, up) in parts:
            at, rank = p * PART_WORDS, len(down)
            row[at + B], _ = self._put(arena, up)
            row[at + B_FIRST], row[at + B_RANK] = first, rank
            first += rank

    def _put(self, arena: Arena, values: np.ndarray) -> tuple[int, int]:
        """Address and rows."""
        form, dtype = FORMS[self.layout]
        raw = np.ascontiguousarray(values, dtype).view(np.uint8)
        packed = Packed(Weight("adapter", raw, FORMATS[form], (values.shape[0], values.shape[1])))
        arena.pack(packed)
        return packed.address, packed.outputs

    def _balanced(self, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
        """A and scale * B, moved by a power of 2 so that their largest numbers are alike: small ones of either then
        stay far from the smallest float16."""
        down, up = pair.matrices()
        largest = [float(np.abs(each).max()) for each in (down, up)]
        if self.layout == "f32" or not all(largest):
            return down, up
        shift = round((math.log2(largest[1]) - math.log2(largest[0])) / 2)
        down, up = np.ldexp(down, shift), np.ldexp(up, -shift)
        if max(np.abs(each).max() for each in (down, up)) > LARGEST_HALF:
            raise InvalidModel(f"the adapter's tensor {pair.up.name!r} has values too large for float16")
        return down, up
