"""Weights in the order the kernels of the GPU read them in: fragments of its matrix instruction, one load a lane.

A matrix is cut into tiles of 16 rows, and these into records of 16 bytes for each of a warp's 32 lanes: a lane loads
the weights it needs for 16 columns (16-bit floats), 32 (8-bit integers) or 64 (4-bit ones) at once. Lane 4 g + t has
rows g and g + 8, and of every 16 columns 4 t to 4 t + 3: operand A of `mma.m16n8k16` (PTX ISA), with the columns of a
step in an order of our own, which the other operand follows. Scales lie record by record, those of a row side by
side. 32-bit floats lie column by column. Rows are filled up to 16 with zeros, columns to 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..weights import fields, small
from ..weights.checkpoint import Weight
from ..weights.fields import BLOCK, Fields, Reader

TILE = 16  # rows
WIDE = 64  # columns are filled up to
CHUNK_BYTES = 32 << 20  # of a weight in its file, brought into order at a time


@dataclass(frozen=True, slots=True)
class Layout:
    """`number` is FMT of the kernels. columns: of a record. scales: names of the fields of a block of 32 columns; of
    floats, and of NESTED, there are none. row_scaled: there is a float32 for each row."""

    number: int
    columns: int
    bits: int  # of a weight
    scales: tuple[str, ...] = ()
    row_scaled: bool = False

    @property
    def scale_bytes(self) -> int:
        """Of a row in a record, on average."""
        if self is NESTED:
            return NESTED_BYTES * self.columns // NESTED_COLUMNS
        return sum(SCALE_BYTES[name] for name in self.scales) * self.columns // BLOCK


SCALE_BYTES = {"d": 2, "d1": 2, "m": 2, "e4m3": 2, "powers": 1}  # of a block of 32 columns, by field
# Q4_K with its own scales: of 256 columns the 16 rows' (d, dmin), then of each record their (scale, minimum) twice
NESTED = Layout(11, 64, 4)
NESTED_COLUMNS = 256
NESTED_BYTES = 20  # of a row's 256 columns
LAYOUTS = {  # by kind of weights.fields and weights.small
    "f32": Layout(0, 16, 32),
    "f16": Layout(1, 16, 16),
    "bf16": Layout(2, 16, 16),
    "int8": Layout(3, 32, 8, ("d",)),
    "int8_minimum": Layout(4, 32, 8, ("d", "m")),
    "int8_halves": Layout(5, 32, 8, ("d", "d1")),
    "int4": Layout(6, 64, 4, ("d",)),
    "int4_minimum": Layout(7, 64, 4, ("d", "m")),
    "fp8": Layout(8, 32, 8, row_scaled=True),
    "nvfp4": Layout(9, 64, 4, ("e4m3",), row_scaled=True),
    "mxfp4": Layout(10, 64, 4, ("powers",), row_scaled=True),
    "int4_nested": NESTED,
    "fp8_blocks": Layout(12, 32, 8, ("d",), row_scaled=True),
}
BIASED = frozenset(("int8", "int8_halves"))  # signed integers are stored with 128 added


def reader(weight: Weight) -> tuple[str, Reader]:
    """The kind a weight is kept as, and what reads some of its rows: as it is where kernels know its format."""
    if weight.format.name == "Q4_K":
        return "int4_nested", fields.read_q4_k_nested
    return small.reader(weight) or fields.reader(weight)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tiles of a matrix."""

    first: int  # tile
    weights: np.ndarray  # uint8 [tiles, bytes of one]
    scales: np.ndarray  # likewise
    row_scales: np.ndarray  # float32 [tiles, 16], or [tiles, 0] where there are none


def stacks(weights: Sequence[Weight]) -> list[tuple[Weight, ...]]:
    """Neighbouring matrices of the same inputs as few as they can be: those that are kept alike, all but the last of
    whole tiles, are one."""
    found: list[tuple[Weight, ...]] = []
    for weight in weights:
        last = found[-1][-1] if found else None
        if last is not None and last.shape[0] % TILE == 0 and reader(last)[0] == reader(weight)[0]:
            found[-1] += (weight,)
        else:
            found.append((weight,))
    return found


class Packed:
    """A matrix, of `stacks` of them, in, or on its way to, the device's memory. Addresses are 0 until it is there."""

    def __init__(self, *weights: Weight) -> None:
        self.weights = weights
        self.kind = reader(weights[0])[0]
        self.layout = LAYOUTS[self.kind]
        self.outputs, self.inputs = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        self.address = self.scales_address = self.row_scales_address = 0

    @property
    def tiles(self) -> int:
        return -(-self.outputs // TILE)

    @property
    def columns(self) -> int:
        """Filled up."""
        return -(-self.inputs // WIDE) * WIDE

    @property
    def tile_bytes(self) -> int:
        return TILE * self.columns * self.layout.bits // 8

    @property
    def tile_scale_bytes(self) -> int:
        return TILE * self.columns // self.layout.columns * self.layout.scale_bytes

    @property
    def weights_bytes(self) -> int:
        return self.tiles * self.tile_bytes

    @property
    def scales_bytes(self) -> int:
        return self.tiles * self.tile_scale_bytes

    @property
    def tile_row_scale_bytes(self) -> int:
        return 4 * TILE * self.layout.row_scaled

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of weights, scales and row scales."""
        return self.weights_bytes, self.scales_bytes, self.tiles * self.tile_row_scale_bytes

    def place(self, address: int, alignment: int) -> int:
        """Take the memory from `address` on; returns what comes after it."""
        places = [address]
        for size in self.sizes:
            places.append(places[-1] + -(-size // alignment) * alignment)
        self.address, self.scales_address, self.row_scales_address, after = places
        return after

    @property
    def addresses(self) -> tuple[int, int, int]:
        """What kernels are given of it."""
        return self.address, self.scales_address, self.row_scales_address

    def parts(self) -> Iterator[Piece]:
        """The matrix piece by piece."""
        first = 0
        for weight in self.weights:
            yield from self.pieces(weight, first)
            first += -(-weight.shape[0] // TILE)

    def pieces(self, weight: Weight, first: int) -> Iterator[Piece]:
        """One of its matrices, whose tiles are those from `first` on."""
        read, rows = reader(weight)[1], weight.shape[0]
        step = max(1, CHUNK_BYTES // max(1, weight.data.nbytes // max(1, rows)) // TILE) * TILE
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            found = read(weight, slice(start, stop))
            tiles = -(-(stop - start) // TILE)
            row = found.pop("row", np.zeros(0, np.float32))
            row_scales = np.zeros((tiles, TILE * self.layout.row_scaled), np.float32)
            row_scales.reshape(-1)[: len(row)] = row
            yield Piece(first + start // TILE, *arranged(self.kind, found, tiles, self.columns), row_scales)


def arranged(kind: str, found: Fields, tiles: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Fields of some rows as (weights, scales), uint8 [tiles, bytes]; rows up to 16 * tiles and columns are zeros."""
    layout, shape = LAYOUTS[kind], (tiles * TILE, columns)
    if "w" in found:
        numbers = _filled(found["w"], shape)
        weights = _floats(numbers, tiles) if layout.bits == 16 else numbers.reshape(tiles, TILE, -1).swapaxes(1, 2)
        return _bytes(weights, tiles), np.zeros((tiles, 0), np.uint8)
    codes = _codes(kind, found["q"])
    weights = (_nibbles if layout.bits == 4 else _integers)(_filled(codes, shape), tiles)
    if layout is NESTED:
        return _bytes(weights, tiles), _nested(found, tiles, columns)
    if not layout.scales:
        return _bytes(weights, tiles), np.zeros((tiles, 0), np.uint8)
    blocks = columns // BLOCK
    of_rows = np.stack([_filled(found[name], (shape[0], blocks)) for name in layout.scales], axis=-1)
    records = of_rows.reshape(tiles, TILE, columns // layout.columns, -1).swapaxes(1, 2)
    return _bytes(weights, tiles), _bytes(records, tiles)


def _codes(kind: str, q: np.ndarray) -> np.ndarray:
    """uint8 [rows, columns] of the fields' quads."""
    packed = np.ascontiguousarray(q).view(np.uint8)  # [rows, blocks, bytes]
    if LAYOUTS[kind].bits == 4:
        packed = np.concatenate([packed & 15, packed >> 4], axis=-1)
    codes = packed.reshape(len(packed), -1)
    return codes ^ np.uint8(0x80) if kind in BIASED else codes


def _filled(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if values.shape == shape:
        return values
    filled = np.zeros(shape, values.dtype)
    filled[: values.shape[0], : values.shape[1]] = values
    return filled


def _nested(found: Fields, tiles: int, columns: int) -> np.ndarray:
    rows, wholes = tiles * TILE, columns // NESTED_COLUMNS
    whole = _filled(found["whole"], (rows, wholes, 2)).reshape(tiles, TILE, wholes, 2).swapaxes(1, 2)
    parts = (
        _filled(found["parts"], (rows, columns // BLOCK, 2))
        .reshape(tiles, TILE, wholes, 4, 4)
        .transpose(0, 2, 3, 1, 4)
    )
    both = [np.ascontiguousarray(each).view(np.uint8).reshape(tiles, wholes, -1) for each in (whole, parts)]
    return np.concatenate(both, axis=-1).reshape(tiles, -1)


# rows are (half, g), columns (record, step, t, pair, one of it); `half` and `pair` choose the lane's register


def _floats(numbers: np.ndarray, tiles: int) -> np.ndarray:
    """Registers: (pair, half); a record is one step of 16 columns."""
    return numbers.reshape(tiles, 2, 8, -1, 4, 2, 2).transpose(0, 3, 2, 4, 5, 1, 6)


def _integers(codes: np.ndarray, tiles: int) -> np.ndarray:
    """A word is a step and a pair; its bytes are rows g and g + 8 with two columns each."""
    return codes.reshape(tiles, 2, 8, -1, 2, 4, 2, 2).transpose(0, 3, 2, 5, 4, 6, 1, 7)


def _nibbles(codes: np.ndarray, tiles: int) -> np.ndarray:
    """A word is a step: even columns in its low half, odd ones in its high half, each (pair, half) from the lowest bit
    on, so that one mask takes out a register's two weights."""
    order = codes.reshape(tiles, 2, 8, -1, 4, 4, 2, 2).transpose(0, 3, 2, 5, 4, 7, 6, 1)
    return order[..., 0] | order[..., 1] << 4


def _bytes(values: np.ndarray, tiles: int) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(tiles, -1)
