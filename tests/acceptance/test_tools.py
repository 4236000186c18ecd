"""500 requests over 25 tools, required, named and strict, streamed and not, eight at a time: every call is valid."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.real.process import server
from tests.real.tool_calls import count

REQUESTS = 500


def test_every_forced_call_is_valid(smollm2_path: Path):
    with server("--model", str(smollm2_path), "--served-model-name", "smollm2") as running:
        began = time.monotonic()
        found = asyncio.run(count(running.url, "smollm2", REQUESTS))
        seconds = time.monotonic() - began
    print(f"\n{REQUESTS} requests in {seconds:.0f} s: {dict(sorted(found.items()))}")
    assert found["required valid"] + found["named valid"] == sum(n % 3 < 2 for n in range(REQUESTS))
    assert set(found) <= {"required valid", "named valid", "strict valid", "strict none", "strict cut off"}, found
