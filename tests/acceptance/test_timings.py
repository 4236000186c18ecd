"""`timings` on the real model: their sum is what the client waited, within 2 %."""

from __future__ import annotations

import time

import httpx

from tests.real.process import server
from tests.realmodel import smollm2

PARTS = ("prepare_ms", "queue_ms", "prefill_ms", "decode_ms", "constraint_ms")


def test_the_parts_are_the_wall_time() -> None:
    with server("--model", str(smollm2())) as running, httpx.Client(base_url=running.url, timeout=120) as client:
        for prompt, tokens in (("Once upon a time", 200), ("All the words. " * 400, 20), ("Once upon a time", 60)):
            body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "timings": True}
            began = time.perf_counter()
            answer = client.post("/v1/completions", json=body).json()
            wall = (time.perf_counter() - began) * 1e3
            told = answer["timings"]
            missing = wall - sum(told[part] for part in PARTS)
            parts = ", ".join(f"{part.removesuffix('_ms')} {told[part]:.1f}" for part in PARTS)
            print(f"\n{wall:.1f} ms = {parts}, elsewhere {missing:.1f}; {told['predicted_per_second']:.0f} tokens/s")
            assert 0 <= missing <= wall * 0.02
