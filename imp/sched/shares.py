"""How the positions left after decoding are shared among prompts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable


def shares(pending: list[int], budget: int) -> list[int]:
    """Split `budget` positions among sequences that still have `pending` ones to compute, most urgent first.

    Half of the budget is spent in the order given, so the most urgent prompt advances in every step whatever else
    arrives. The rest is spent on whoever has the least left, so a short prompt beside a long one gets its first token
    within a step or two. A prompt that is alone gets everything.
    """
    granted = [0] * len(pending)
    shortest_first = sorted(range(len(pending)), key=pending.__getitem__)
    left = _spend(range(len(pending)), pending, granted, budget - budget // 2)
    _spend(shortest_first, pending, granted, left + budget // 2)
    return granted


def _spend(order: Iterable[int], pending: list[int], granted: list[int], budget: int) -> int:
    """Grant as much as possible in this order; returns what is left of the budget."""
    for i in order:
        grant = min(pending[i] - granted[i], budget)
        granted[i] += grant
        budget -= grant
    return budget
