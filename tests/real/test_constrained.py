"""A real model, held to real schemas, by a real server."""

from __future__ import annotations

import asyncio

import pytest

from tests.real.constrained import tasks, verdicts
from tests.real.process import ServerProcess

pytestmark = pytest.mark.slow


def test_g04_03_what_smollm2_writes_is_valid_or_a_valid_beginning(smollm2_server: ServerProcess):
    before = smollm2_server.metrics()
    counts, wrong = asyncio.run(verdicts(smollm2_server.url, tasks(20), 2, 8, max_tokens=60))
    assert not wrong, wrong
    assert counts.total() == 40 and counts["valid"] >= 5
    after = smollm2_server.metrics()
    for name in ("imp_constraint_compile_seconds", "imp_constraint_mask_seconds"):
        assert after[f"{name}_count"] - before.get(f"{name}_count", 0) == 40
        assert after[f"{name}_sum"] > before.get(f"{name}_sum", 0)
