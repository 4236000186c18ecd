"""Another rope scaling than the model's own, as the operator wants it: a config rewritten before a model is built.

What it does to answers is the operator's to judge. Positions past what the config then says are refused as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import Config, Unsupported
from .rope import kind_of

KINDS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # of Llama 3.1
IGNORES_DIVISORS = "rope_freqs_replaced"  # key of a config: GGUF's rope_freqs, which are a scaling, are not used


@dataclass(frozen=True, slots=True)
class Rescaling:
    kind: str = ""  # of KINDS; "": the model's own
    factor: float = 0.0  # how many times longer texts become; 0: the model's own
    original: int = 0  # positions before; 0: what the model says


OWN = Rescaling()


def rescaled(config: Mapping[str, Any], wanted: Rescaling) -> dict[str, Any]:
    """A config with that scaling, and with the context that it gives. Raises InvalidModel, UnsupportedModel where it
    cannot have it."""
    own = _own(config)
    read, given = Config(own, "rope_scaling"), Config(config)
    kind = wanted.kind or kind_of(read)
    kept = own if kind == kind_of(read) else {}
    before = given.integer("original_max_position_embeddings", given.integer("max_position_embeddings"))
    original = wanted.original or read.integer("original_max_position_embeddings", before)
    if kind in ("none", "default"):
        if wanted.factor:
            raise Unsupported('rope.factor needs rope.scaling: the model has none of its own, or "none" is asked for')
        return _with(config, {"rope_type": "default"}, original)
    factor = wanted.factor or Config(kept, "rope_scaling").number("factor", None)
    if kind == "longrope" and "long_factor" not in kept:
        raise Unsupported("rope.scaling longrope needs factors for each pair of a head, and the model has none")
    if factor is None and kind != "longrope":
        raise Unsupported(f"rope.scaling {kind} needs rope.factor: how many times longer texts become")
    if kind == "longrope":
        factor = factor or given.integer("max_position_embeddings") / original
    changes = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    more = LLAMA3 if kind == "llama3" and not kept else {}
    return _with(config, {**more, **kept, **changes}, original if kind == "dynamic" else int(original * factor))


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's scaling, in either published form (rope.settings)."""
    given = config.get("rope_parameters")
    if isinstance(given, Mapping):
        given = given.get("full_attention", given)
        return {key: value for key, value in dict(given or {}).items() if key != "rope_theta"}
    return dict(Config(config).mapping("rope_scaling") or {})


def _with(config: Mapping[str, Any], scaling: Mapping[str, Any], context: int) -> dict[str, Any]:
    out = {**config, "max_position_embeddings": context, IGNORES_DIVISORS: True}
    given = config.get("rope_parameters")
    if not isinstance(given, Mapping):
        return out | {"rope_scaling": dict(scaling)}
    far = given.get("full_attention")
    if isinstance(far, Mapping):
        changed = {**given, "full_attention": {"rope_theta": far.get("rope_theta"), **scaling}}
    else:
        changed = {"rope_theta": given.get("rope_theta"), **scaling}
    return out | {"rope_parameters": changed}
