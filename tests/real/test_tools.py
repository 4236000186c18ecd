"""A model that was taught no calls makes valid ones when it must (20 of the 500 requests of tests/acceptance)."""

from __future__ import annotations

import asyncio

import pytest

from tests.real.process import ServerProcess
from tests.real.tool_calls import count


@pytest.mark.slow
def test_g02_08_forced_calls_are_valid(smollm2_server: ServerProcess):
    found = asyncio.run(count(smollm2_server.url, "smollm2", 20))
    assert sum(found.values()) == 20
    assert found == {"required valid": 7, "named valid": 7, "strict valid": 6}, found
