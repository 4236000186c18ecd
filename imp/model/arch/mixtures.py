"""Mixtures of experts as published: which layers of a model have one, by what config, and under which names."""

from __future__ import annotations

from dataclasses import dataclass

from ...weights.checkpoint import InvalidModel, Weight
from ..config import Config
from ..layers import Mixture
from ..ops import Experts, Linear
from .parts import Tensors


@dataclass(frozen=True, slots=True)
class Names:
    """Of a layer's modules; gate, up and down are each expert's."""

    router: str
    experts: str
    gate: str
    up: str
    down: str


NAMES = {
    "mixtral": Names("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
    "qwen3_moe": Names("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"),
}
INNER = {"qwen3_moe": "moe_intermediate_size"}  # the config's size of an expert, where it is not intermediate_size
ALWAYS_NORMALISED = ("mixtral",)  # the others say it


@dataclass(frozen=True, slots=True)
class Mixtures:
    """Of the layers of one model."""

    names: Names
    hidden: int
    inner: int
    count: int
    chosen: int
    normalised: bool
    dense: frozenset[int]  # layers that have none

    def at(self, layer: int, tensors: Tensors) -> Mixture | None:
        """The layer's; None: it has a plain MLP."""
        if layer in self.dense:
            return None
        at, n = f"model.layers.{layer}", self.names
        gate, up = (self._each(tensors, f"{at}.{n.experts}", part, self.inner, self.hidden) for part in (n.gate, n.up))
        down = self._each(tensors, f"{at}.{n.experts}", n.down, self.hidden, self.inner)
        router = Linear((tensors.matrix(f"{at}.{n.router}.weight", self.count, self.hidden),))
        return Mixture(router, Experts(gate, up, down, self.chosen, self.normalised, "silu"))

    def _each(self, tensors: Tensors, at: str, part: str, outputs: int, inputs: int) -> tuple[Weight, ...]:
        """One matrix of every expert: of one tensor, as GGUF has them, or of a tensor each."""
        if f"{at}.{part}.weight" in tensors.checkpoint:
            return tensors.matrices(f"{at}.{part}.weight", self.count, outputs, inputs)
        return tuple(tensors.matrix(f"{at}.{i}.{part}.weight", outputs, inputs) for i in range(self.count))


def mixtures(config: Config, kind: str, layers: int, hidden: int) -> Mixtures | None:
    """Of a model of this type; None: there are none."""
    if kind not in NAMES:
        return None
    count = config.integer("num_experts", None) or config.integer("num_local_experts")
    chosen = config.integer("num_experts_per_tok")
    if chosen > count:
        raise InvalidModel(f"a token cannot go through {chosen} of {count} experts")
    every, plain = config.integer("decoder_sparse_step", 1), config.values.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise InvalidModel(f'config: "mlp_only_layers" must be an array, not {plain!r:.60}')
    return Mixtures(
        NAMES[kind],
        hidden,
        config.integer(INNER.get(kind, "intermediate_size")),
        count,
        chosen,
        kind in ALWAYS_NORMALISED or config.flag("norm_topk_prob"),
        frozenset(i for i in range(layers) if (i + 1) % every or i in plain),
    )
