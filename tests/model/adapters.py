"""Tiny adapters made of a seed, as PEFT's directories: the same files for our reader and for the judge that wrote
golden_adapters.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

try:
    from . import tiny
except ImportError:  # the judge runs beside us, where there is no package
    import tiny

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")

# name -> config beside the defaults; `layers` says which have it, where not all
ADAPTERS: dict[str, dict[str, Any]] = {
    "everywhere": {"r": 4, "lora_alpha": 8, "target_modules": [*ATTENTION, *MLP]},
    "attention": {"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": list(ATTENTION)},
    "some": {"r": 1, "lora_alpha": 3, "target_modules": ["v_proj", "up_proj"], "layers_to_transform": [1]},
    "patterns": {
        "r": 3,
        "lora_alpha": 3,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "rank_pattern": {"layers.1.self_attn.q_proj": 20, "down_proj": 5},
        "alpha_pattern": {"v_proj": 9},
    },
}
MODELS = ("llama", "llama-biased", "mistral-sliding", "gemma3")


def config(name: str) -> dict[str, Any]:
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True} | ADAPTERS[name]


def modules(model: str) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of all that adapters may be for, in the order of the layers."""
    given = tiny.tensors(model)
    names = [name.removesuffix(".weight") for name in given]
    return {name: given[f"{name}.weight"].shape for name in names if name.endswith("_proj")}


def tensors(model: str, name: str) -> dict[str, np.ndarray]:
    """float32 A and B under PEFT's names."""
    own, rng = config(name), np.random.default_rng([MODELS.index(model), sorted(ADAPTERS).index(name)])
    out = {}
    for module, (outputs, inputs) in modules(model).items():
        layer, last = int(module.split(".")[2]), module.rpartition(".")[2]
        if last not in own["target_modules"] or layer not in own.get("layers_to_transform", [layer]):
            continue
        ranks = own.get("rank_pattern", {})
        rank = next((r for pattern, r in ranks.items() if module.endswith(f".{pattern}")), own["r"])
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = (rng.standard_normal(shape) * 0.15).astype(np.float32)
            out[f"base_model.model.{module}.lora_{side}.weight"] = values
    return out


def write(folder: Path, model: str, name: str, **changes: Any) -> Path:
    """The adapter's directory below `folder`; changes: of its config, None takes a key out."""
    path = folder / f"{model}-{name}"
    path.mkdir(parents=True, exist_ok=True)
    own = {key: value for key, value in (config(name) | changes).items() if value is not None}
    (path / "adapter_config.json").write_text(json.dumps(own))
    save_file(tensors(model, name), path / "adapter_model.safetensors")
    return path
