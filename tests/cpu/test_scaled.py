"""Matrices of 8- and 4-bit floats with scales of their own: what repacking them for the CPU costs."""

from __future__ import annotations

import numpy as np
import pytest

from imp.model.ops import Linear
from imp.weights.checkpoint import open_checkpoint
from tests.cpu.harness import quantised
from tests.cpu.test_matmul import read_back
from tests.weights.test_scaled import EXPECTED, SCALED


@pytest.mark.parametrize("name", ["block.weight", "mxfp8.weight", "mxfp4.weight", "nvfp4.weight", "tensor.weight"])
def test_scaled_matrices(bench, name):
    w, expected = open_checkpoint(SCALED).weight(name), EXPECTED[name].astype(np.float64)
    found = read_back(bench, w)
    halves = expected.reshape(len(expected), -1, 16)
    bound = np.abs(halves).max(axis=-1, keepdims=True) / 254 * 1.002
    assert (np.abs(found.reshape(halves.shape) - halves) <= bound + 1e-7).all()
    x = np.random.default_rng(0).standard_normal((3, expected.shape[1])).astype(np.float32)
    y = bench.run(lambda ops, x: ops.linear(x, Linear((w,))), x)
    small = w.format.name == "F4_E2M1" and w.scales.of_columns == 32
    seen = quantised(x, bench.kernels.variant, "MXFP4" if small else "Q8_0")
    assert (np.abs(y - seen @ expected.T) <= np.abs(seen) @ np.abs(expected).T * 8e-3 + 1e-6).all()
