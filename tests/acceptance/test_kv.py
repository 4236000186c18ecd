"""Formats of keys and values on the real models: bytes, and perplexity beside fp16 (`python -m bench.kv` shows all)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.kv import BASE, HEADER, losses, rows
from bench.measure import table
from tests.realmodel import gemma3, smollm2

# format -> most bytes beside fp16, and most perplexity, both in percent
MOST = {"int8": (55.0, 0.5), "int4": (35.0, 3.0)}


@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_formats_of_few_bits_cost_little(model: Callable[[], Path]) -> None:
    found = losses(model(), (BASE, *MOST))
    print(f"\n{model.__name__}\n{table(HEADER, rows(found))}")
    for name, (most_bytes, most_perplexity) in MOST.items():
        assert 100 * found[name].token_bytes / found[BASE].token_bytes <= most_bytes
        assert found[name].beside(found[BASE])[0] <= most_perplexity
