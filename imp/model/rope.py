"""Frequency tables for every kind of rope scaling. Formulas: Su et al. 2021 (plain), Chen et al. 2023 (linear),
Peng et al. 2023 (YaRN; dynamic NTK), Ding et al. 2024 (LongRoPE), and the Llama 3.1 release (llama3); each is checked
against transformers.

A key is turned once, when it is stored. So the kinds that look at how long a text is (dynamic, longrope) look at how
long it may become: frequencies are those of the context that is served, whatever the length of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..weights.checkpoint import InvalidModel
from .config import Config, Unsupported, positions
from .ops import Rope


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of texts, in positions: `trained` is the config's, `served` the longest there will be."""

    trained: int
    served: int


def plain_frequencies(theta: float, dim: int) -> np.ndarray:
    """float64 [dim / 2]: radians per position of each column pair."""
    return theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


def _linear(freqs: np.ndarray, scaling: Config, theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    return freqs / scaling.number("factor"), 1.0


def _dynamic(freqs: np.ndarray, scaling: Config, theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    """A larger theta, by as much as what is served is longer than what was trained."""
    dim, factor = 2 * len(freqs), scaling.number("factor")
    longer = max(lengths.served, lengths.trained) / lengths.trained
    return plain_frequencies(theta * (factor * longer - (factor - 1)) ** (dim / (dim - 2)), dim), 1.0


def _longrope(freqs: np.ndarray, scaling: Config, theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    original = scaling.number("original_max_position_embeddings")
    kind = "long_factor" if lengths.served > original else "short_factor"
    divisors = scaling.values.get(kind)
    if not isinstance(divisors, Sequence) or len(divisors) != len(freqs) or not all(map(_divides, divisors)):
        raise InvalidModel(f'{scaling.where}: "{kind}" must be {len(freqs)} numbers above 0, one per pair of a head')
    factor = scaling.number("factor", lengths.trained / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return freqs / np.array(divisors, np.float64), scaling.number("attention_factor", usual)


def _divides(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _llama3(freqs: np.ndarray, scaling: Config, theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    original = scaling.number("original_max_position_embeddings")
    wavelength = 2 * math.pi / freqs
    smooth = (original / wavelength - low) / (high - low)
    mixed = (1 - smooth) * freqs / factor + smooth * freqs
    slow = np.where(wavelength > original / low, freqs / factor, mixed)
    return np.where(wavelength < original / high, freqs, slow), 1.0


def _yarn(freqs: np.ndarray, scaling: Config, theta: float, lengths: Lengths) -> tuple[np.ndarray, float]:
    factor = scaling.number("factor")
    original = scaling.number("original_max_position_embeddings", lengths.trained)
    dim = 2 * len(freqs)

    def column(rotations: float) -> float:
        """The column that turns this often within the original context."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = column(scaling.number("beta_fast", 32.0))
    high = column(scaling.number("beta_slow", 1.0))
    if scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(len(freqs)) - low) / max(high - low, 0.001), 0, 1)
    return freqs / factor * ramp + freqs * (1 - ramp), _yarn_attention(scaling, factor)


def _yarn_attention(scaling: Config, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in scaling:
        return scaling.number("attention_factor")
    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return magnitude(scaling.number("mscale")) / magnitude(scaling.number("mscale_all_dim"))
    return magnitude(1.0)


SCALINGS: dict[str, Callable[[np.ndarray, Config, float, Lengths], tuple[np.ndarray, float]]] = {
    "default": lambda freqs, scaling, theta, lengths: (freqs, 1.0),
    "linear": _linear,
    "dynamic": _dynamic,
    "longrope": _longrope,
    "llama3": _llama3,
    "yarn": _yarn,
}


def settings(
    config: Config, layers: str = "", theta_key: str = "rope_theta", theta: float = 10000.0
) -> tuple[float, Mapping[str, Any] | None]:
    """(theta, scaling) of a model's config, in either published form: `rope_theta` and `rope_scaling`, or the newer
    `rope_parameters`, which holds both, for each kind of layer where they differ (`layers`: "full_attention", ...)."""
    given = config.mapping("rope_parameters")
    if given is None:
        return config.number(theta_key, theta), config.mapping("rope_scaling") if theta_key == "rope_theta" else None
    own = Config(given, "rope_parameters").mapping(layers) if layers in given else given
    return Config(own or {}, "rope_parameters").number("rope_theta", theta), own


def frequencies(
    theta: float, dim: int, scaling: Mapping[str, Any] | None, lengths: Lengths, divisors: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Radians per position of each column pair (float64 [dim / 2]), and the factor on cos and sin.

    `scaling` is the checkpoint's rope_scaling; `divisors` are GGUF's precomputed rope_freqs, which replace it.
    """
    freqs = plain_frequencies(theta, dim)
    if divisors is not None:
        return freqs / divisors.astype(np.float64), 1.0
    own = Config(dict(scaling or {}), "rope_scaling")
    kind = kind_of(own)
    if kind not in SCALINGS:
        raise Unsupported(f'rope scaling "{kind}" is not supported; known: {", ".join(SCALINGS)}')
    if "factor" in own and not 0 < own.number("factor") < math.inf:
        raise InvalidModel(f'{own.where}: "factor" must be above 0, not {own.values["factor"]!r:.60}')
    return SCALINGS[kind](freqs, own, theta, lengths)


def lengths(trained: int, wanted: int, scaling: Mapping[str, Any] | None) -> Lengths:
    """Where `wanted` positions are to be served; 0: those of the training. Raises ContextTooLong for more than the
    model was made for, which with dynamic scaling is `factor` times what it was trained for."""
    own = Config(dict(scaling or {}), "rope_scaling")
    stretch = own.number("factor", 1.0) if kind_of(own) == "dynamic" else 1.0
    return Lengths(trained, positions(wanted, int(trained * max(stretch, 1.0))) if wanted else trained)


def kind_of(scaling: Config) -> str:
    """The name of its kind; "su" is what longrope was called at first."""
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    return "longrope" if kind == "su" else kind


def table(freqs: np.ndarray, positions: int, factor: float = 1.0) -> Rope:
    """The cos and sin of every position below `positions`, float32 [positions, len(freqs)]."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * freqs
    return Rope((np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32))


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x [T, heads, d]; cos, sin [T, r/2]: half-split rotation of the first r values, the rest unchanged."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
