"""The matrix product against float64, in every format of weights; its bits do not depend on other tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.emulator import tensor_map
from tests.gpu.kernels import TOLERANCE, Result, counts, error, module, operand, padded, run, values
from tests.gpu.packing import F32, FORM_OF, INT4K, RECORD, Packed, random_weights

FORMATS = sorted(RECORD)


def product(
    w: Packed, format: int, x: np.ndarray, tokens: int, entry: str = "linear", tiles: int = 1, **more: np.ndarray
) -> np.ndarray:
    """float32 [all of x's rows, outputs]; of rows from `tokens` on, what was there before."""
    form, n = FORM_OF.get(format, "f16"), len(w.values)
    stride = padded(n)
    before = np.full((len(x), stride), np.nan, np.float32)
    add = "residual" in more
    if add:
        before[:, :n] = more["residual"]
    grid = (-(-n // 16), -(-len(x) // (8 * tiles))) if entry == "linear" else (-(-n // 32), -(-len(x) // 64))
    xs = operand(x, form, w.columns)
    args = [
        w.codes,
        w.scales,
        w.row_scales,
        xs,
        more.get("xscale", 0),
        more.get("bias", 0),
        Result(values=before),
        counts(tokens),
        0,
        n,
        w.columns,
        xs.shape[1],
        stride,
        int(add),
    ]
    (y,) = run(module("linear.cu", FMT=format, NT=tiles if entry == "linear" else 0), entry, grid, 128, args)
    assert np.isnan(y[:, n:]).all()
    return y[:, :n]


def activations(format: int, tokens: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """float32 that the operand's form holds exactly."""
    form = FORM_OF.get(format, "f16")
    return values(operand(rng.normal(size=(tokens, columns)), form, columns), form)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("tokens", "outputs", "columns"), [(1, 40, 320), (5, 16, 96), (8, 33, 512)])
def test_product(format: int, tokens: int, outputs: int, columns: int) -> None:
    rng = np.random.default_rng(format * 1000 + columns)
    w, x = random_weights(format, outputs, columns, rng), activations(format, tokens, columns, rng)
    y = product(w, format, x, tokens)
    assert error(y, x @ w.values.T) < TOLERANCE["f32" if format == F32 else "f16"]


@pytest.mark.parametrize("format", FORMATS)
def test_bias_scales_and_sum(format: int) -> None:
    rng = np.random.default_rng(format)
    w, x = random_weights(format, 24, 128, rng), activations(format, 3, 128, rng)
    bias, residual = rng.normal(size=24).astype(np.float32), rng.normal(size=(3, 24)).astype(np.float32)
    xscale = np.array([1, 4, 0.5], np.float32)
    y = product(w, format, x, 3, bias=bias, residual=residual, xscale=xscale)
    expected = residual + bias + x @ w.values.T * xscale[:, None]
    assert error(y, expected) < TOLERANCE["f32" if format == F32 else "f16"]


@pytest.mark.parametrize("format", FORMATS)
def test_bits_do_not_depend_on_other_tokens(format: int) -> None:
    """One token alone, among 19, and among 70 in the kernel for many: the same bits."""
    rng = np.random.default_rng(format + 50)
    w, x = random_weights(format, 40, 448, rng), activations(format, 70, 448, rng)
    alone = product(w, format, x[17:18], 1)
    few = product(w, format, x[:24], 19, tiles=4)
    many = product(w, format, x, 70, "linear_tiled")
    np.testing.assert_array_equal(few[17], alone[0])
    np.testing.assert_array_equal(many[:19], few[:19])
    assert np.isnan(few[19:]).all()  # tokens that the step does not have are left alone
    assert error(many, x @ w.values.T) < TOLERANCE["f32" if format == F32 else "f16"]


@pytest.mark.parametrize("format", sorted({*RECORD} - {F32, INT4K}))
@pytest.mark.parametrize(("tokens", "outputs", "columns"), [(70, 150, 384), (3, 16, 64)])
def test_product_by_warp_groups(format: int, tokens: int, outputs: int, columns: int) -> None:
    """Hopper's kernel for many tokens: its sums are the other kernels'."""
    rng = np.random.default_rng(format + columns)
    w, x = random_weights(format, outputs, columns, rng), activations(format, tokens, columns, rng)
    bias, residual = rng.normal(size=outputs).astype(np.float32), rng.normal(size=(tokens, outputs)).astype(np.float32)
    xscale = rng.choice([0.5, 1, 2], tokens).astype(np.float32)
    built = module("linear_wgmma.cu", FMT=format)
    xs = operand(x, FORM_OF.get(format, "f16"), w.columns)
    (ordered,) = run(
        built, "in_order", (tokens + 1,), 128, [xs, Result(xs.shape, xs.dtype), counts(tokens), 0, w.columns]
    )
    for column in range(0, w.columns, 16):  # pairs of columns, as lanes want them
        pairs = xs[:, column : column + 16].reshape(tokens, 4, 2, 2).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(ordered[:, column : column + 16].reshape(tokens, 2, 4, 2), pairs)
    before = np.full((tokens, padded(outputs)), np.nan, np.float32)
    before[:, :outputs] = residual
    args = [w.codes, w.scales, w.row_scales, tensor_map(ordered, (64, 64)), xscale, bias, Result(values=before), counts(tokens), 0,
            outputs, w.columns, before.shape[1], 1]  # fmt: skip
    (y,) = run(built, "linear_wgmma", (-(-outputs // 128), -(-tokens // 64)), 384, args, 33792, memory=[ordered])
    assert np.isnan(y[:, outputs:]).all()
    assert error(y[:, :outputs], residual + bias + x @ w.values.T * xscale[:, None]) < TOLERANCE["f16"]
    if tokens < 8:  # the same bits, too, where the emulator adds up both instructions alike
        few = product(w, format, x, tokens, bias=bias, residual=residual, xscale=xscale)
        np.testing.assert_array_equal(y[:, :outputs], few)
