"""The mean of a model's keys, layer by layer, which the formats of codes take off (kv.py). Measured once, after a model
is loaded, on a text that is always the same: so the same model has the same means, wherever and whenever.

Which vector is taken off matters little, for every one leaves attention as it is; the nearer it is to the mean of the
keys that will come, the less is left for the codes. Keys turn with their position (rope), so what is taken off is their
mean at position 0, turned to all positions of the context, and averaged: what turns slowly stays, what turns fast goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .inputs import StepInputs, prompt_inputs
from .kv import turned
from .ops import Rope, StepLimits
from .rope import rotate

TEXT = """The harbour was quiet when the last boat came in. "You are late," the old woman said, and handed him the
lantern; he did not answer, because there was nothing to say that she did not already know.

## Install

1. Download the archive and check its size (12.4 MB).
2. Run `make install PREFIX=/usr/local`, then open https://localhost:8080/docs.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

{"name": "lamp", "price": 19.90, "tags": ["light", "home"], "stock": null}

User: Why is the sky blue? Assistant: Air scatters short waves of light more than long ones, so blue reaches us from
everywhere.
"""
MOST = 256  # tokens of the text that are read


def steps(tokens: Sequence[int], limits: StepLimits) -> Iterator[StepInputs]:
    """A prompt of these tokens, as far as MOST and the limits go, in the first blocks. No logits are wanted."""
    size = limits.block_size
    tokens = tokens[: min(MOST, limits.context, limits.blocks * size)]
    for start in range(0, len(tokens), limits.tokens):
        yield prompt_inputs(tokens, start, min(start + limits.tokens, len(tokens)), size)


def centre(keys: np.ndarray, rope: Rope | None) -> np.ndarray:
    """What is to be taken off turned keys, float32 [kv heads, d].   keys: turned ones of positions 0 to n - 1, float32
    [n, kv heads, d]."""
    own = turned(keys)
    if rope is not None:
        count = len(own)
        size = rope.cos[0] ** 2  # yarn scales both
        own = rotate(own, rope.cos[:count] / size, -rope.sin[:count] / size)
    mean = own.mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
    if rope is not None:
        mean = rotate(mean, *(table.mean(axis=0, keepdims=True, dtype=np.float64) for table in (rope.cos, rope.sin)))
    return turned(mean[0].astype(np.float32))
