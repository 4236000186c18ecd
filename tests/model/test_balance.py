"""Channels of queries and keys made alike: no score changes, and codes of few bits lose less."""

from __future__ import annotations

import numpy as np
import pytest

from imp.model.balance import balanced
from imp.model.kv import FORMATS
from imp.model.layers import Norm
from imp.model.ops import Rope
from imp.model.reference import rms_norm
from imp.model.rope import rotate

D, POSITIONS = 32, 64


def rope(turning: int) -> Rope:
    angles = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(turning // 2) / (turning // 2))
    return Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def norms(seed: int) -> tuple[Norm, Norm]:
    """Of which some channels are large in keys and small in queries; one is nothing at all."""
    rng = np.random.default_rng(seed)
    q, k = (rng.uniform(0.5, 2, D).astype(np.float32) * rng.choice([-1, 1], D).astype(np.float32) for _ in range(2))
    q[[3, 20]] /= 40
    k[[3, 20]] *= 40
    q[7] = k[7] = 0
    return Norm(q, 1e-6), Norm(k, 1e-6)


def scores(pair: tuple[Norm, Norm], table: Rope | None, keep=lambda k: k) -> np.ndarray:
    rng = np.random.default_rng(1)
    q, k = (rms_norm(rng.standard_normal((POSITIONS, 1, D)).astype(np.float32), norm) for norm in pair)
    if table is not None:
        q, k = (rotate(x, table.cos, table.sin) for x in (q, k))
    return np.einsum("qhd,khd->qk", q.astype(np.float64), keep(k).astype(np.float64))


@pytest.mark.parametrize("turning", [0, 16, D])
def test_scores_keep_their_bits_and_codes_lose_less(turning):
    table, before = rope(turning) if turning else None, norms(turning)
    after = balanced(*before, table)
    assert np.array_equal(scores(after, table), scores(before, table))
    exact, coded = scores(before, table), FORMATS["int4"].through
    lost = [np.sqrt(np.mean((scores(pair, table, coded) - exact) ** 2)) for pair in (before, after)]
    assert lost[1] < 0.5 * lost[0]


def test_factors_are_powers_of_two_that_pairs_share():
    before, table = norms(5), rope(16)
    q, k = balanced(*before, table)
    live = before[0].weight != 0
    factors = np.ones(D)
    factors[live] = k.weight[live] / before[1].weight[live]
    assert np.array_equal(np.frexp(factors)[0], np.full(D, 0.5)) and len(set(factors)) > 2
    assert np.array_equal(factors[live], before[0].weight[live] / q.weight[live])
    assert all(factors[i] == factors[i + 8] for i in range(8) if live[i] and live[i + 8])
