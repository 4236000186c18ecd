"""What the HTTP layer costs by itself, beside h11 alone doing the same exchange in the same minute."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import h11
import pytest
import uvloop

from bench.http import CHAT, HEALTH, request_cost_us, token_cost_us
from bench.measure import timed

PATHS = {CHAT: {}, "/v1/completions": {"prompt": "hi", "messages": None}, "/v1/messages": {}}
ROUNDS = 5


def on_loop(main: Coroutine[Any, Any, float]) -> float:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def exchange() -> bytes:
    """A request and its answer through a bare h11 connection."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(HEALTH)
    connection.next_event(), connection.next_event()
    fields = [("Date", "x"), ("Server", "imp"), ("Content-Type", "application/json"), ("Content-Length", "2")]
    out = connection.send(h11.Response(status_code=200, headers=fields)) or b""
    return out + (connection.send(h11.Data(data=b"{}")) or b"") + (connection.send(h11.EndOfMessage()) or b"")


def test_requests_beside_h11_alone(benchmark, figures):
    costs: list[float] = []
    benchmark.pedantic(lambda: costs.append(on_loop(request_cost_us(rounds=5))), rounds=ROUNDS, warmup_rounds=0)
    alone = timed(lambda: [exchange() for _ in range(500)], 500, repeats=ROUNDS).best
    figures.note(benchmark, "GET /health, all but sockets", 1e6 / min(costs), "requests/s", "h11 alone", alone)


@pytest.mark.parametrize("path", PATHS)
def test_tokens_of_64_streams(benchmark, figures, path):
    costs: list[float] = []
    run = lambda: costs.append(on_loop(token_cost_us(path=path, **PATHS[path])))  # noqa: E731
    benchmark.pedantic(run, rounds=3, warmup_rounds=0)
    figures.note(benchmark, f"{path}, 64 streams: loop's CPU", min(costs), "us a token")
