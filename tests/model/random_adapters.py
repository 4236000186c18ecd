"""Adapters of random numbers for any model, in memory."""

from __future__ import annotations

import numpy as np

from imp.model.lora import MODULES, Adapter, Base, Pair
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS


def matrix(name: str, values: np.ndarray) -> Weight:
    """float32"""
    raw = np.ascontiguousarray(values, np.float32)
    return Weight(name, raw.view(np.uint8), FORMATS["F32"], (raw.shape[0], raw.shape[1]))


def random(base: Base, rank: int, seed: int, size: float = 0.02, modules: tuple[str, ...] = MODULES) -> Adapter:
    """size: the standard deviation of all numbers of A and B."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, (outputs, inputs) in base.modules.items():
        if name.rpartition(".")[2] in modules:
            down, up = (matrix(name, rng.standard_normal(shape) * size) for shape in ((rank, inputs), (outputs, rank)))
            pairs[name] = Pair(down, up, 2.0)
    return Adapter(pairs, bytes([seed]))
