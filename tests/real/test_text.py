"""Streamed text equals unstreamed text: every prompt, every length, characters of several bytes included."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.real.prompts import PROMPTS

LENGTHS = (*range(1, 9), 64)


async def texts(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str]:
    whole = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    streamed, reason = "", None
    async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                choice = json.loads(line[6:])["choices"][0]
                streamed += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    assert reason == whole["finish_reason"]
    return whole["message"]["content"], streamed


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_streamed_text_equals_unstreamed_text(smollm2_server, temperature):
    async def main() -> None:
        gate = asyncio.Semaphore(12)
        several_bytes = 0

        async def check(prompt: str, length: int) -> None:
            nonlocal several_bytes
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": length,
                "temperature": temperature,
                "seed": 11,
            }
            async with gate:
                whole, streamed = await texts(client, body)
            assert streamed == whole, (prompt, length)
            several_bytes += any(ord(c) > 0x7F for c in whole)

        async with httpx.AsyncClient(base_url=smollm2_server.url, timeout=300) as client:
            lengths = LENGTHS if temperature == 0 else (3, 16)
            await asyncio.gather(*(check(prompt, length) for prompt in PROMPTS for length in lengths))
        assert several_bytes >= (20 if temperature == 0 else 8)

    asyncio.run(main())
