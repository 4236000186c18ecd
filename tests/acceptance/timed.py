"""Streamed answers of a real server whose times are looked at."""

from __future__ import annotations

import random
from typing import Any

from bench.client import Answer, ask, words
from tests.real.process import ServerProcess


def completion(rng: random.Random, tokens: int, said: int, **more: Any) -> dict[str, Any]:
    body = {"prompt": words(rng, tokens), "max_tokens": said, "temperature": 0, "ignore_eos": True, "stream": True}
    return body | {"speculative": False} | more


async def asked(running: ServerProcess, body: dict[str, Any]) -> Answer:
    answer = await ask(running.url, "/v1/completions", body)
    assert answer.status == 200 and answer.complete and not answer.error, answer
    return answer


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
