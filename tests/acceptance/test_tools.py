"""500 requests over 25 tools, required, named and strict, streamed and not, eight at a time: every call is valid."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.real.process import server
from tests.real.tool_calls import count

REQUESTS = 500
CHOSEN = 60  # where the choice is the model's


def test_every_forced_call_is_valid(smollm2_path: Path):
    with server("--model", str(smollm2_path), "--served-model-name", "smollm2") as running:
        began = time.monotonic()
        found = asyncio.run(count(running.url, "smollm2", REQUESTS))
        seconds = time.monotonic() - began
        chosen = asyncio.run(count(running.url, "smollm2", CHOSEN, asks=("auto",)))
    print(f"\n{REQUESTS} requests in {seconds:.0f} s: {dict(sorted(found.items()))}")
    print(f"{CHOSEN} with a strict tool that need not be called: {dict(sorted(chosen.items()))}")
    assert set(found) == {"required valid", "named valid", "strict valid"} and sum(found.values()) == REQUESTS, found
    assert set(chosen) <= {"auto valid", "auto none", "auto cut off"}, chosen
