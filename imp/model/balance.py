"""Channels of queries and keys made alike where both are normed: what is taken from the weight of the one norm is given
to that of the other. No score changes, but a cache of few bits loses less: in some models single channels of the keys
are ten times as large as the rest and those of the queries as small, and a Walsh-Hadamard matrix (kv.py) spreads what
is large over all.

Factors are powers of two, so that floats, and what is computed with them, keep their very bits; but for keys kept in
16 bits that are, before or after, smaller than 2^-14, where fp16 has fewer of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .ops import Norm, Rope

LEAST = 2.0**-6  # of a weight that is looked at: a smaller one says nothing of its channel
MOST = 6  # the power of two by which a channel grows or shrinks


def balanced(q_norm: Norm, k_norm: Norm, rope: Rope | None) -> tuple[Norm, Norm]:
    """The norms of a layer's queries and keys [d], with weights whose sizes are alike. Two channels that turn into each
    other get the same factor, since only then turning does not see it.

    The error of a score is the keys' error, which is the same in all channels once they are mixed, times the query: it
    is least where the factors on keys are the root of the ratio of what queries and keys are without them.
    """
    powers = np.log2(_sizes(q_norm, rope) / _sizes(k_norm, rope)) / 2
    factors = np.exp2(np.clip(np.rint(powers), -MOST, MOST)).astype(np.float32)
    return replace(q_norm, weight=q_norm.weight / factors), replace(k_norm, weight=k_norm.weight * factors)


def _sizes(norm: Norm, rope: Rope | None) -> np.ndarray:
    """float64 [d]: of each channel, for those that turn together the root of their mean square."""
    squares = np.maximum(np.abs(norm.weight.astype(np.float64)), LEAST) ** 2
    half = 0 if rope is None else rope.cos.shape[-1]
    pairs = squares[: 2 * half].reshape(2, half)
    squares[: 2 * half] = np.tile(pairs.mean(axis=0), 2)
    return np.sqrt(squares)
