"""--prefix-cache in the real process: what was computed outlives it, and everybody is told the same about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.process import ServerProcess, server

STORY = " ".join(f"On day {i} the keeper of the light wrote down the wind and the weather." for i in range(20))
BODY = {"prompt": STORY, "max_tokens": 12, "temperature": 0, "logprobs": 2}


def answer(process: ServerProcess, **changes: Any) -> tuple[Any, int]:
    """(what was said, with its log-probabilities; prompt tokens found)."""
    answered = httpx.post(process.url + "/v1/completions", json=BODY | changes, timeout=120)
    assert answered.status_code == 200, answered.text
    body = answered.json()
    return body["choices"][0], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def tier(process: ServerProcess, name: str = "disk") -> dict[str, Any]:
    """What /health and /metrics say of it; they agree."""
    told = httpx.get(process.url + "/health", timeout=10).json()["kv_below"][name]
    text = httpx.get(process.url + "/metrics", timeout=10).text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if f'tier="{name}"' in line)

    def sample(metric: str) -> int:
        return int(float(samples[f'{metric}{{tier="{name}"}}']))

    assert sample("imp_memory_reserved_bytes") == told["max_bytes"]
    counts = {each: sample(f"imp_prefix_cache_tier_{each}_total") for each in ("stored", "restored", "evicted", "lost")}
    return told | counts


@pytest.mark.parametrize("dtype", ["auto", "int4"])
def test_a_prompt_outlives_the_process(smollm2_path: Path, tmp_path: Path, dtype: str) -> None:
    folder = tmp_path / "kept"
    arguments = ["--model", str(smollm2_path), "--max-model-len", "1024", "--prefix-cache", str(folder)]
    arguments += ["--set", f"kv_cache.dtype={dtype}"]
    with server(*arguments) as process:
        first, cached = answer(process)
        assert cached == 0
        again, cached = answer(process)
        assert again == first and cached > 300
        whole = cached // 16 * 16  # blocks that are not full stay where they are
        assert process.stop() == 0
    assert os.stat(next(folder.iterdir())).st_mode & 0o777 == 0o700
    with server(*arguments) as process:
        assert tier(process)["blocks"] == len(list(folder.glob("*/*.kv"))) > 20
        assert answer(process) == (first, whole)
        told = tier(process)
        assert told["restored"] * 16 == whole and told["rejected"] == told["lost"] == 0
        assert process.metrics()["imp_prefix_cache_hits_total"] == process.metrics()["imp_tokens_cached_total"] == whole
        assert answer(process, cache_salt="mine") == (first, 0)
        resumed = [httpx.post(process.url + f"/admin/{what}", timeout=120).json() for what in ("suspend", "resume")][1]
        assert resumed["warm_hits"] >= whole // 16
        assert answer(process) == (first, whole)
        assert httpx.post(process.url + "/reset_prefix_cache", timeout=10).json() == {"success": True}
        assert tier(process)["blocks"] == 0
        assert answer(process) == (first, 0)


def test_another_format_of_kv_is_another_owner(smollm2_path: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(smollm2_path), "--max-model-len", "1024", "--prefix-cache", str(tmp_path)]
    with server(*arguments) as process:
        answer(process)
    with server(*arguments, "--kv-int8") as process:
        assert answer(process)[1] == 0
        assert tier(process)["bytes"] > 0
    with server(*arguments) as process:
        assert answer(process)[1] > 300


def test_memory_below_the_cache_keeps_what_it_gives_up(smollm2_path: Path) -> None:
    arguments = ["--model", str(smollm2_path), "--max-model-len", "512", "--set", "kv_cache.max_blocks=32"]
    with server(*arguments, "--set", "kv_cache.host_mb=64") as process:
        first, _ = answer(process)
        answer(process, prompt=STORY.replace("wind", "rain").replace("On day", "In week"))
        found, cached = answer(process)
        assert found == first and cached > 200
        told = tier(process, "memory")
        assert told["restored"] > 0 and told["max_bytes"] == 64 << 20 and 0 < told["bytes"] <= 64 << 20


def test_a_cache_that_grows_takes_blocks_as_they_are_needed(smollm2_path: Path) -> None:
    arguments = ["--model", str(smollm2_path), "--max-model-len", "512", "--max-batch", "8"]
    with server(*arguments, "--set", "kv_cache.growable=true") as process:

        def blocks() -> tuple[int, int]:
            told = httpx.get(process.url + "/health", timeout=10).json()
            assert told["kv_capacity_tokens"] == told["kv_blocks_total"] * 16
            assert process.metrics()["imp_kv_blocks_total"] == told["kv_blocks_total"]
            return told["kv_blocks_total"], told["kv_ceiling_blocks"]

        assert blocks() == (33, 512)
        first, _ = answer(process)
        assert blocks()[0] == 33
        for word in ("rain", "snow", "hail"):
            answer(process, prompt=STORY.replace("wind", word).replace("On", "At"))
        grown, most = blocks()
        assert 33 < grown < most == 512
        found, cached = answer(process)
        assert found == first and cached > 300 and process.metrics()["imp_prefix_cache_evictions_total"] == 0


def test_a_folder_that_cannot_be_used_ends_the_start(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = ServerProcess("--model", str(smollm2_path), "--prefix-cache", str(tmp_path / "file"))
    assert process.process.wait(60) == 1
    process.stop()
    assert process.log.splitlines()[-1].startswith(f"imp-server: error: {tmp_path}/file cannot be used: ")
