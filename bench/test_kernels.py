"""Speed of the parts: matrix products by format, sampling, tokenizing, opening a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.cpu import Attended, Product
from bench.model import load_tokenizer
from imp import settings
from imp.cpu.cache import CompiledKernels
from imp.cpu.sample import Sampler
from imp.cpu.simd import detect
from imp.cpu.threads import Threads
from imp.model.ops import Attention
from imp.model.plan import MaskBits, plan_step
from imp.types import Batch, Request, Row, Sampling, Sequence
from imp.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def kernels() -> CompiledKernels:
    return CompiledKernels(settings.load([]).paths.cache, detect())


@pytest.fixture(scope="module")
def workers(kernels: CompiledKernels, threads: int) -> Iterator[Threads]:
    running = Threads(threads, kernels)
    yield running
    running.close()


INTEGERS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")


# 64 MiB and more of weights, so that they come from memory as those of a model do
@pytest.mark.parametrize("name", [*INTEGERS, "F16"])
def test_matrix_by_one_token(benchmark, kernels, workers, figures, bandwidth, name):
    product = Product(kernels, workers, name, outputs=32768, inputs=4096, tokens=1)
    benchmark.pedantic(product.run, rounds=10, warmup_rounds=2)
    rate = product.weight_bytes / benchmark.stats.stats.min / 1e9
    figures.note(benchmark, f"{name} x 1 token", rate, "GB/s", "memory bandwidth", bandwidth.now() / 1e9)


@pytest.mark.parametrize("tokens", [8, 256])
@pytest.mark.parametrize("name", INTEGERS)
def test_matrix_of_integers_by_many_tokens(benchmark, kernels, workers, figures, byte_products, name, tokens):
    product = Product(kernels, workers, name, outputs=1536, inputs=768, tokens=tokens)
    benchmark.pedantic(product.run, rounds=10, warmup_rounds=2)
    rate = product.multiply_adds / benchmark.stats.stats.min / 1e9
    figures.note(benchmark, f"{name} x {tokens} tokens", rate, "GMAC/s", "byte products", byte_products.now() / 1e9)


def test_matrix_of_floats_by_many_tokens(benchmark, kernels, workers, figures, multiply_adds):
    product = Product(kernels, workers, "F16", outputs=1536, inputs=768, tokens=256)
    benchmark.pedantic(product.run, rounds=10, warmup_rounds=2)
    rate = product.multiply_adds / benchmark.stats.stats.min / 1e9
    figures.note(benchmark, "F16 x 256 tokens", rate, "GMAC/s", "float32 rate", multiply_adds.now() / 1e9)


SHAPES = {
    "SmolLM2 135M": Attention(0, 9, 3, 64, 64**-0.5, None, None, None),
    "Gemma 3 270M": Attention(0, 4, 1, 256, 256**-0.5, None, None, None),
    "Llama 3 8B": Attention(0, 32, 8, 128, 128**-0.5, None, None, None),
}
WHAT = {"64 of a prompt": (64, 1), "512 of a prompt": (512, 1), "one of 1": (1, 1), "one of each of 8": (1, 8)}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("model", SHAPES)
def test_attention_at_2048(benchmark, kernels, workers, figures, multiply_adds, model, what):
    tokens, rows = WHAT[what]
    attended = Attended(kernels, workers, SHAPES[model], tokens=tokens, context=2048, rows=rows)
    benchmark.pedantic(attended.run, rounds=10, warmup_rounds=2)
    rate = attended.multiply_adds / benchmark.stats.stats.min / 1e9
    figures.note(benchmark, f"attention, {model}, {what}", rate, "GMAC/s", "float32 rate", multiply_adds.now() / 1e9)


WAYS = {
    "greedy": Sampling(temperature=0),
    "top_p 0.95": Sampling(temperature=0.7, top_p=0.95),
    "top_k 40": Sampling(temperature=0.7, top_k=40),
    "5 logprobs": Sampling(temperature=1.0, logprobs=5),
}


@pytest.mark.parametrize("vocab", [49152, 262144])
@pytest.mark.parametrize("way", WAYS)
def test_sampling(benchmark, kernels, figures, vocab, way):
    rows = 8
    logits = np.random.default_rng(vocab).normal(0, 3, (rows, vocab)).astype(np.float32)
    requests = [Request(f"r{i}", (1, 2, 3), WAYS[way]) for i in range(rows)]
    batch = Batch([Row(Sequence(request, 0, 0, [1, 2, 3]), 0, 3) for request in requests])
    sampler = Sampler(kernels)
    given = logits.copy()

    def fresh():
        np.copyto(given, logits)  # sampling may overwrite them

    def draw():
        plan, _ = plan_step(batch, vocab, vocab, MaskBits.in_order(vocab))
        sampler.sample(given, plan)

    benchmark.pedantic(draw, setup=fresh, rounds=10, warmup_rounds=2)
    per_row = benchmark.stats.stats.min / rows * 1e6
    figures.note(benchmark, f"sampling, {way}, of {vocab}", per_row, "us a row")


def test_tokenizing(benchmark, figures, smollm2_path: Path):
    tokenizer = load_tokenizer(smollm2_path)
    prose = "The quick brown fox doesn't jump over 1,234 lazy dogs; it's naïve, and costs 5 €.\n"
    code = "def f(x: int) -> int:\n    return x ** 2 + 1  # quadratic\n"
    text = "".join(f"{i}. {prose}{code}" for i in range(500))
    benchmark.pedantic(lambda: tokenizer.encode(text), rounds=5, warmup_rounds=1)
    figures.note(benchmark, "encode", len(text.encode()) / benchmark.stats.stats.min / 1e6, "MB/s")


def test_opening_a_file(benchmark, figures, smollm2_path: Path):
    benchmark.pedantic(lambda: open_checkpoint(smollm2_path).close(), rounds=5, warmup_rounds=1)
    figures.note(benchmark, "open GGUF", benchmark.stats.stats.min * 1e3, "ms")


def test_loading_a_tokenizer(benchmark, figures, smollm2_path: Path):
    benchmark.pedantic(lambda: load_tokenizer(smollm2_path), rounds=3, warmup_rounds=1)
    figures.note(benchmark, "load tokenizer", benchmark.stats.stats.min * 1e3, "ms")
