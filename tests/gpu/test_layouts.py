"""Weights in the order of the GPU's fragments: read back one by one, by the rule kernels go by, every format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from imp.cuda.layouts import LAYOUTS, Packed, stacks
from imp.model.kv import E2M1, E4M3
from imp.weights.checkpoint import Weight, open_checkpoint
from imp.weights.quant import FORMATS
from tests.cpu.harness import values, weight
from tests.weights.test_scaled import EXPECTED, SCALED

EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32", "MXFP4")


def whole(packed: Packed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights, scales, row scales) of all tiles: uint8 [tiles, bytes] twice, float32 [rows]."""
    weights = np.full((packed.tiles, packed.tile_bytes), 0xAA, np.uint8)
    scales = np.full((packed.tiles, packed.tile_scale_bytes), 0xAA, np.uint8)
    rows = np.full((packed.tiles, packed.tile_row_scale_bytes // 4), np.nan, np.float32)
    for piece in packed.parts():
        tiles = slice(piece.first, piece.first + len(piece.weights))
        weights[tiles], scales[tiles], rows[tiles] = piece.weights, piece.scales, piece.row_scales
    return weights, scales, rows.reshape(-1)


class Reader:
    """A weight by its row and column, as a lane of a kernel finds it."""

    def __init__(self, packed: Packed) -> None:
        self.packed, self.layout = packed, packed.layout
        self.weights, self.scales, self.rows = whole(packed)

    def word(self, row: int, column: int) -> tuple[int, int, int]:
        """The 32-bit word of the lane's 16 bytes, which register's bits it holds there, and which of two columns."""
        record, within = divmod(column, self.layout.columns)
        step, place = divmod(within, 16)
        lane = (row % 8) * 4 + place // 4
        half, pair, one = row % 16 // 8, place % 4 // 2, place % 2
        of_record = {16: 2 * pair + half, 8: 2 * step + pair, 4: step}[self.layout.bits]
        words = self.weights[row // 16].view(np.uint32)
        return int(words[(record * 32 + lane) * 4 + of_record]), 2 * pair + half, one

    def scale(self, row: int, column: int, which: int) -> float:
        names = len(self.layout.scales)
        record, within = divmod(column, self.layout.columns)
        of_row = self.layout.columns // 32 * names
        halves = self.scales[row // 16].view(np.float16)
        return float(halves[(record * 16 + row % 16) * of_row + within // 32 * names + which])

    def value(self, row: int, column: int) -> float:
        kind = self.packed.kind
        if kind == "f32":
            return float(self.weights[row // 16].view(np.float32)[column * 16 + row % 16])
        word, register, one = self.word(row, column)
        if self.layout.bits == 16:
            bits = word >> 16 * one & 0xFFFF
            wide = np.array([bits << 16 if kind == "bf16" else bits], np.uint32)
            return float(wide.view(np.float32)[0] if kind == "bf16" else wide.astype(np.uint16).view(np.float16)[0])
        if self.layout.bits == 4:
            code = word >> 4 * register >> 16 * one & 15
        else:
            code = word >> 16 * (register % 2) + 8 * one & 255
        if self.layout.row_scaled:
            return float(self.rows[row]) * self.small(row, column, code)
        if kind == "int4_nested":
            return self.nested(row, column, code)
        d = self.scale(row, column, int(kind == "int8_halves" and column % 32 >= 16))
        if kind.endswith("minimum"):
            return d * code + self.scale(row, column, 1)
        return d * (code - (8 if kind == "int4" else 128))

    def small(self, row: int, column: int, code: int) -> float:
        """An e4m3, or an e2m1 with an e4m3 for 16 columns or a power for 32, that many in a row of a record."""
        kind, (record, within) = self.packed.kind, divmod(column, self.layout.columns)
        if kind == "fp8":
            return float(E4M3.values(np.array([code]))[0])
        if kind == "fp8_blocks":
            return self.scale(row, column, 0) * float(E4M3.values(np.array([code]))[0])
        each = 16 if kind == "nvfp4" else 32
        of_row = self.layout.columns // each
        scale = self.scales[row // 16][(record * 16 + row % 16) * of_row + within // each]
        power = float(E4M3.values(np.array([scale]))[0]) if kind == "nvfp4" else 2.0 ** (int(scale) - 24)
        return power * float(E2M1.values(np.array([code]))[0])

    def nested(self, row: int, column: int, code: int) -> float:
        """16 (d, dmin), then for each of 4 records 16 times (scale, minimum) of its two halves; 320 bytes."""
        of_256 = self.scales[row // 16].reshape(-1, 320)[column // 256]
        d, dmin = of_256[:64].view(np.float16).reshape(16, 2)[row % 16].astype(float)
        scale, minimum = of_256[64:].reshape(4, 16, 2, 2)[column % 256 // 64, row % 16, column % 64 // 32].astype(float)
        return d * scale * code - dmin * minimum


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("outputs", [5, 33])
def test_every_weight_is_where_its_lane_looks(name, outputs):
    inputs = 512 if FORMATS[name].block == 256 else 96
    w = weight(name, outputs, inputs, np.random.default_rng(outputs))
    reader, expected = Reader(Packed(w)), values(w)
    rng = np.random.default_rng(1)
    for row, column in zip(rng.integers(0, outputs, 400), rng.integers(0, inputs, 400), strict=True):
        found, exact = reader.value(row, column), expected[row, column]
        largest = np.abs(expected[row, column // 32 * 32 :][:32]).max()
        assert found == pytest.approx(
            exact, abs=1e-9 if name in EXACT else largest * 1e-6 if name == "Q4_K" else largest / 240
        ), (row, column)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_weight_of_small_floats(name):
    reader = Reader(Packed(flat(open_checkpoint(SCALED).weight(name))))
    expected = EXPECTED[name].reshape(-1, EXPECTED[name].shape[-1])
    exact = 1e-6 if reader.packed.kind != "fp8_blocks" else 2.0**-11
    rng = np.random.default_rng(1)
    for row, column in zip(rng.integers(0, len(expected), 300), rng.integers(0, expected.shape[1], 300), strict=True):
        assert reader.value(row, column) == pytest.approx(expected[row, column], rel=exact), (row, column)


def flat(w: Weight) -> Weight:
    """Experts one after the other."""
    return replace(w, shape=(len(w.data), w.shape[-1]))


@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "MXFP4"])
def test_what_fills_up_is_nothing(name):
    outputs, inputs = 21, 256 if name in ("Q4_K", "Q6_K") else 32
    packed = Packed(weight(name, outputs, inputs, np.random.default_rng(0)))
    reader = Reader(packed)
    assert packed.tiles == 2 and packed.columns % 64 == 0
    assert packed.weights_bytes == reader.weights.nbytes and packed.scales_bytes == reader.scales.nbytes
    places = [(row, column) for row in range(outputs, 32) for column in range(0, inputs, 7)]
    places += [(row, column) for row in range(outputs) for column in range(inputs, packed.columns)]
    assert not any(reader.value(row, column) for row, column in places)


def test_a_large_matrix_comes_in_parts_of_whole_tiles(monkeypatch):
    monkeypatch.setattr("imp.cuda.layouts.CHUNK_BYTES", 3000)
    w = weight("Q4_0", 100, 96, np.random.default_rng(3))
    packed = Packed(w)
    firsts = [piece.first for piece in packed.parts()]
    assert len(firsts) > 2 and firsts == sorted(firsts)
    reader, expected = Reader(packed), values(w)
    assert [reader.value(row, 50) for row in range(100)] == pytest.approx(list(expected[:, 50]))


def test_matrices_that_are_kept_alike_are_one():
    rng = np.random.default_rng(5)
    q, k, v = (weight("Q4_1", rows, 96, rng) for rows in (32, 16, 21))
    other, ragged = weight("Q8_0", 16, 96, rng), weight("Q4_1", 21, 96, rng)
    assert stacks([q, k, v]) == [(q, k, v)]
    assert stacks([q, other, k, ragged, v]) == [(q,), (other,), (k, ragged), (v,)]
    packed = Packed(q, k, v)
    assert (packed.outputs, packed.tiles) == (69, 5)
    reader, expected = Reader(packed), np.concatenate([values(each) for each in (q, k, v)])
    assert [reader.value(row, 70) for row in range(69)] == pytest.approx(list(expected[:, 70]))


def test_kinds_have_numbers_of_their_own():
    assert sorted(layout.number for layout in LAYOUTS.values()) == [*range(13)]


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "MXFP4", "Q5_1"])
def test_kernels_multiply_with_what_was_packed(name):
    kernels = pytest.importorskip("tests.gpu.kernels")
    rng = np.random.default_rng(4)
    w = weight(name, 21, 512, rng)
    packed = Packed(w)
    weights, scales, row_scales = whole(packed)
    x = kernels.operand(rng.normal(size=(3, 512)), "f16", 512)
    args = [weights, scales, row_scales if packed.layout.row_scaled else 0, x, 0, 0, kernels.Result((3, 64)), kernels.counts(3), 0, 21, 512, 512, 64, 0]
    built = kernels.module("linear.cu", FMT=packed.layout.number, NT=1)
    (y,) = kernels.run(built, "linear", (2, 1), 128, args)
    expected = kernels.values(x, "f16").astype(np.float64) @ values(w).astype(np.float64).T
    assert kernels.error(y[:, :21], expected) < (1e-5 if name in ("Q4_K", "MXFP4") else 5e-3)
