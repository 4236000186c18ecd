"""The whole server on a fake GPU: what it says is what it says on the CPU, and everything a request can ask for once.

cuda.bindings is as it comes, the driver is the fake one, kernels run in the emulator; the model is tiny and random.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu import fake
from tests.gpu.served import write_model
from tests.model import adapters
from tests.real.process import ServerProcess, server

pytestmark = pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")

FEW = ("--max-batch", "4", "--prefill-chunk-size", "16", "--max-model-len", "256")
LONG = "The harbour was quiet when the last boat came in, and nobody answered the old woman at the pier. "  # 98 bytes
CLOSE = 0.1  # log-probabilities nearer than this may be in either order: both round float16 weights' sums their own way


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> str:
    """--lora's value."""
    return f"tuned={adapters.write(tmp_path_factory.mktemp('adapters'), 'llama', 'everywhere')}"


@pytest.fixture(scope="module")
def on_gpu(model, adapter, kernel_folder) -> Iterator[ServerProcess]:
    own = os.environ | fake.environment(kernel_folder) | {"IMP_CACHE_DIR": str(kernel_folder)}
    with server("--model", str(model), "--device", "cuda", "--lora", adapter, *FEW, env=own) as process:
        yield process


@pytest.fixture(scope="module")
def on_cpu(model, adapter, kernel_folder) -> Iterator[ServerProcess]:
    own = os.environ | {"IMP_CACHE_DIR": str(kernel_folder)}
    with server("--model", str(model), "--device", "cpu", "--lora", adapter, *FEW, env=own) as process:
        yield process


def complete(process: ServerProcess, prompt: str, **asked: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12} | asked
    answer = httpx.post(process.url + "/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(process: ServerProcess, prompt: str, **asked: Any) -> str:
    return complete(process, prompt, **asked)["choices"][0]["text"]


def metric(process: ServerProcess, name: str) -> float:
    return process.metrics()[name]


def becomes(process: ServerProcess, name: str, value: float) -> bool:
    """Whether a metric has this value within a minute."""
    until = time.monotonic() + 60
    while metric(process, name) != value:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("prompt", ["x", "Once upon", LONG, LONG + LONG], ids=len)
def test_greedy_tokens_are_the_cpus_as_far_as_their_gap_allows(on_gpu, on_cpu, prompt):
    """Prompts of one step and of several; 16 positions at a time."""
    agree(on_gpu, on_cpu, prompt)


def test_an_adapter_says_what_it_says_on_the_cpu(on_gpu, on_cpu):
    agree(on_gpu, on_cpu, LONG, model="tuned")
    assert text(on_gpu, LONG, model="tuned") != text(on_gpu, LONG)


def agree(on_gpu: ServerProcess, on_cpu: ServerProcess, prompt: str, **asked: Any) -> None:
    found, expected = (
        complete(each, prompt, logprobs=2, **asked)["choices"][0]["logprobs"] for each in (on_gpu, on_cpu)
    )
    for i, token in enumerate(expected["tokens"]):
        first, second = sorted(expected["top_logprobs"][i].values(), reverse=True)[:2]
        if found["tokens"][i] != token:
            assert first - second < CLOSE, f"token {i}: {found['tokens'][i]!r} for {token!r}"
            assert i > 2, "nothing was compared"
            break
        assert found["token_logprobs"][i] == pytest.approx(expected["token_logprobs"][i], abs=CLOSE)


def test_it_says_where_it_runs(on_gpu):
    assert re.search(r"backend +cuda:0, .*sm_90a", on_gpu.log)
    assert httpx.get(on_gpu.url + "/health").json()["backend"] == "cuda"
    used = on_gpu.metrics()
    assert 0 < used["imp_vram_own_bytes"] <= used["imp_vram_own_peak_bytes"] < used["imp_vram_budget_bytes"]
    assert 'imp_memory_reserved_bytes{tier="device"}' in httpx.get(on_gpu.url + "/metrics").text


def test_a_prompt_that_is_cached_gives_the_same_tokens(on_gpu):
    prompt = "cached: " + LONG
    before = metric(on_gpu, "imp_prefix_cache_hits_total")
    first, again = (complete(on_gpu, prompt, logprobs=1)["choices"][0]["logprobs"] for _ in range(2))
    assert first == again, "to the last bit of its log-probabilities"
    assert metric(on_gpu, "imp_prefix_cache_hits_total") >= before + 96


def test_several_choices_are_drawn_side_by_side_and_a_seed_draws_them_again(on_gpu):
    asked = {"n": 3, "temperature": 1.0, "seed": 7, "top_p": 0.95, "repetition_penalty": 1.1, "max_tokens": 8}
    first, again = ([each["text"] for each in complete(on_gpu, "Three ways:", **asked)["choices"]] for _ in range(2))
    assert first == again and len(set(first)) == 3


def test_drawn_tokens_are_the_cpus(on_gpu, on_cpu):
    """The same random numbers meet nearly the same probabilities: the first tokens are alike."""
    asked = {"temperature": 0.8, "top_k": 20, "max_tokens": 2}
    alike = sum(
        text(on_gpu, "Draw", seed=seed, **asked) == text(on_cpu, "Draw", seed=seed, **asked) for seed in range(8)
    )
    assert alike >= 7


def test_guesses_are_verified_and_change_nothing(on_gpu):
    prompt = "abcabcabcabcabcabcabcabc"
    before = metric(on_gpu, "imp_spec_drafted_total")
    once = complete(on_gpu, prompt, max_tokens=40, logprobs=1)["choices"][0]["logprobs"]
    again = complete(on_gpu, prompt, max_tokens=40, logprobs=1)["choices"][0]["logprobs"]
    assert once == again, "guessed from the first time or not"
    assert metric(on_gpu, "imp_spec_drafted_total") > before
    assert metric(on_gpu, "imp_spec_accepted_total") > 0


def test_constraints_hold(on_gpu):
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert json.loads(text(on_gpu, "JSON:", max_tokens=60, response_format=form))["a"] in ("x", "y")
    assert re.fullmatch("(yes|no)!?", text(on_gpu, "Well,", temperature=1.0, seed=3, guided_regex="(yes|no)!"))


def test_embeddings_are_nearly_the_cpus(on_gpu, on_cpu):
    body = {"input": ["a short text", LONG]}
    ours, theirs = (
        [each["embedding"] for each in httpx.post(p.url + "/v1/embeddings", json=body, timeout=300).json()["data"]]
        for p in (on_gpu, on_cpu)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert sum(x * y for x, y in zip(a, b, strict=True)) > 0.999


def test_who_leaves_is_not_computed_for(on_gpu):
    body = {"prompt": "Go on", "max_tokens": 150, "stream": True, "ignore_eos": True, "temperature": 1.0}
    with httpx.stream("POST", on_gpu.url + "/v1/completions", json=body, timeout=300) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        assert becomes(on_gpu, "imp_queue_running", 1)
    assert becomes(on_gpu, "imp_queue_running", 0)
    assert len(text(on_gpu, "after that", max_tokens=2)) > 0


def test_suspending_empties_the_device_and_resuming_says_the_same(on_gpu):
    before = text(on_gpu, LONG)
    told = httpx.post(on_gpu.url + "/admin/suspend", timeout=120).json()
    assert told["suspended"] is True and told["vram_free_after"] > told["vram_free_before"]
    assert metric(on_gpu, "imp_vram_own_bytes") == 0
    assert httpx.post(on_gpu.url + "/admin/resume", timeout=300).json()["suspended"] is False
    assert text(on_gpu, LONG) == before


def test_too_small_a_budget_is_said_with_the_plan(model, kernel_folder):
    own = os.environ | fake.environment(kernel_folder) | {"IMP_CACHE_DIR": str(kernel_folder)}
    process = ServerProcess("--model", str(model), "--device", "cuda", "--vram-budget", "100", *FEW, env=own)
    assert process.process.wait(120) == 3
    process._reader.join(5)
    assert "too little memory on the device for weights of" in process.log and "100 MiB are free" in process.log


def test_without_a_driver_it_is_said_why(model):
    process = ServerProcess("--model", str(model), "--device", "cuda", *FEW)
    assert process.process.wait(120) == 3
    process._reader.join(5)
    assert "there is no CUDA driver" in process.log


def test_a_dead_device_fails_everything_and_health_says_so(model, kernel_folder):
    dying = fake.environment(kernel_folder, fault_after=400) | {"IMP_CACHE_DIR": str(kernel_folder)}
    with server("--model", str(model), "--device", "cuda", *FEW, env=os.environ | dying) as process:
        for _ in range(20):  # steps that want hidden states are launched kernel by kernel
            answer = httpx.post(process.url + "/v1/embeddings", json={"input": LONG}, timeout=300)
            if answer.status_code != 200:
                break
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_faulted", answer.text
        health = httpx.get(process.url + "/health")
        assert health.status_code == 503 and health.json()["code"] == "engine_faulted"
