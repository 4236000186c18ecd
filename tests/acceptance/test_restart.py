"""A conversation of eight thousand tokens goes on after a restart as if there had been none, given --prefix-cache; to the
bit with runtime.deterministic, else the answers before are kept as they were written, and not as they would be read.

Who is being answered hardly notices. Then every file of the cache is damaged, and others are put beside them: none is
used, nothing breaks, and the answer is the same; and what was computed again is there for the next process.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.client import ask, words
from bench.measure import percentile
from tests.real.process import ServerProcess, server

CONTEXT, ROUNDS = 8192, 3
LEAST_TOKENS = 7600  # of the conversation when it is interrupted
WARM = 0.15  # at most, of the time to the first token without a cache
GAP = 2.5  # idle steps, that others may wait for a token at most while blocks come up (99th percentile)
DAMAGED = 2000  # files
EXACTLY = ("--set", "runtime.deterministic=true")
WORDS = "wind rain lamp harbour keeper stone letter morning captain rope window lantern gull tide ladder"
QUESTION = {"role": "user", "content": "Sum this up for somebody who has not read it, in a few words."}


@dataclass(frozen=True)
class Said:
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


def asked(process: ServerProcess, messages: list[dict[str, str]]) -> tuple[Said, float, dict[str, int]]:
    """(answer, seconds to its first token, usage)."""
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": True, "stream": True}
    tokens: list[str] = []
    logprobs: list[float] = []
    first, usage = 0.0, {}
    began = time.perf_counter()
    body["stream_options"] = {"include_usage": True}
    with httpx.stream("POST", process.url + "/v1/chat/completions", json=body, timeout=600) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                for each in (choice.get("logprobs") or {}).get("content") or ():
                    first = first or time.perf_counter() - began
                    tokens.append(each["token"])
                    logprobs.append(each["logprob"])
    return Said(tuple(tokens), tuple(logprobs)), first, usage


def cached(usage: dict[str, Any]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def warm_up(process: ServerProcess) -> None:
    asked(process, [{"role": "user", "content": "Say yes."}])


def counted(process: ServerProcess, what: str) -> int:
    text = httpx.get(process.url + "/metrics", timeout=10).text
    name = f'imp_prefix_cache_tier_{what}{{tier="disk"}}'
    return next(int(float(line.rsplit(" ", 1)[1])) for line in text.splitlines() if line.startswith(name))


def conversation(process: ServerProcess, salt: int) -> list[dict[str, str]]:
    """Messages of so many tokens that another turn fits still. Every `salt` has another one."""
    rng = random.Random(salt)
    words = tuple(WORDS.split())

    def page(number: int) -> str:
        lines = [" ".join(rng.choice(words) for _ in range(12)) for _ in range(12)]
        return f"Page {number}: " + ". ".join(lines) + "."

    messages = [{"role": "system", "content": f"You help a lighthouse keeper. Log {salt}."}]
    number = 0
    while length(process, messages) < LEAST_TOKENS:
        number += 1
        messages += [{"role": "user", "content": page(number)}, {"role": "assistant", "content": "I have read it."}]
    return messages


def length(process: ServerProcess, messages: list[dict[str, str]]) -> int:
    answer = httpx.post(process.url + "/tokenize", json={"messages": messages}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["count"]


def damage(path: Path, rng: random.Random, others: list[Path]) -> None:
    """Make of a file something that is not what it was; the size stays, mostly."""
    data = bytearray(path.read_bytes())
    match rng.randrange(8):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            data = data[: rng.randrange(len(data))]
        case 2:
            data += rng.randbytes(rng.randrange(1, 100))
        case 3:
            data = bytearray(len(data))
        case 4:
            data = bytearray(rng.randbytes(len(data)))
        case 5:
            at = rng.randrange(len(data))
            data[at:] = rng.choice(others).read_bytes()[at:]
            data[-1] ^= 1
        case 6:
            data[:8] = b"imp KV 2"
        case 7:
            data = data[rng.randrange(1, 200) :]
    path.write_bytes(data)


@pytest.mark.parametrize("exactly", [True, False])
def test_a_conversation_goes_on_after_a_restart(smollm2_path: Path, tmp_path: Path, exactly: bool) -> None:
    plain = ["--model", str(smollm2_path), "--max-model-len", str(CONTEXT), *(EXACTLY if exactly else ())]
    keeping = [*plain, "--prefix-cache", str(tmp_path)]
    turns, cold_s, warm_s = [], [], []
    with server(*keeping) as process:
        for salt in range(ROUNDS):
            begun = conversation(process, salt)
            reply, _, usage = asked(process, begun[:-1])
            said = {"role": "assistant", "content": "".join(reply.tokens).removesuffix("<|im_end|>")}
            turns.append([*begun[:-1], said, QUESTION])
            print(f"\nround {salt}: {usage['prompt_tokens']} tokens, {cached(usage)} cached")
    for salt, turn in enumerate(turns):  # one after the other, so that both kinds see the same machine
        with server(*plain) as process:
            warm_up(process)
            cold, seconds, usage = asked(process, turn)
            cold_s.append(seconds)
            assert cached(usage) == 0
        with server(*keeping) as process:
            warm_up(process)
            warm, seconds, usage = asked(process, turn)
            warm_s.append(seconds)
            prompt, found = usage["prompt_tokens"], cached(usage)
            assert prompt - found < 200 and found >= LEAST_TOKENS - 200
            assert warm == cold or not exactly
        print(f"round {salt}: {prompt} tokens, {found} cached; TTFT cold {cold_s[-1]:.2f} s, warm {warm_s[-1]:.3f} s")
    shares = sorted(warm / cold for warm, cold in zip(warm_s, cold_s, strict=True))
    print(f"warm by cold: {', '.join(f'{share:.3f}' for share in shares)}")
    assert shares[len(shares) // 2] <= WARM


async def gaps_beside(process: ServerProcess, prompts: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds between the tokens of one answer: alone, and while these prompts are answered, one after the other."""
    victim = {"prompt": "The lamp", "temperature": 0, "ignore_eos": True, "stream": True, "speculative": False}
    await ask(process.url, "/v1/completions", victim | {"max_tokens": 40})
    alone = await ask(process.url, "/v1/completions", victim | {"max_tokens": 300})
    running = asyncio.create_task(ask(process.url, "/v1/completions", victim | {"max_tokens": 1500}))
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    for prompt in prompts:
        assert (await ask(process.url, "/v1/completions", prompt)).status == 200
    took = time.perf_counter() - began
    beside = await running
    assert beside.status == alone.status == 200
    first, end = 0.5, 0.5 + took
    at, gaps = beside.ttft_s, []
    for gap in beside.gaps_s:
        at += gap
        if first < at < end:
            gaps.append(gap)
    return alone.gaps_s, gaps


def test_others_hardly_notice_blocks_that_come_up(smollm2_path: Path, tmp_path: Path) -> None:
    keeping = ["--model", str(smollm2_path), "--prefix-cache", str(tmp_path), "--request-timeout", "0"]
    rng = random.Random(3)
    common = {"max_tokens": 1, "temperature": 0, "stream": True}
    prompts = [common | {"prompt": words(rng, 7000)} for _ in range(ROUNDS)]
    with server(*keeping) as process:
        for prompt in prompts:
            httpx.post(process.url + "/v1/completions", json=prompt | {"stream": False}, timeout=600)
    with server(*keeping) as process:
        alone, beside = asyncio.run(gaps_beside(process, prompts))
        restored = counted(process, "restored_total")
    step, most = statistics.median(alone), percentile(beside, 0.99)
    print(f"\n{restored} blocks came up beside {len(beside)} tokens; idle step {step * 1e3:.1f} ms")
    print(
        f"gaps beside: p50 {percentile(beside, 0.5) * 1e3:.1f} ms, p99 {most * 1e3:.1f} ms, {most / step:.2f} idle steps"
    )
    assert restored > 1000 and most <= GAP * step


def test_two_thousand_damaged_files_are_no_more_than_missing_ones(smollm2_path: Path, tmp_path: Path) -> None:
    plain = ["--model", str(smollm2_path), "--max-model-len", str(CONTEXT)]
    keeping = [*plain, "--prefix-cache", str(tmp_path)]
    rng = random.Random(11)
    with server(*keeping) as process:
        begun = [*conversation(process, 7), QUESTION]
        wanted, _, usage = asked(process, begun)
        prompt = usage["prompt_tokens"]
    blocks = sorted(tmp_path.glob("*/*.kv"))
    assert len(blocks) >= prompt // 16
    whole = [path.read_bytes() for path in rng.sample(blocks, 20)]
    others = list(blocks)
    for path in blocks:
        damage(path, rng, others)
    own = blocks[0].parent
    for _ in range(DAMAGED - len(blocks)):  # sound ones under other names, and what is none
        data = rng.choice(whole) if rng.random() < 0.5 else rng.randbytes(rng.randrange(2000))
        (own / f"{rng.randbytes(32).hex()}.kv").write_bytes(data)
    assert len(list(own.iterdir())) == DAMAGED
    with server(*keeping) as process:
        found, _, usage = asked(process, begun)
        rejected = counted(process, "rejected_total")
        print(
            f"\n{DAMAGED} damaged files: {cached(usage)} of {prompt} tokens taken from them, {rejected} seen to be bad"
        )
        assert found == wanted and cached(usage) == 0 and counted(process, "restored_total") == 0 and rejected
        assert process.stop() == 0
    with server(*keeping) as process:
        found, _, usage = asked(process, begun)
        print(f"after that: {cached(usage)} of {prompt} tokens")
        assert found == wanted and cached(usage) == (prompt - 1) // 16 * 16
