"""Adapters against float64: tokens with different ones, with none, and parts of a site that an adapter leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.kernels import FORMS, TOLERANCE, Result, counts, error, module, operand, padded, rows, run, values

PAIR = np.dtype([("a", "<u8"), ("b", "<u8"), ("rank", "<i4"), ("first", "<i4")])
RANKS = [(3, 8), (16, 0), (0, 5)]  # of the two parts of a site, in each adapter; 0: nothing


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, (40, 24)), (300, (513, 7)), (33, (1, 600))])
def test_adapters(form: str, inputs: int, outputs: tuple[int, int]) -> None:
    rng = np.random.default_rng(inputs)
    wide, ldx, ldy = form == "f32", padded(inputs), padded(sum(outputs))
    kind = np.float32 if wide else np.float16
    x = operand(rng.normal(size=(5, inputs)), form, ldx)
    exact = values(x, form)[:, :inputs].astype(np.float64)
    xscale = np.array([1, 2, 1, 4, 1], np.float32)
    adapters = np.array([1, -1, 0, 2, 0], np.int32)
    residual = rng.normal(size=(5, sum(outputs))).astype(np.float32)
    expected, memory = residual.astype(np.float64), []
    site, parts = np.zeros(3, PAIR), [np.zeros(3, PAIR), np.zeros(3, PAIR)]
    for slot, ranks in enumerate(RANKS):
        a = np.zeros((sum(ranks), ldx), kind)
        a[:, :inputs] = rng.normal(size=(sum(ranks), inputs)) * 0.1
        memory.append(a)
        site[slot] = a.ctypes.data, 0, sum(ranks), 0
        h = exact @ a[:, :inputs].astype(np.float64).T * xscale[:, None]
        first = column = 0
        for part, rank, n in zip(parts, ranks, outputs, strict=True):
            b = (rng.normal(size=(rank, n)) * 0.3).astype(kind)
            memory.append(b)
            part[slot] = 0, b.ctypes.data if rank else 0, rank, first
            mine = adapters == slot
            expected[mine, column : column + n] += h[mine, first : first + rank] @ b.astype(np.float64)
            first, column = first + rank, column + n
    for array in memory:
        array.flags.writeable = False
    built = module("lora.cu", WIDE=int(wide))
    args = [x, FORMS[form], xscale, adapters, counts(5), site, Result((6, 20)), ldx, 20]
    (h,) = run(built, "shrink", (6,), 128, args, memory=memory)
    y, column = rows(residual, ldy), 0
    for part, n in zip(parts, outputs, strict=True):
        args = [h, adapters, counts(5), part, Result(values=y), column, n, 20, ldy]
        (y,) = run(built, "expand", (6, -(-n // 256)), 128, args, memory=memory)
        column += n
    assert np.isnan(h[1]).all() and np.isnan(h[5]).all()  # tokens without an adapter, and those that are none
    np.testing.assert_array_equal(y[1, : sum(outputs)], residual[1])
    assert np.isnan(y[:, sum(outputs) :]).all()
    assert error(y[:, : sum(outputs)], expected) < TOLERANCE["f32"]
