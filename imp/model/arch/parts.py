"""What architecture files share: reading named tensors with their shapes checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...weights.checkpoint import Checkpoint, InvalidModel, Weight
from ..ops import Linear, Norm


@dataclass(frozen=True, slots=True)
class Tensors:
    """Named reads from a checkpoint; a tensor of an unexpected shape is an invalid model."""

    checkpoint: Checkpoint

    def matrix(self, name: str, outputs: int, inputs: int) -> Weight:
        weight = self.checkpoint.weight(name)
        if weight.shape != (outputs, inputs):
            raise InvalidModel(f"{name} has shape {weight.shape}, the config says {(outputs, inputs)}")
        return weight

    def vector(self, name: str, size: int) -> np.ndarray:
        weight = self.checkpoint.weight(name)
        if weight.shape != (size,):
            raise InvalidModel(f"{name} has shape {weight.shape}, the config says {(size,)}")
        return weight.float32()

    def linear(self, prefix: str, parts: dict[str, int], inputs: int) -> Linear:
        """Stack `prefix.part.weight` (part -> outputs), with their biases where the checkpoint has them."""
        names = [f"{prefix}.{part}" if prefix else part for part in parts]
        weights = tuple(self.matrix(f"{n}.weight", size, inputs) for n, size in zip(names, parts.values(), strict=True))
        biased = [f"{n}.bias" in self.checkpoint for n in names]
        if not any(biased):
            return Linear(weights, names=tuple(names))
        biases = [
            self.vector(f"{n}.bias", size) if has else np.zeros(size, np.float32)
            for n, size, has in zip(names, parts.values(), biased, strict=True)
        ]
        return Linear(weights, np.concatenate(biases), tuple(names))

    def norm(self, name: str, size: int, eps: float, offset: float = 0.0) -> Norm:
        return Norm(self.vector(f"{name}.weight", size) + np.float32(offset), eps)
