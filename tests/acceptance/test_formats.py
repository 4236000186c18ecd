"""Calls out of a model that babbles, in every format and every public template, over many seeds (tests/http/forced.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from imp.chat.formats.registry import FORMATS
from tests.http.forced import chat, judge
from tests.http.test_forced_calls import PUBLIC, asks, server_of

ROUNDS = 8


def test_every_call_is_valid():
    hosts = [(name, "auto") for name in PUBLIC] + [(None, parser) for parser in sorted(FORMATS)]
    found: Counter[str] = Counter()
    for number, (template, parser) in enumerate(hosts):
        asyncio.run(_put(template, parser, number, found))
    print(f"\n{len(hosts)} templates and formats, {ROUNDS} rounds: {dict(sorted(found.items()))}")
    assert all(found[f"{choice} call"] for choice in ("required", "named", "auto")) and found["auto text"]


async def _put(template: str | None, parser: str, number: int, found: Counter[str]) -> None:
    async with server_of(template, parser) as server:
        for at in range(ROUNDS):
            for ask in asks(number + at):
                told = await chat(server, replace(ask, seed=1000 * at + number), stream=at % 2 == 1)
                judge(ask, told)
                found[f"{ask.choice} {told.end}"] += 1
                found["calls"] += len(told.calls)
