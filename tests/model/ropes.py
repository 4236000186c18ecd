"""Tiny checkpoints with every kind of rope scaling at its edges: the weights are the tiny models', the configs are not.

name -> (whose weights, what is changed in its config, context served (0: what was trained), length of the prompt)
"""

from __future__ import annotations

from typing import Any

try:
    from . import tiny
except ImportError:  # the judge runs beside us, where there is no package
    import tiny

LONG, SHORT = [1.0, 1.1, 1.3, 1.9, 3.0, 5.5, 9.0, 16.0], [1.0, 1.0, 1.01, 1.05, 1.1, 1.2, 1.4, 1.7]
_LONGROPE = {
    "rope_type": "longrope",
    "long_factor": LONG,
    "short_factor": SHORT,
    "original_max_position_embeddings": 24,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def scaled(context: int, **scaling: Any) -> dict[str, Any]:
    return {"max_position_embeddings": context, "rope_scaling": scaling}


ROPES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "dynamic, within": ("llama", scaled(32, rope_type="dynamic", factor=4.0), 0, 32),
    "dynamic, beyond": ("llama", scaled(32, rope_type="dynamic", factor=4.0), 40, 40),
    "dynamic, far beyond": ("llama", scaled(12, rope_type="dynamic", factor=2.5), 30, 30),
    "longrope, short": ("llama", scaled(256, **_LONGROPE), 24, 24),
    "longrope, long": ("llama", scaled(256, **_LONGROPE), 0, 40),
    "longrope, with its factor": ("llama", scaled(96, **_LONGROPE, factor=8.0), 0, 40),
    "longrope, attention said": ("llama", scaled(96, **_LONGROPE, attention_factor=1.7), 40, 40),
    "yarn, magnitudes": ("llama", scaled(256, **_YARN, mscale=0.7, mscale_all_dim=0.4), 0, 40),
    "yarn, attention said": ("llama", scaled(256, **_YARN, attention_factor=1.2), 0, 40),
    "yarn, not truncated": ("llama", scaled(256, **_YARN, truncate=False, beta_fast=16.0, beta_slow=2.0), 0, 40),
    "linear, far layers only": ("gemma3", scaled(256, rope_type="linear", factor=8.0), 0, 40),
    "dynamic, far layers only": ("gemma3", scaled(24, rope_type="dynamic", factor=2.0), 40, 40),
}


def config(name: str) -> dict[str, Any]:
    whose, changes, _, _ = ROPES[name]
    return tiny.CONFIGS[whose] | changes


def prompt(name: str) -> list[int]:
    whose, _, _, length = ROPES[name]
    return tiny.prompt(whose, length)
