"""Adapters: what is added to a model's matrices, y = x W^T + scale * (x A^T) B^T (LoRA, Hu et al. 2021), as PEFT writes
them. Owns what of PEFT's config is understood; everything else in it that would change the sum is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..weights.adapter import AdapterFiles
from ..weights.checkpoint import InvalidModel, Weight
from .config import Config, Unsupported

MAX_RANK = 256
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# PEFT's wrapper, then the way to the layers that the kind of model has (with a vision tower it is longer)
_TENSOR = re.compile(
    r"base_model\.model\.(?:model\.|model\.language_model\.|language_model\.model\.|language_model\.)?"
    r"(?P<module>layers\.\d+\.(?:self_attn|mlp)\.(?P<last>\w+))\.lora_(?P<side>[AB])\.(?:default\.)?weight"
)
# of a config: what must be absent, empty or false, for with it the sum is another one
_PLAIN = (
    "alora_invocation_tokens",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # values of init_lora_weights


class Base(Protocol):
    """What an adapter is for, as far as that matters; an ops.Model says as much."""

    @property
    def modules(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def formats(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """What is added to one matrix: scale * B A."""

    down: Weight  # A [rank, inputs]
    up: Weight  # B [outputs, rank]
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """A and scale * B, float64. Raises InvalidModel where a number of them would be none in float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            down, up = self.down.float32().astype(np.float64), self.up.float32() * np.float64(self.scale)
        for each, values in ((self.down, down), (self.up, up)):
            if not (np.abs(values) <= np.finfo(np.float32).max).all():
                raise InvalidModel(f"the adapter's tensor {each.name!r} has values that are not finite")
        return down, up


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    pairs: Mapping[str, Pair]  # by the name of the module, as Linear.names has them
    digest: bytes  # of its files

    @property
    def rank(self) -> int:
        """The largest there is."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def elements(self) -> int:
        return sum(math.prod(each.shape) for pair in self.pairs.values() for each in (pair.down, pair.up))


def adapter(files: AdapterFiles, base: Base) -> Adapter:
    """The adapter of these files for a model. Raises InvalidModel where they are broken or made for another model,
    UnsupportedModel where they want something else than A and B of the known modules."""
    config = Config(files.config, "adapter_config.json")
    _refuse_others(config)
    sides: dict[str, dict[str, Weight]] = {}
    for name, weight in files.weights.items():
        if ".experts." in name:
            raise Unsupported(f"the adapter has the tensor {name!r}; experts of a mixture cannot be adapted")
        found = _TENSOR.fullmatch(name)
        if found is None or found["last"] not in MODULES:
            known = ", ".join(MODULES)
            raise Unsupported(f"the adapter has the tensor {name!r}; only A and B of {known} are supported")
        module = f"model.{found['module']}"
        if found["side"] in sides.setdefault(module, {}):
            raise InvalidModel(f"the adapter has a second tensor for {name!r}")
        sides[module][found["side"]] = weight
    if not sides:
        raise InvalidModel("the adapter has no tensors: it would change nothing")
    return Adapter({module: _pair(module, pair, config, base) for module, pair in sides.items()}, files.digest)


def _refuse_others(config: Config) -> None:
    config.require("peft_type", "LORA")
    config.require("task_type", "CAUSAL_LM")
    config.require("bias", "none")
    for key in _PLAIN:
        if config.values.get(key):
            raise Unsupported(f'{config.where}: "{key}" = {config.values[key]!r:.60} is not supported')
    start = config.values.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGE_THE_BASE):
        why = "such adapters belong to a base model that was changed, too; convert it to a plain one with PEFT"
        raise Unsupported(f'{config.where}: "init_lora_weights" = {start!r:.60} is not supported: {why}')


def _pair(module: str, sides: Mapping[str, Weight], config: Config, base: Base) -> Pair:
    if len(sides) < 2:
        raise InvalidModel(f"the adapter has lora_{next(iter(sides))} of {module} and not the other one")
    if module not in base.modules:
        raise InvalidModel(f"the adapter is for another model: this one has no {module}")
    down, up = sides["A"], sides["B"]
    outputs, inputs = base.modules[module]
    rank = down.shape[0] if down.shape else 0
    if down.shape != (rank, inputs) or up.shape != (outputs, rank):
        shapes = f"A {list(down.shape)} and B {list(up.shape)}"
        raise InvalidModel(f"the adapter is for another model: {module} is {[outputs, inputs]}, and not for {shapes}")
    said = _of_module(config, "rank_pattern", module, config.integer("r"))
    if rank != said:
        raise InvalidModel(f"the adapter's {module} has rank {rank}, and its config says {said}")
    if not 1 <= rank <= MAX_RANK:
        raise Unsupported(f"the adapter's {module} has rank {rank}; at most {MAX_RANK} is supported")
    alpha = float(_of_module(config, "alpha_pattern", module, config.number("lora_alpha")))
    scale = alpha / (math.sqrt(rank) if config.flag("use_rslora") else rank)
    if not math.isfinite(scale):
        raise InvalidModel(f'{config.where}: "lora_alpha" is not finite')
    return Pair(down, up, scale)


def _of_module(config: Config, key: str, module: str, otherwise: Any) -> Any:
    """A number for this module: of the first of PEFT's patterns that names it, else the general one."""
    patterns = Config(config.mapping(key) or {}, f"{config.where}: {key}")
    for pattern in patterns.values:
        name = pattern.removeprefix("^").replace(r"\.", ".")
        if not re.fullmatch(r"[\w.]+", name):
            raise Unsupported(f"{patterns.where}: {pattern!r:.60} is not supported; only names of modules are")
        if module == name or module.endswith(f".{name}"):
            return patterns.number(pattern)
    return otherwise
