"""Products of tiles against NumPy, where the machine has them."""

from __future__ import annotations

import numpy as np
import pytest
from numba import types

from imp.cpu.simd import Micro, V, compiling_for, int64, micro
from imp.cpu.tiles import (
    add_products_bf16,
    add_products_i8,
    clear_tile,
    load_tile,
    release_tiles,
    shape_deep_tiles,
    shape_tiles,
    store_tile,
)
from imp.cpu.variants import variants
from imp.jit import numba

pytestmark = pytest.mark.skipif("amx" not in variants(), reason="no tiles here")


@micro(int64, int64, int64)
def product(x: V, y: V, rows: V) -> None:
    """Two steps of 16 columns; the right factor lies behind 16 rows of the left one."""
    shape_tiles(rows)
    clear_tile(0)
    for step in (0, 1):
        load_tile(4, x + step * 16, 32)
        load_tile(6, x + (512 + step * 256), 64)
        add_products_i8(0, 4, 6)
    store_tile(0, y, 64)
    release_tiles()


def run(program: Micro, x: np.ndarray, y: np.ndarray, rows: int) -> None:
    def body(x, y, n):
        program(x, y, n)

    with compiling_for("amx"):
        compiled = numba().cfunc(types.void(types.int64, types.int64, types.int64), nopython=True)(body)
    compiled.ctypes(x.ctypes.data, y.ctypes.data, rows)


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_products_of_tiles_are_exact(rows):
    x = np.random.default_rng(rows).integers(-128, 128, 1024).astype(np.int8)
    y = np.full((16, 16), 7, np.int32)
    run(product, x, y, rows)
    left, right = x[:512].reshape(16, 8, 4).astype(np.int64), x[512:].reshape(8, 16, 4).astype(np.int64)
    expected = np.einsum("rki,kci->rc", left, right)
    expected[rows:] = 7  # rows that there are not are not written
    np.testing.assert_array_equal(y, expected)


@micro(int64, int64, int64)
def deep_product(x: V, y: V, rows: V) -> None:
    """32 numbers of each row; the right factor lies behind 16 rows of the left one."""
    shape_deep_tiles(rows)
    clear_tile(0)
    load_tile(4, x, 64)
    load_tile(6, x + 1024, 64)
    add_products_bf16(0, 4, 6)
    store_tile(0, y, 64)
    release_tiles()


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_products_of_bfloat16_are_sums_in_float32(rows):
    numbers = np.random.default_rng(rows).standard_normal(1024).astype(np.float32)
    x = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    numbers = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    y = np.full((16, 16), 7, np.float32)
    run(deep_product, x, y, rows)
    left, right = numbers[:512].reshape(16, 16, 2), numbers[512:].reshape(16, 16, 2)
    expected = np.einsum("rki,kci->rc", left, right)
    np.testing.assert_allclose(y[:rows], expected[:rows], rtol=0, atol=2e-6 * np.abs(left).max() * 32)
    np.testing.assert_array_equal(y[rows:], 7)  # rows that there are not are not written
