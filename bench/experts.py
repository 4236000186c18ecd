"""What a mixture of experts costs on the CPU beside a plain MLP of as many columns as a token's experts have.

    python -m bench.experts [--formats Q4_K,Q8_0] [--tokens 1,4,16,64,512] [--repeats 9]

One layer of 30B-A3B shapes with random weights, both in turns; times are medians, less those of the same model with
neither. The plain MLP is read whole at every step; of the experts a step reads those that some token chose, up to 16
times as much, which is what many tokens of a small step pay.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.measure import load_average, machine, table
from imp.cpu.backend import CpuBackend
from imp.model.layers import Block, Decoder, GatedMlp, Mixture, SelfAttention
from imp.model.ops import Attention, Experts, Linear, Norm, StepLimits
from imp.weights.checkpoint import Weight
from tests.cpu.harness import step, weight

HEADER = ("format", "tokens", "plain, ms", "experts, ms", "ratio")
VOCAB, HEAD = 512, 64


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int = 2048
    inner: int = 768
    experts: int = 128
    chosen: int = 8


def model(shape: Shape, mlp: GatedMlp | Mixture | None, rng: np.random.Generator) -> Decoder:
    """Of one layer around the MLP, as small as can be; without one, around one of hardly any columns."""

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear((weight("F16", outputs, inputs, rng),))

    norm = Norm(np.ones(shape.hidden, np.float32), 1e-5)
    attention = SelfAttention(linear(3 * HEAD, shape.hidden), linear(shape.hidden, HEAD), Attention(0, 1, 1, HEAD, 0.1, None))
    nearly_none = GatedMlp(linear(64, shape.hidden), linear(shape.hidden, 32), "silu")
    embedding = weight("F16", VOCAB, shape.hidden, rng)
    block = Block(norm, attention, norm, mlp or nearly_none)
    return Decoder(embedding, (block,), norm, Linear((embedding,)), shape.hidden, VOCAB, 1024)


def plain(shape: Shape, form: str, rng: np.random.Generator) -> GatedMlp:
    inner = shape.inner * shape.chosen
    gate, up = (weight(form, inner, shape.hidden, rng) for _ in range(2))
    return GatedMlp(Linear((gate, up)), Linear((weight(form, shape.hidden, inner, rng),)), "silu")


def mixture(shape: Shape, form: str, rng: np.random.Generator) -> Mixture:
    """All experts have the bytes of one, and memory of their own."""
    sizes = ((shape.inner, shape.hidden), (shape.inner, shape.hidden), (shape.hidden, shape.inner))
    made = [weight(form, *size, rng) for size in sizes]
    gate, up, down = (
        tuple(Weight(one.name, one.data, one.format, one.shape) for _ in range(shape.experts)) for one in made
    )
    router = Linear((weight("F32", shape.experts, shape.hidden, rng),))
    return Mixture(router, Experts(gate, up, down, shape.chosen, True, "silu"))


def measured(
    shape: Shape, form: str, tokens: Sequence[int], repeats: int, cache: Path
) -> Iterator[tuple[str, int, float, float]]:
    """(format, tokens, seconds of the plain MLP, of the experts)"""
    rng = np.random.default_rng(0)
    limits = StepLimits(max(tokens), max(tokens), 1, 1024, max(tokens))
    backends = []
    for mlp in (None, plain(shape, form, rng), mixture(shape, form, rng)):
        backends.append(CpuBackend(cache_dir=cache))
        backends[-1].load(model(shape, mlp, rng), limits)
    for count in tokens:
        rows = [([int(token)], 0, [i]) for i, token in enumerate(rng.integers(0, VOCAB, count))]
        inputs, took = step(rows, wanted=()), [[], [], []]
        for _ in range(repeats + 1):
            for backend, times in zip(backends, took, strict=True):
                began = time.perf_counter()
                backend.run(inputs)
                times.append(time.perf_counter() - began)
        nothing, dense, mixed = (statistics.median(times[1:]) for times in took)
        yield form, count, max(dense - nothing, 1e-9), max(mixed - nothing, 1e-9)
    for backend in backends:
        backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.experts", description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="Q4_K,Q8_0")
    parser.add_argument("--tokens", default="1,4,16,64,512")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/imp"), help="where compiled kernels are kept")
    given = parser.parse_args()
    tokens = [int(each) for each in given.tokens.split(",")]
    lines = [
        (form, str(count), f"{1e3 * dense:.2f}", f"{1e3 * mixed:.2f}", f"{mixed / dense:.2f}")
        for each in given.formats.split(",")
        for form, count, dense, mixed in measured(Shape(), each, tokens, given.repeats, given.cache)
    ]
    print(f"{machine()}; load average {load_average():.1f}\n\n{table(HEADER, lines)}")


if __name__ == "__main__":
    main()
