"""What adapters cost: steps of SmolLM2 with and without, interleaved.

    python -m bench.lora [--ranks 16,64] [--repeats 40]

"half": every second row has one of two. A step without adapters is the same program whether any are loaded or not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import load_average, machine, table
from imp import settings
from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.inputs import StepInputs, pack
from imp.model.ops import StepLimits
from imp.types import Batch, Request, Row
from imp.types import Sequence as Sequenced
from imp.weights.checkpoint import open_checkpoint
from tests import realmodel
from tests.model.random_adapters import random

LIMITS = StepLimits(tokens=576, rows=64, logit_rows=64, context=512, blocks=2048)
SHAPES = ((1, 1), (8, 1), (64, 1), (1, 512))  # rows, and tokens of each
BEHIND = 100  # positions of a sequence at least


def step(rows: int, tokens: int, slots: Sequence[int | None]) -> StepInputs:
    """`slots` in turn, row by row."""
    made = []
    for i in range(rows):
        request = Request(str(i), (5,) * max(BEHIND, tokens), adapter=slots[i % len(slots)])
        blocks = [(i * 40 + n) % LIMITS.blocks for n in range(40)]
        sequence = Sequenced(request, 0, i, list(request.prompt), blocks=blocks)
        made.append(Row(sequence, len(request.prompt) - tokens, tokens))
    return pack(Batch(made), LIMITS.block_size)


def medians(backend: CpuBackend, steps: dict[str, StepInputs], repeats: int) -> dict[str, float]:
    """Seconds of each, taken in turn so that other load meets all alike."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, inputs in steps.items():
            began = time.perf_counter()
            backend.run(inputs)
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def measured(path: Path, ranks: Sequence[int], repeats: int) -> list[list[str]]:
    checkpoint = open_checkpoint(path)
    model = arch.build(checkpoint, LIMITS.context)
    backend = CpuBackend(cache_dir=settings.load([]).paths.cache)
    backend.load(model, LIMITS)
    lines = []
    slots = {rank: [backend.add_adapter(random(model, rank, seed)) for seed in (1, 2)] for rank in ranks}
    for rows, tokens in SHAPES:
        kinds: dict[str, Sequence[int | None]] = {"none": [None]}
        for rank, (first, second) in slots.items():
            kinds |= {f"rank {rank}": [first], f"rank {rank}, half": [first, None, second, None]}
        steps = {name: step(rows, tokens, each) for name, each in kinds.items()}
        found = medians(backend, steps, repeats if tokens == 1 else max(5, repeats // 8))
        base = found.pop("none")
        ratios = [f"{seconds / base:.3f}" for seconds in found.values()]
        lines.append([f"{rows} x {tokens}", f"{base * 1e3:.2f} ms", *ratios])
    backend.close()
    checkpoint.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.lora", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", default="16,64")
    parser.add_argument("--repeats", type=int, default=40)
    chosen = parser.parse_args()
    ranks = [int(rank) for rank in chosen.ranks.split(",")]
    more = [name for rank in ranks for name in (f"rank {rank}", f"rank {rank}, half")]
    print(f"{machine()}; load average {load_average():.1f}\n")
    header = ("rows x tokens", "no adapter", *more)
    print(table(header, measured(realmodel.smollm2(), ranks, chosen.repeats)))


if __name__ == "__main__":
    main()
