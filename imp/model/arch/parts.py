"""What architecture files share: reading named tensors with their shapes checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...weights.checkpoint import Checkpoint, InvalidModel, Weight
from ..config import Unsupported
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

    def matrices(self, name: str, count: int, outputs: int, inputs: int) -> tuple[Weight, ...]:
        """Those that one tensor [count, outputs, inputs] consists of."""
        whole = self.checkpoint.weight(name)
        if whole.shape != (count, outputs, inputs):
            raise InvalidModel(f"{name} has shape {whole.shape}, the config says {(count, outputs, inputs)}")
        if whole.scales is not None:
            raise Unsupported(f"{name} has scales in a tensor of their own; several matrices in one are not read so")
        parts = whole.data.reshape(count, outputs, -1)
        return tuple(Weight(f"{name}[{i}]", part, whole.format, (outputs, inputs)) for i, part in enumerate(parts))

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
