"""The tiny models of tests/model with their matrices in any format."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from imp.model import arch
from imp.model.kv import E2M1, E4M3
from imp.model.ops import Model
from imp.weights.checkpoint import Weight
from imp.weights.quant import F4_E2M1, F8_E4M3, FORMATS, QuantFormat
from imp.weights.weight import Scales
from tests.model import tiny
from tests.model.test_arch import MemoryCheckpoint


def fp8(name: str, values: np.ndarray) -> Weight:
    """A scale for the whole matrix."""
    scale = np.full((1, 1), np.abs(values).max() / 448, np.float32)
    return _scaled(name, values, E4M3.codes(values / scale), F8_E4M3, Scales(scale.view(np.uint8), FORMATS["F32"], *values.shape))


def fp8_blocks(name: str, values: np.ndarray) -> Weight:
    """One for 4 rows and 32 columns, in bfloat16."""
    largest = np.abs(values).reshape(-1, 4, values.shape[1] // 32, 32).max(axis=(1, 3)) / np.float32(448)
    scales = Scales((largest.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), FORMATS["BF16"], 4, 32)
    codes = E4M3.codes(values / np.repeat(scales.values(range(len(values))), 32, axis=1))
    return _scaled(name, values, codes, F8_E4M3, scales)


def nvfp4(name: str, values: np.ndarray) -> Weight:
    groups = values.reshape(len(values), -1, 16)
    whole = float(np.abs(values).max() / (6 * 448))
    codes = E4M3.codes(np.abs(groups).max(axis=-1) / np.float32(6 * whole))
    scales = Scales(codes, F8_E4M3, 1, 16, whole)
    steps = np.maximum(scales.values(range(len(values))), np.float32(1e-9))
    small = E2M1.codes(values / np.repeat(steps, 16, axis=1))
    return _scaled(name, values, small[:, ::2] | small[:, 1::2] << 4, F4_E2M1, scales)


def _scaled(name: str, values: np.ndarray, data: np.ndarray, form: QuantFormat, scales: Scales) -> Weight:
    return Weight(name, data.astype(np.uint8), form, values.shape, scales)


SMALL_FLOATS = {"FP8": fp8, "FP8 blocks": fp8_blocks, "NVFP4": nvfp4}


class QuantisedCheckpoint(MemoryCheckpoint):
    """Matrices in a format by its name, vectors as they are."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray], form: str) -> None:
        super().__init__(config, tensors)
        self.form = form

    def weight(self, name: str) -> Weight:
        own = super().weight(name)
        if len(own.shape) < 2 or self.form == "F32":
            return own
        values = np.ascontiguousarray(self.tensors[name])
        if self.form in SMALL_FLOATS:
            return SMALL_FLOATS[self.form](name, values)
        if self.form == "BF16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            raw = gguf.quantize(values, GGMLQuantizationType[self.form]).view(np.uint8)
        return Weight(name, raw.reshape(len(values), -1), FORMATS[self.form], values.shape)


def model(name: str, form: str = "F32", **changes: Any) -> Model:
    return arch.build(QuantisedCheckpoint(tiny.CONFIGS[name] | changes, tiny.tensors(name), form))
