"""Matrix products as launches: which kernel multiplies so many tokens, over which grid, and what it is given.

All kernels add up in the same order, so which of them it is changes no bit. Those of Hopper's warp groups use another
instruction; `warp_groups.py` finds out whether its sums are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.buffers import Buffer
from . import entries
from .driver import tensor_map
from .entries import Entry
from .layouts import Packed
from .program import Constant, Launch, Op, Place


@dataclass(frozen=True, slots=True)
class Operand:
    """What is multiplied: rows of 16 or 32 bits. scales: of each row, or None. ordered: for warp groups, or None."""

    rows: Buffer
    stride: int
    scales: Buffer | None
    ordered: Ordered | None

    @property
    def buffers(self) -> list[Buffer]:
        return [each for each in (self.rows, self.scales, self.ordered and self.ordered.buffer) if each]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a product goes: columns from `column` on of float32 rows. add: to what is there."""

    rows: Buffer
    stride: int
    column: int
    add: bool


class Ordered:
    """An operand with its columns as `wgmma` takes them, and the map by which they are fetched."""

    def __init__(self, source: Buffer, rows: int, columns: int) -> None:
        """columns: those of a row in memory."""
        self.source, self.rows, self.columns = source, rows, columns
        self.buffer = Buffer(rows * columns * 2, "ordered")
        self._map: tuple[int, bytes] | None = None

    def op(self, word: int) -> Op:
        def launch(place: Place) -> Launch:
            arguments = (self.source.address, self.buffer.address, place.counts, word, self.columns)
            return Launch(entries.IN_ORDER, (place.shape.count(word) * place.shape.warp_groups, 1, 1), arguments)

        return Op(launch, [self.source], [self.buffer])

    def map(self) -> bytes:
        if self._map is None or self._map[0] != self.buffer.address:
            box = entries.WGMMA_TOKENS, entries.WGMMA_COLUMNS
            self._map = self.buffer.address, tensor_map(self.buffer.address, self.rows, self.columns, box)
        return self._map[1]


def product(packed: Packed, x: Operand, bias: Constant | None, y: Target, word: int) -> Callable[[Place], Launch]:
    """y = x W^T + bias, for as many tokens as the step's `word` says."""
    layout, outputs = packed.layout.number, packed.outputs

    def launch(place: Place) -> Launch:
        tokens = place.shape.count(word)
        added = x.scales.address if x.scales else 0, bias.address + 4 * y.column if bias else 0
        rest = (*added, y.rows.address + 4 * y.column, place.counts, word, outputs, packed.columns)
        if x.ordered and place.shape.warp_groups:
            grid = -(-outputs // entries.WGMMA_ROWS), -(-tokens // entries.WGMMA_TOKENS), 1
            arguments = (*packed.addresses, x.ordered.map(), *rest, y.stride, int(y.add))
            return Launch(entries.linear_wgmma(layout), grid, arguments)
        entry, grid = tiling(layout, outputs, tokens)
        return Launch(entry, grid, (*packed.addresses, x.rows.address, *rest, x.stride, y.stride, int(y.add)))

    return launch


def tiling(layout: int, outputs: int, tokens: int) -> tuple[Entry, tuple[int, int, int]]:
    """The variant for so many tokens, and its grid."""
    if tokens >= entries.TILED_FROM:
        grid = -(-outputs // entries.TILED_ROWS), -(-tokens // entries.TILED_TOKENS), 1
        return entries.linear_tiled(layout), grid
    tiles = next(tiles for tiles in entries.TOKEN_TILES if 8 * tiles >= tokens)
    return entries.linear(layout, tiles), (-(-outputs // 16), int(tokens > 0), 1)
