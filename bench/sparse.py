"""What attending to chosen blocks alone costs and saves: perplexity and agreement on a long text, and steps.

    python -m bench.sparse [--tops 256,512,1024] [--tokens 8192] [--from 4096] [--write-docs]

SmolLM2 135M reads the fixed texts one after the other, everything from `--from` on as if it had written it: those
positions are sparse. Compared with dense attention, token by token. Steps are of one row at the end of the text.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.kv import TEXTS
from bench.lines import with_section
from bench.measure import load_average, machine, table
from bench.model import load_tokenizer
from imp import settings
from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.inputs import StepInputs, prompt_inputs
from imp.model.ops import Model, StepLimits
from imp.model.sparse import ALL, Sparse
from imp.weights.checkpoint import open_checkpoint
from tests import realmodel

DOCS = Path(__file__).resolve().parents[1] / "docs" / "LONG_CONTEXT.md"
MARKS = ("<!-- bench.sparse begins -->", "<!-- bench.sparse ends -->")
BLOCK, CHUNK, STEPS = 16, 128, 25
HEADER = ("keys chosen", "perplexity", "beside all", "same best token", "a step")


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    nats: np.ndarray  # of every token read as output
    best: np.ndarray  # the likeliest token at each
    backend: CpuBackend
    last: StepInputs  # the text's last step


def read(model: Model, tokens: list[int], start: int, sparse: Sparse) -> Reading:
    limits = StepLimits(CHUNK, 1, CHUNK, len(tokens), -(-len(tokens) // BLOCK))
    backend = CpuBackend(cache_dir=settings.load([]).paths.cache, sparse=sparse)
    backend.load(model, limits)
    outputs, nats, best = np.array([start], np.int32), [], []
    for at in range(0, len(tokens) - 1, CHUNK):
        end = min(at + CHUNK, len(tokens) - 1)
        wanted = range(end - at) if at >= start else ()
        logits = backend.run(replace(prompt_inputs(tokens, at, end, BLOCK, wanted), outputs=outputs)).astype(np.float64)
        if at >= start:
            best.append(logits.argmax(axis=-1))
            logits -= logits.max(axis=-1, keepdims=True)
            nats.append(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(end - at), tokens[at + 1 : end + 1]])
    last = replace(prompt_inputs(tokens, len(tokens) - 2, len(tokens) - 1, BLOCK, [0]), outputs=outputs)
    return Reading(np.concatenate(nats), np.concatenate(best), backend, last)


def relative_step(found: Reading, dense: Reading) -> float:
    """Seconds of one beside the other's, taken in turn so that other load meets both alike."""
    taken: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for reading, seconds in zip((found, dense), taken, strict=True):
            began = time.perf_counter()
            reading.backend.run(reading.last)
            seconds.append(time.perf_counter() - began)
    return statistics.median(taken[0]) / statistics.median(taken[1])


def row(name: str, found: Reading, dense: Reading) -> list[str]:
    difference = found.nats - dense.nats
    error = 100 * float(difference.std()) / math.sqrt(len(difference))
    change = "" if found is dense else f"{100 * math.expm1(difference.mean()):+.2f} % ± {error:.2f}"
    same = f"{100 * float((found.best == dense.best).mean()):.1f} %"
    return [name, f"{math.exp(found.nats.mean()):.3f}", change, same, f"{relative_step(found, dense):.2f}"]


def measured(tops: Sequence[int], count: int, start: int) -> list[list[str]]:
    path = realmodel.smollm2()
    text = "\n\n".join(file.read_text() for file in sorted(TEXTS.glob("*.txt")))
    tokens = load_tokenizer(path).encode(text)[:count]
    checkpoint = open_checkpoint(path)
    model = arch.build(checkpoint, len(tokens))
    dense = read(model, tokens, start, ALL)
    rows = [row("all", dense, dense)]
    for top in tops:
        found = read(model, tokens, start, Sparse(top, least=start))
        rows.append(row(f"{top} + 16 + 256", found, dense))
        found.backend.close()
        print(rows[-1], flush=True)
    dense.backend.close()
    checkpoint.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.sparse", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tops", default="256,512,1024,2048")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--from", type=int, default=4096, dest="start", help="position of the first output")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/LONG_CONTEXT.md")
    chosen = parser.parse_args()
    start = chosen.start // CHUNK * CHUNK
    rows = measured([int(top) for top in chosen.tops.split(",")], chosen.tokens, start)
    told = f"SmolLM2 135M, Q4_1; outputs from position {start}. {machine()}; load average {load_average():.1f}.\n\n"
    text = told + table(HEADER, rows) + "\n"
    print(text)
    if chosen.write_docs:
        DOCS.write_text(with_section(DOCS.read_text(), text, *MARKS))


if __name__ == "__main__":
    main()
