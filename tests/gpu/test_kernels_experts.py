"""Mixtures of experts against float64: who is chosen, where rows go, and what comes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.kernels import TOLERANCE, Result, counts, error, module, padded, rows, run
from tests.gpu.packing import BF16, F32, FORM_OF, INT4M, MXFP4, Packed, random_weights
from tests.gpu.test_kernels_linear import activations, operand

SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID = range(3)


def chosen(
    logits: np.ndarray, k: int, kind: int, bias: object, normalise: bool, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    x = logits.astype(np.float64)
    softmax = np.exp(x - x.max(1, keepdims=True))
    scores = {SOFTMAX: softmax / softmax.sum(1, keepdims=True), SOFTMAX_OF_CHOSEN: x, SIGMOID: 1 / (1 + np.exp(-x))}[
        kind
    ]
    experts = np.argsort(-(scores + (bias if isinstance(bias, np.ndarray) else 0)), axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, experts, 1)
    if kind == SOFTMAX_OF_CHOSEN:
        weights = np.exp(weights - weights[:, :1])
    if normalise or kind == SOFTMAX_OF_CHOSEN:
        weights = weights / weights.sum(1, keepdims=True)
    return experts, weights * scale


@pytest.mark.parametrize("kind", [SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID])
@pytest.mark.parametrize(("experts", "k", "normalise"), [(8, 2, True), (40, 6, False), (130, 8, True), (3, 3, False)])
def test_who_is_chosen(kind: int, experts: int, k: int, normalise: bool) -> None:
    rng = np.random.default_rng(experts + kind)
    logits = rng.normal(size=(5, experts)).astype(np.float32)
    logits[1, 1] = logits[1, 2] = 9  # equals: the lower one first
    if experts > 35:
        logits[2, 3] = logits[2, 35] = 9  # of one lane
    bias = rng.normal(size=experts).astype(np.float32) * 0.1 if kind == SIGMOID else 0
    args = [rows(logits, padded(experts)), bias, counts(5), Result((6, k), np.int32), Result((6, k)), experts, k, padded(experts),
            kind, int(normalise), 1.5]  # fmt: skip
    found, weights = run(module("experts.cu"), "route", (6,), 32, args)
    expected, expected_weights = chosen(logits, k, kind, bias, normalise, 1.5)
    np.testing.assert_array_equal(found[:5], expected)
    assert error(weights[:5], expected_weights) < TOLERANCE["f32"]
    assert (found[5] == -1).all()


def test_scores_that_are_no_numbers_choose_experts_that_there_are() -> None:
    logits = np.full((1, padded(8)), np.nan, np.float32)
    args = [logits, 0, counts(1), Result((1, 2), np.int32), Result((1, 2)), 8, 2, padded(8), SOFTMAX, 1, 1.0]
    found, _ = run(module("experts.cu"), "route", (1,), 32, args)
    assert ((found >= 0) & (found < 8)).all()


def placed(experts: np.ndarray, count: int, align: int, tiles: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, k = experts.shape
    (sizes,) = run(
        module("experts.cu"), "count_entries", (count,), 32, [experts, counts(tokens), Result((count,), np.int32), k]
    )
    np.testing.assert_array_equal(sizes, np.bincount(experts.reshape(-1), minlength=count))
    args = [experts, sizes, counts(tokens), Result(experts.shape, np.int32), Result(values=np.full(tiles * align, 7, np.int32)),
            Result((tiles,), np.int32), Result((1,), np.int32), count, k, align, tiles]  # fmt: skip
    places, sources, tile_expert, total = run(module("experts.cu"), "place", (count,), 32, args)
    assert total == align * (tile_expert >= 0).sum()
    return places, sources, tile_expert


@pytest.mark.parametrize(("count", "k", "align"), [(8, 2, 8), (40, 4, 32), (5, 1, 8)])
def test_where_rows_go(count: int, k: int, align: int) -> None:
    rng = np.random.default_rng(count)
    experts = np.stack([rng.choice(count, k, replace=False) for _ in range(45)]).astype(np.int32)
    tiles = count + 45 * k // align + 2
    places, sources, tile_expert = placed(experts, count, align, tiles)
    assert len(np.unique(places)) == places.size
    for t in range(45):
        for i in range(k):
            assert sources[places[t, i]] == t and tile_expert[places[t, i] // align] == experts[t, i]
    used = (tile_expert >= 0).sum()
    assert used == sum(-(-n // align) for n in np.bincount(experts.reshape(-1), minlength=count))
    assert (tile_expert[used:] == -1).all() and (np.diff(tile_expert[:used]) >= 0).all()
    assert (sources[: used * align] >= 0).sum() == places.size
    for e in range(count):  # in order of entries
        assert (np.diff(places.reshape(-1)[experts.reshape(-1) == e]) == 1).all()


@pytest.mark.parametrize("format", [F32, BF16, INT4M, MXFP4])
@pytest.mark.parametrize("token_tiles", [1, 4])
def test_what_comes_of_them(format: int, token_tiles: int) -> None:
    """Rows of tokens through their experts and through a second product, added up; a token alone gets the same bits."""
    rng = np.random.default_rng(format + 9)
    tokens, count, k, inputs, inner, align = 21, 5, 2, 96, 40, 8 * token_tiles
    first, second = (
        [random_weights(format, n, m, rng) for _ in range(count)] for n, m in ((inner, inputs), (24, inner))
    )
    x, form = activations(format, tokens, inputs, rng), FORM_OF.get(format, "f16")
    experts = np.stack([rng.choice(count, k, replace=False) for _ in range(tokens)]).astype(np.int32)
    weights, before = rng.uniform(size=(tokens, k)).astype(np.float32), rng.normal(size=(tokens, 24)).astype(np.float32)
    bias = rng.normal(size=(count, inner)).astype(np.float32)

    def product(
        matrices: list[Packed], x: np.ndarray, bias: object, sources: np.ndarray, tile_expert: np.ndarray, gathered: int
    ) -> np.ndarray:
        codes, scales, row_scales = (
            np.stack([getattr(m, name) for m in matrices]) for name in ("codes", "scales", "row_scales")
        )
        n = len(matrices[0].values)
        args = [codes, scales, row_scales if format == MXFP4 else 0, x, 0, bias, Result((len(sources), padded(n))), sources, tile_expert, n,
                matrices[0].columns, x.shape[1], padded(n), gathered, codes[0].nbytes // 16, scales[0].nbytes, n]  # fmt: skip
        if format == MXFP4:
            args[2] = np.stack([m.row_scales[:n] for m in matrices])
        grid = (-(-n // 16), len(tile_expert))
        (y,) = run(module("linear_experts.cu", FMT=format, NT=token_tiles), "linear_experts", grid, 128, args)
        assert np.isnan(y[:, n:]).all()
        return y[:, :n]

    def through(which: slice) -> tuple[np.ndarray, np.ndarray]:
        mine, some = experts[which], x[which]
        places, sources, tile_expert = placed(mine, count, align, count + mine.size // align + 2)
        h = product(first, operand(some, form, 128), bias, sources, tile_expert, 1)
        inside = sources >= 0
        kept = operand(np.where(inside[:, None], h, 0), form, 64)
        y = product(second, kept, 0, sources, tile_expert, 0)
        args = [
            rows(y, 64),
            places,
            weights[which],
            counts(len(mine)),
            Result(values=rows(before[which], 64)),
            24,
            k,
            64,
            64,
        ]
        (out,) = run(module("experts.cu"), "gather", (len(mine) + 1,), 256, args)
        return out[:, :24], h[places]

    found, inside = through(slice(0, tokens))
    expected, middle = before.astype(np.float64), np.zeros((tokens, k, inner))
    for t in range(tokens):
        for i, e in enumerate(experts[t]):
            middle[t, i] = first[e].values @ x[t].astype(np.float64) + bias[e]
            expected[t] += weights[t, i] * (second[e].values @ middle[t, i])
    assert error(inside, middle) < TOLERANCE["f32" if format == F32 else "f16"]
    assert error(found, expected) < (2 * TOLERANCE[form] if format != F32 else TOLERANCE["f32"])
    np.testing.assert_array_equal(through(slice(7, 8))[0][0], found[7])
