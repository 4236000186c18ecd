"""The server as a process, with a real model: what a start takes, what it holds in memory, and how fast streams are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bench.client import streams
from tests.real.process import ServerProcess, server

PROMPT_WORDS, TOKENS = 100, 32


def test_a_start_with_kernels_on_disk(benchmark, figures, smollm2_path):
    found: list[tuple[float, int]] = []

    def start() -> None:
        process = ServerProcess("--model", str(smollm2_path)).wait()
        found.append((process.ready_after_s, process.rss_bytes()))
        process.stop()

    benchmark.pedantic(start, rounds=3, warmup_rounds=1)
    figures.note(benchmark, "start to ready", min(seconds for seconds, _ in found), "s")
    figures.note(benchmark, "resident memory when ready", max(size for _, size in found) / 2**20, "MiB")


@pytest.fixture(scope="module")
def running(smollm2_path) -> Iterator[ServerProcess]:
    with server("--model", str(smollm2_path)) as process:
        asyncio.run(streams(process.url, 1, 1, PROMPT_WORDS, 8, seed=999))  # the first request is nobody's
        yield process


@pytest.mark.parametrize("concurrency", [1, 4, 8, 16])
def test_streams_of_a_real_model(benchmark, figures, running, concurrency):
    seeds = iter(range(1000 * concurrency, 1000 * concurrency + 100))
    results = []

    def load() -> None:
        requests = max(3, concurrency)
        results.append(asyncio.run(streams(running.url, concurrency, requests, PROMPT_WORDS, TOKENS, next(seeds))))

    benchmark.pedantic(load, rounds=2, warmup_rounds=0)
    best = max(results, key=lambda result: result.tokens_per_s)
    figures.note(benchmark, f"http x{concurrency}", best.tokens_per_s, "tokens/s")
    figures.note(benchmark, f"http x{concurrency}: TTFT p50", best.ttft_p50_s * 1e3, "ms")
    figures.note(benchmark, f"http x{concurrency}: ITL p99", best.itl_p99_s * 1e3, "ms")
