"""Suspending, resuming and swapping the real models in the real process: memory comes back, answers stay the same."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.real.process import ServerProcess, server

ASK = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 12}


def said(process: ServerProcess, **more: object) -> str:
    answer = httpx.post(process.url + "/v1/chat/completions", json=ASK | more, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_suspending_gives_the_memory_back(smollm2_path: Path) -> None:
    with server("--model", str(smollm2_path), "--set", "kv_cache.max_blocks=256") as process:
        before, loaded = said(process), process.rss_bytes()
        told = httpx.post(process.url + "/admin/suspend", timeout=120).json()
        assert told["suspended"] is True
        suspended = process.rss_bytes()
        # the packed weights are about as large as the file; what of the cache was touched goes, too
        assert loaded - suspended > 0.6 * smollm2_path.stat().st_size, (loaded, suspended)
        assert httpx.post(process.url + "/v1/chat/completions", json=ASK, timeout=10).status_code == 503
        told = httpx.post(process.url + "/admin/resume", timeout=120).json()
        assert told["suspended"] is False
        assert said(process) == before
        resumed = process.rss_bytes()
        print(f"\nRSS {loaded >> 20} MiB, suspended {suspended >> 20}, resumed {resumed >> 20}; {told['resume_ms']} ms")
        for _ in range(3):
            httpx.post(process.url + "/admin/suspend", timeout=120)
            httpx.post(process.url + "/admin/resume", timeout=120)
        assert said(process) == before
        assert process.rss_bytes() < resumed * 1.25  # nothing piles up


@pytest.mark.slow
def test_two_real_models_take_turns(smollm2_path: Path, gemma3_path: Path, tmp_path: Path) -> None:
    (tmp_path / "smol.gguf").symlink_to(smollm2_path)
    (tmp_path / "gemma.gguf").symlink_to(gemma3_path)
    arguments = ["--models-dir", str(tmp_path), "--model", "smol", "--max-model-len", "512"]
    with server(*arguments, "--set", "kv_cache.max_blocks=64") as process:
        first = said(process)
        listed = httpx.get(process.url + "/v1/models").json()["data"]
        assert [(each["id"], each["loaded"]) for each in listed] == [("smol", True), ("gemma", False)]
        body = {"model": "gemma", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        other = httpx.post(process.url + "/v1/completions", json=body, timeout=120)
        assert other.status_code == 200 and other.json()["model"] == "gemma"
        assert said(process, model="smol") == first
        assert process.stop() == 0
