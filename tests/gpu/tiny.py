"""The tiny models of tests/model with their matrices in any format."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from imp.model import arch
from imp.model.ops import Model
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS
from tests.model import tiny
from tests.model.test_arch import MemoryCheckpoint


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
        if self.form == "BF16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            raw = gguf.quantize(values, GGMLQuantizationType[self.form]).view(np.uint8)
        return Weight(name, raw.reshape(len(values), -1), FORMATS[self.form], values.shape)


def model(name: str, form: str = "F32", **changes: Any) -> Model:
    return arch.build(QuantisedCheckpoint(tiny.CONFIGS[name] | changes, tiny.tensors(name), form))
