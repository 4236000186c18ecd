"""What is done row by row: embeddings, norms, gated activations, conversions, the cap on logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.kernels import (
    FORM_TYPES,
    FORMS,
    TOLERANCE,
    Result,
    counts,
    error,
    module,
    padded,
    rows,
    run,
    values,
)
from tests.gpu.packing import F32, RECORD, random_weights

SHAPES = [(1, 64), (3, 200), (2, 1100), (2, 61)]  # tokens, columns


def norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tokens", "columns"), SHAPES)
def test_norm_as_an_operand(form: str, tokens: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    x, w, stride = rng.normal(size=(tokens, columns)), rng.normal(size=columns).astype(np.float32), padded(columns)
    out = Result((tokens, stride), FORM_TYPES[form])
    args = [rows(x, stride), w, 0, counts(tokens), 0, out, FORMS[form], columns, stride, stride, 1e-5]
    (y,) = run(module("norm.cu"), "rms_norm", (tokens,), 256, args)
    y = values(y, form)
    assert error(y[:, :columns], norm(rows(x, columns), w, 1e-5)) < TOLERANCE[form]
    assert not y[:, columns:].any()


def test_norm_of_chosen_rows() -> None:
    rng = np.random.default_rng(1)
    x, w, chosen = rng.normal(size=(5, 96)), rng.normal(size=96).astype(np.float32), np.array([4, 1, 0], np.int32)
    args = [rows(x, 128), w, chosen, counts(5, wanted=2), 2, Result((3, 128)), 0, 96, 128, 128, 1e-6]
    (y,) = run(module("norm.cu"), "rms_norm", (3,), 256, args)
    assert error(y[:2, :96], norm(rows(x, 96)[[4, 1]], w, 1e-6)) < TOLERANCE["f32"]
    assert np.isnan(y[2]).all()  # not wanted


@pytest.mark.parametrize(("tokens", "columns"), SHAPES)
def test_norm_added_to_a_residual(tokens: int, columns: int) -> None:
    rng = np.random.default_rng(columns + 1)
    x, w, residual = (
        rng.normal(size=(tokens, columns)),
        rng.normal(size=columns).astype(np.float32),
        rng.normal(size=(tokens, columns)),
    )
    stride = padded(columns)
    out = Result(values=rows(residual, stride))
    args = [rows(x, stride), w, out, counts(tokens), columns, stride, stride, 1e-5]
    (y,) = run(module("norm.cu"), "rms_norm_add", (tokens + 1,), 256, args)
    assert error(y[:, :columns], rows(residual, columns) + norm(rows(x, columns), w, 1e-5)) < TOLERANCE["f32"]
    assert np.isnan(y[:, columns:]).all()


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("number", "activation"), [(0, silu), (1, gelu_tanh)])
@pytest.mark.parametrize(("tokens", "columns"), SHAPES)
def test_gated_activations(form: str, number: int, activation: object, tokens: int, columns: int) -> None:
    rng = np.random.default_rng(columns + 2)
    both = rows(rng.normal(size=(tokens, 2 * columns)) * 3, padded(2 * columns))
    both[-1, : 2 * columns] *= 300  # of the last token some are past float16's range
    stride, xscale = padded(columns), Result((tokens,))
    args = [
        both,
        Result((tokens, stride), FORM_TYPES[form]),
        xscale,
        FORMS[form],
        counts(tokens),
        columns,
        both.shape[1],
        stride,
        number,
    ]
    y, scale = run(module("glu.cu"), "glu", (tokens + 1,), 256, args)
    y = values(y, form)
    gate, up = both[:, :columns].astype(np.float64), both[:, columns : 2 * columns].astype(np.float64)
    with np.errstate(over="ignore"):
        expected = activation(gate) * up  # type: ignore[operator]
    if form == "f16":
        np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)  # powers of two
        assert (scale[:-1] == 1).all() and scale[-1] > 1
    else:
        scale = np.ones(tokens)
    for t in range(tokens):
        assert error(y[t, :columns] * scale[t], expected[t]) < TOLERANCE[form]
    assert not y[:, columns:].any()


@pytest.mark.parametrize("form", FORMS)
def test_conversion(form: str) -> None:
    x = np.random.default_rng(3).normal(size=(3, 1030)).astype(np.float32)
    args = [rows(x, 1088), Result((3, 1088), FORM_TYPES[form]), FORMS[form], counts(3), 1030, 1088, 1088]
    (y,) = run(module("convert.cu"), "convert", (4,), 256, args)
    y = values(y, form)
    assert error(y[:, :1030], x) < TOLERANCE[form]
    assert not y[:, 1030:].any()


def test_cap_on_logits() -> None:
    x = np.random.default_rng(4).normal(size=(3, 1100)).astype(np.float32) * 40
    x[0, :4] = [1e-3, -1e-3, 1e4, -1e4]
    args = [Result(values=rows(x, 1152)), counts(9, wanted=2), 2, 1100, 1152, 30.0]
    (y,) = run(module("convert.cu"), "softcap", (3, 2), 256, args)
    assert error(y[:2, :1100], 30 * np.tanh(x[:2].astype(np.float64) / 30)) < TOLERANCE["f32"]
    np.testing.assert_array_equal(y[2, :1100], x[2])


@pytest.mark.parametrize("format", sorted(RECORD))
def test_embedding(format: int) -> None:
    rng = np.random.default_rng(format + 5)
    w, stride = random_weights(format, 37, 90, rng), 128
    tokens = np.array([36, 0, 8, 15, 16], np.int32)
    args = [w.codes, w.scales, w.row_scales, tokens, counts(4), Result((5, stride)), 90, w.columns, stride, 2.5]
    (y,) = run(module("embed.cu", FMT=format), "embed", (5,), 128, args)
    assert error(y[:4, :90], w.values[tokens[:4]] * 2.5) < TOLERANCE["f32" if format == F32 else "f16"]
    assert not y[:4, 90:].any()
    assert np.isnan(y[4]).all()
