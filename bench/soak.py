"""Many clients with moods, for minutes, against the real server: does it leak, stall or fail?

    python -m bench.soak [--model PATH | --url URL [--pid PID]] [--seconds 120] [--streams 64] [--seed 1]

Every client asks for completions of random length, streamed or not, and hangs up at random moments. Afterwards the
server must come to rest with no KV block held, must not have failed anything, and must not have grown: its memory at
the end is compared with its memory after the first quarter. Exit code 1 where one of these is violated.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.client import Answer, ask, words
from bench.peer import rss_bytes
from tests import realmodel
from tests.real.process import ServerProcess

WARM_UP = 0.25  # of the time, before memory is compared
GROWTH = 1.05  # memory may become so much of what it was
LONGEST_PROMPT, LONGEST_ANSWER = 200, 100  # words, tokens
SHARED = 0.3  # of the prompts begin like an earlier one, for the prefix cache
IDLE_WITHIN_S = 60.0


@dataclass(slots=True)
class Tally:
    """What happened. Memory in bytes: (seconds since the start, resident)."""

    seconds: float = 0.0  # until the last client was done
    requests: int = 0
    tokens: int = 0  # that reached a client
    disconnects: int = 0
    refused: int = 0  # 429
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)

    def count(self, answer: Answer) -> None:
        self.requests += 1
        self.disconnects += answer.left
        self.tokens += answer.tokens or len(answer.events)
        if answer.status == 429:
            self.refused += 1
        elif answer.error:
            self.errors.append(answer.error)
        elif not answer.left and not answer.complete:
            self.errors.append("an answer without an end")


def request(rng: random.Random, shared: list[str]) -> tuple[dict[str, object], int | None]:
    """A body, and after how many events its client leaves (None: stays to the end)."""
    prompt = words(rng, rng.randint(1, LONGEST_PROMPT))
    if rng.random() < SHARED:
        prompt = rng.choice(shared) + " " + prompt[: len(prompt) // 4]
    length = rng.randint(1, LONGEST_ANSWER)
    body: dict[str, object] = {"prompt": prompt, "max_tokens": length, "temperature": rng.choice([0, 0.7, 1.0])}
    if rng.random() < 0.2:
        body |= {"ignore_eos": True, "logprobs": rng.randint(1, 5)}
    if rng.random() < 0.1:
        body |= {"n": 2}
    if rng.random() < 0.2:
        body |= {"stop": rng.sample([" the", "\n", "e", "."], 2)}
    if rng.random() < 0.2:
        return body, rng.choice([None, None, None, 0])
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body, rng.choice([None, None, rng.randint(0, length)])


async def load(url: str, seconds: float, streams: int, seed: int, memory: Callable[[], int] | None) -> Tally:
    """`streams` clients until the time is over; each finishes what it has begun."""
    tally, began = Tally(), time.monotonic()
    shared = [words(random.Random(seed + i), 60) for i in range(4)]

    async def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.monotonic() - began < seconds:
            body, leave_after = request(rng, shared)
            tally.count(await ask(url, "/v1/completions", body, leave_after))
            if leave_after == 0:
                await asyncio.sleep(rng.random() * 0.05)  # else nothing but connections that say nothing

    async def watch(read: Callable[[], int]) -> None:
        while True:
            tally.memory.append((time.monotonic() - began, read()))
            await asyncio.sleep(min(0.5, seconds / 40))

    watching = asyncio.create_task(watch(memory)) if memory else None
    try:
        async with asyncio.timeout(seconds + 300):
            await asyncio.gather(*map(client, range(streams)))
    finally:
        if watching:
            watching.cancel()
    tally.seconds = time.monotonic() - began
    return tally


def scrape(url: str) -> dict[str, float]:
    """Every unlabelled sample of /metrics."""
    text = httpx.get(url + "/metrics", timeout=30).text
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "{" not in name}


def rest(url: str, within_s: float = IDLE_WITHIN_S) -> dict[str, float]:
    """The metrics once nothing runs or waits any more, or the last ones before patience ends."""
    deadline = time.monotonic() + within_s
    while True:
        metrics = scrape(url)
        if metrics["imp_queue_depth"] == 0 and metrics["imp_kv_blocks_live"] == 0:
            return metrics
        if time.monotonic() > deadline:
            return metrics
        time.sleep(0.1)


def levels(tally: Tally) -> tuple[int, int, int]:
    """Resident bytes at the start, after the warm-up, and at the end; medians of the samples around the moment."""
    memory, seconds = tally.memory, tally.seconds
    width = seconds * 0.05

    def around(moment: float) -> int:
        near = [size for at, size in memory if abs(at - moment) <= width]
        return int(statistics.median(near or [min(memory, key=lambda sample: abs(sample[0] - moment))[1]]))

    return memory[0][1], around(seconds * WARM_UP), around(seconds)


def violations(tally: Tally, metrics: dict[str, float], may_refuse: bool) -> list[str]:
    """What is wrong, a sentence each."""
    found = [f"unexpected error ({tally.errors.count(text)} times): {text}" for text in dict.fromkeys(tally.errors)]
    if tally.refused and not may_refuse:
        found.append(f"{tally.refused} requests were refused though there were fewer than the server takes")
    if tally.requests == tally.disconnects + tally.refused:
        found.append("no request was answered")
    if metrics["imp_queue_depth"]:
        found.append(f"{metrics['imp_queue_depth']:.0f} sequences still run or wait")
    if metrics["imp_kv_blocks_live"]:
        found.append(f"{metrics['imp_kv_blocks_live']:.0f} KV blocks are still held by sequences")
    if metrics["imp_kv_blocks_used"] != metrics["imp_kv_blocks_pinned"]:
        found.append(
            f"{metrics['imp_kv_blocks_used']:.0f} KV blocks are used, {metrics['imp_kv_blocks_pinned']:.0f} of them pinned"
        )
    if metrics["imp_requests_failed_total"]:
        found.append(f"the server counts {metrics['imp_requests_failed_total']:.0f} failed requests")
    if tally.memory:
        _, warm, end = levels(tally)
        if end > warm * GROWTH:
            found.append(f"memory grew from {warm / 2**20:.0f} to {end / 2**20:.0f} MiB after the warm-up")
    return found


def report(tally: Tally, metrics: dict[str, float]) -> str:
    seconds = tally.seconds
    lines = [
        f"requests      {tally.requests} ({tally.requests / seconds:.1f}/s)",
        f"tokens        {tally.tokens} received, {tally.tokens / seconds:.1f}/s",
        f"disconnects   {tally.disconnects} ({metrics['imp_requests_cancelled_total']:.0f} noticed while generating)",
        f"refused       {tally.refused}",
        f"preemptions   {metrics['imp_kv_preemptions_total']:.0f}",
        f"cache         {metrics['imp_prefix_cache_hits_total']:.0f} of "
        f"{metrics['imp_prefix_cache_queries_total']:.0f} prompt tokens found",
        f"KV blocks     {metrics['imp_kv_blocks_used']:.0f} used, {metrics['imp_kv_blocks_live']:.0f} live, "
        f"{metrics['imp_kv_blocks_reclaimable']:.0f} reclaimable of {metrics['imp_kv_blocks_total']:.0f}",
    ]
    if tally.memory:
        start, warm, end = (size / 2**20 for size in levels(tally))
        lines.append(f"RSS MiB       {start:.0f} start, {warm:.0f} warm, {end:.0f} end")
    return "\n".join(lines)


def kv_blocks(streams: int) -> int:
    """Too few for all clients at once, so that preemption happens, and soon touched by all of them, so that memory
    is flat early. Always enough for one long request of two sequences."""
    longest = (LONGEST_PROMPT * 2 + LONGEST_ANSWER) // 16 * 2
    return max(longest * 2, streams * 6)


def soak(url: str, seconds: float, streams: int, seed: int, pid: int | None, may_refuse: bool) -> list[str]:
    """Load, wait for rest, print figures; returns the violations."""
    tally = asyncio.run(load(url, seconds, streams, seed, (lambda: rss_bytes(pid)) if pid else None))
    metrics = rest(url)
    print(report(tally, metrics), flush=True)
    found = violations(tally, metrics, may_refuse)
    for sentence in found:
        print(f"VIOLATION: {sentence}", flush=True)
    return found


def server(model: Path, streams: int) -> ServerProcess:
    """The server under test. A client may come back before its hang-up is noticed, hence twice the requests."""
    limits = ("--max-concurrent", str(2 * streams + 8), "--set", f"kv_cache.max_blocks={kv_blocks(streams)}")
    return ServerProcess("--model", str(model), *limits).wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--url", help="a running server instead of one of our own")
    parser.add_argument("--pid", type=int, help="its process, to watch its memory")
    parser.add_argument("--model", type=Path, help="default: the server's default model")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sizes = (chosen.seconds, chosen.streams, chosen.seed)
    if chosen.url:
        return 1 if soak(chosen.url.rstrip("/"), *sizes, chosen.pid, may_refuse=True) else 0
    process = server(chosen.model or realmodel.smollm2(), chosen.streams)
    try:
        found = soak(process.url, *sizes, process.process.pid, may_refuse=False)
        if process.process.poll() is not None:
            found.append(f"the server ended with code {process.process.returncode}")
    finally:
        code = process.stop(60)
    if code or "Traceback" in process.log:
        found.append("the server did not end cleanly")
        print(f"VIOLATION: {found[-1]} (exit code {code}):\n{process.log[-4000:]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
