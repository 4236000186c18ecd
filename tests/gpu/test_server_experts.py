"""The whole server on a fake GPU with a mixture of experts: what it says is what it says on the CPU."""

from __future__ import annotations

import os

import httpx
import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu import fake
from tests.gpu.served import write_model
from tests.gpu.test_server import FEW, LONG, agree, complete, metric
from tests.real.process import server

pytestmark = pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")


def test_a_mixture_of_experts_says_what_it_says_on_the_cpu(tmp_path, kernel_folder):
    """And on one device to the bit: from the cache, beside others, where guesses are verified."""
    model = str(write_model(tmp_path / "tiny", name="qwen3-moe"))
    own = os.environ | {"IMP_CACHE_DIR": str(kernel_folder)}
    with (
        server("--model", model, "--device", "cuda", *FEW, env=own | fake.environment(kernel_folder)) as on_gpu,
        server("--model", model, "--device", "cpu", *FEW, env=own) as on_cpu,
    ):
        assert httpx.get(on_gpu.url + "/health").json()["backend"] == "cuda"
        agree(on_gpu, on_cpu, LONG[:40], max_tokens=5)
        for each, length in ((on_gpu, 3), (on_cpu, 24)):
            asked = {"n": 2, "temperature": 1.0, "seed": 7, "max_tokens": length, "logprobs": 1}
            first, again = (complete(each, LONG[:40], **asked)["choices"] for _ in range(2))
            assert first == again and len({choice["text"] for choice in first}) == 2
            assert metric(each, "imp_prefix_cache_hits_total") >= 32
        once, again = (complete(on_cpu, "abc" * 8, max_tokens=24, logprobs=1)["choices"] for _ in range(2))
        assert once == again, "guessed from the first time or not"
        assert metric(on_cpu, "imp_spec_drafted_total") > 0
