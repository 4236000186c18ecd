"""A client that leaves the real server frees its place within a step: queued, prefilling, decoding, streamed or not.

G01-06. The server runs one sequence at a time, so that a second request waits in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.process import ServerProcess, server

LONG = "The river flows to the sea past many towns and fields. " * 120  # some 1,400 tokens: about two seconds


@pytest.fixture(scope="module")
def one_at_a_time(smollm2_path: Path) -> Iterator[ServerProcess]:
    arguments = ("--model", str(smollm2_path), "--max-batch", "1", "--prefill-chunk-size", "64")
    with server(*arguments) as running:
        yield running


async def gauge(client: httpx.AsyncClient, *names: str) -> list[float]:
    lines = (await client.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
    return [float(values[name]) for name in names]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_client_that_leaves_frees_its_place(one_at_a_time, phase, stream):
    async def main() -> None:
        async with httpx.AsyncClient(base_url=one_at_a_time.url, timeout=60) as client:
            other: Any = None
            body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
            if phase == "queue":
                other = asyncio.create_task(client.post("/v1/completions", json=body | {"stream": False}))
                while await gauge(client, "imp_queue_running") != [1]:
                    await asyncio.sleep(0.005)
            if phase == "prefill":
                body["prompt"] = f"{stream} {time.monotonic()} {LONG}"  # not in the cache
            before = await gauge(client, "imp_requests_cancelled_total", "imp_tokens_completion_total")
            leaving = asyncio.create_task(client.post("/v1/completions", json=body))
            if phase == "queue":
                while await gauge(client, "imp_queue_waiting") != [1]:
                    await asyncio.sleep(0.005)
            else:
                await asyncio.sleep(0.4)
                assert await gauge(client, "imp_queue_running") == [1]
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            began = time.monotonic()
            gone = ("imp_queue_waiting",) if phase == "queue" else ("imp_queue_running", "imp_kv_blocks_live")
            while any(await gauge(client, *gone)):
                assert time.monotonic() - began < 1.0
                await asyncio.sleep(0.002)
            print(
                f"{phase}, {'streamed' if stream else 'whole'}: free after {(time.monotonic() - began) * 1000:.0f} ms"
            )
            after = await gauge(client, "imp_requests_cancelled_total", "imp_tokens_completion_total")
            assert after[0] == before[0] + 1
            if phase != "decode":
                assert after[1] == before[1]
            if other is not None:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
            answer = await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
            assert answer.status_code == 200

    asyncio.run(main())
