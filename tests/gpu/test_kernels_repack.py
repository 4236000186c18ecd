"""Weights brought into order on the device: the bits that the host's packing gives."""

from __future__ import annotations

import numpy as np
import pytest

from imp.cuda.entries import FILES
from imp.cuda.layouts import Packed
from imp.weights.quant import FORMATS
from tests.cpu.harness import weight
from tests.gpu.kernels import Result, module, run
from tests.gpu.test_layouts import whole


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize(("rows", "columns"), [(21, 96), (48, 320), (16, 1)])
def test_what_the_host_makes_of_a_file(name: str, rows: int, columns: int) -> None:
    block = FORMATS[name].block
    w = weight(name, rows, -(-columns // block) * block, np.random.default_rng(rows))
    packed, (codes, scales, _) = Packed(w), whole(Packed(w))
    records = packed.columns // packed.layout.columns
    results = [Result(codes.shape, np.uint8), Result(scales.shape, np.uint8) if scales.size else 0]
    args = [np.array(w.data), *results, w.data.shape[1], rows, w.shape[1], records]
    found = run(module("repack.cu", SRC=FILES[name]), "repack", (packed.tiles, -(-records // 8)), 256, args)
    np.testing.assert_array_equal(found[0], codes)
    if scales.size:
        np.testing.assert_array_equal(found[1], scales)
