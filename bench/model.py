"""A loaded model driven directly, without scheduler or server: prefill and decode at given sizes.

    python -m bench.model --model FILE --cases pp128,pp512,tg64,tg32x8 [--threads 2] [--device reference] [--json]

Timed is what a step costs below the scheduler: packing the batch and computing it, no sampling. That is also what
llama-bench and llama-batched-bench time.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.measure import Timing, load_average, machine, timed
from imp import bundle, settings
from imp.bundle import Bundle
from imp.memory import BLOCK_SIZE
from imp.model.inputs import pack
from imp.text.tokenizer import Tokenizer
from imp.types import Batch, Request, Row, Sequence
from imp.weights.checkpoint import GgufVocabulary, open_checkpoint

COPIED_FROM = 512  # depth from which sequences of a batch get copies of the keys and values of the first


@dataclass(frozen=True, slots=True)
class Case:
    """What to run: `pp128` computes a prompt of 128 tokens, `tg64` decodes 64 tokens; `x8` for 8 sequences at once,
    `@2048` on top of 2048 tokens that are already there."""

    kind: str  # pp | tg
    tokens: int  # of each sequence
    batch: int = 1
    depth: int = 0

    @classmethod
    def parse(cls, text: str) -> Case:
        found = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:x([1-9]\d*))?(?:@(\d+))?", text)
        if not found:
            raise ValueError(f"{text!r} is not a case; examples: pp512, tg64, tg64x8, tg64@2048")
        kind, tokens, batch, depth = found.groups()
        return cls(kind, int(tokens), int(batch or 1), int(depth or 0))

    def __str__(self) -> str:
        batch = f"x{self.batch}" if self.batch > 1 else ""
        return f"{self.kind}{self.tokens}{batch}" + (f"@{self.depth}" if self.depth else "")

    @property
    def work(self) -> int:
        """Tokens one run computes."""
        return self.tokens * self.batch


class Driver:
    """Runs cases on a bundle's backend. The bundle's scheduler must be idle: the whole KV cache is used here."""

    def __init__(self, loaded: Bundle, chunk: int = 512):
        self.backend, self.memory = loaded.backend, loaded.memory
        self.vocab, self.chunk = loaded.tokenizer.vocab_size, chunk
        self.rng = np.random.default_rng(1)

    def measure(self, case: Case, repeats: int = 5, warm_up: int = 1) -> Timing:
        """Tokens per second of the case, everything before its depth computed and not timed."""
        sequences = self.ready(case)
        run = {"pp": self.prefill, "tg": self.decode}[case.kind]
        return timed(lambda: self._again(run, sequences, case), case.work, repeats, warm_up)

    def _again(self, run: Callable[[list[Sequence], int], None], sequences: list[Sequence], case: Case) -> None:
        for seq in sequences:
            seq.computed = case.depth
        run(sequences, case.depth + case.tokens)

    def ready(self, case: Case) -> list[Sequence]:
        """The case's sequences with everything before its depth computed; where that is deep, once, and copied."""
        first, *others = sequences = self.sequences(case)
        copied = others if case.depth >= COPIED_FROM else []
        self.prefill(sequences[: len(sequences) - len(copied)], case.depth)
        for seq in copied:
            self.backend.copy_blocks(list(zip(first.blocks, seq.blocks, strict=True)))
            seq.computed = case.depth
        return sequences

    def sequences(self, case: Case) -> list[Sequence]:
        """Random tokens in shuffled blocks, nothing computed. Raises ValueError where the cache is too small."""
        length = case.depth + case.tokens
        each = -(-length // self.memory.block_size)
        if length > self.memory.context or each * case.batch > self.memory.blocks:
            raise ValueError(f"{case} does not fit: context {self.memory.context}, {self.memory.blocks} blocks")
        blocks = self.rng.permutation(self.memory.blocks)[: each * case.batch].tolist()
        prompt = length if case.kind == "pp" else case.depth
        return [self._sequence(i, length, prompt, blocks[i * each : (i + 1) * each]) for i in range(case.batch)]

    def _sequence(self, index: int, length: int, prompt: int, blocks: list[int]) -> Sequence:
        """Of so many tokens, the first `prompt` of which count as a prompt's and the others as an output's."""
        tokens = self.rng.integers(0, self.vocab, length).tolist()
        return Sequence(Request(f"bench-{index}", tuple(tokens[:prompt])), index, index, tokens, blocks=blocks)

    def prefill(self, sequences: list[Sequence], until: int) -> None:
        """Compute positions up to `until`, one sequence after the other, in chunks."""
        for seq in sequences:
            while seq.computed < until:
                self._step([Row(seq, seq.computed, min(self.chunk, until - seq.computed))])

    def decode(self, sequences: list[Sequence], until: int) -> None:
        """Compute positions up to `until`, one of every sequence in each step, each with logits."""
        known = [seq.tokens for seq in sequences]
        for at in range(sequences[0].computed, until):
            for seq, tokens in zip(sequences, known, strict=True):
                seq.tokens = tokens[: at + 1]  # its last token is what makes the row want logits
            self._step([Row(seq, at, 1) for seq in sequences])
        for seq, tokens in zip(sequences, known, strict=True):
            seq.tokens = tokens

    def _step(self, rows: list[Row]) -> None:
        self.backend.run(pack(Batch(rows), self.memory.block_size))
        for row in rows:
            row.seq.computed += row.count


def load(
    path: Path,
    device: str = "auto",
    threads: int = 0,
    progress: Callable[[str], None] = lambda line: None,
    blocks: int = 0,
    given: Iterable[str] = (),
) -> Bundle:
    """A bundle with the server's own settings, but for the device, the threads (0: one per core), the size of the
    cache (0: as the server chooses), and what is given as section.key=value."""
    own = (f"runtime.threads={threads}", f"kv_cache.max_blocks={blocks}", *given)
    return bundle.load(path, settings.load(["--device", device, *[a for one in own for a in ("--set", one)]]), progress)


def blocks_for(cases: list[Case]) -> int:
    """The size of a cache in which every case fits, at least that of a server with much memory."""
    return max(4096, *(case.batch * -(-(case.depth + case.tokens) // BLOCK_SIZE) for case in cases))


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file by itself."""
    checkpoint = open_checkpoint(path)
    files = checkpoint.tokenizer()
    assert isinstance(files, GgufVocabulary), f"{path} is not a GGUF file"
    tokenizer = Tokenizer.from_gguf(files.metadata)
    checkpoint.close()
    return tokenizer


def products_per_token(path: Path) -> int:
    """Multiply-adds of one prompt token in the matrices of the layers. The head, which only the last position of a
    prompt meets, and attention are left out."""
    checkpoint = open_checkpoint(path)
    shapes = [checkpoint.weight(name).shape for name in checkpoint.names() if ".layers." in name]
    checkpoint.close()
    return sum(math.prod(shape) for shape in shapes if len(shape) == 2)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.model", description="Prefill and decode speed of one model.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cases", default="pp128,pp512,tg64,tg32x8", help="see bench/model.py")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a server's setting")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of lines")
    chosen = parser.parse_args()
    cases = [Case.parse(text) for text in chosen.cases.split(",")]
    began = time.perf_counter()
    blocks = blocks_for(cases)
    loaded = load(chosen.model, chosen.device, chosen.threads, _say, blocks, chosen.set)
    report: dict[str, object] = {"machine": machine(), "load_s": time.perf_counter() - began, "cases": {}}
    driver = Driver(loaded)
    for case in cases:
        timing = driver.measure(case, chosen.reps)
        report["cases"][str(case)] = {"tokens_per_s": timing.median, "best": timing.best, "seconds": timing.seconds}
        if not chosen.json:
            print(f"{case!s:>12}  median {timing.median:8.1f}  best {timing.best:8.1f} tokens/s", flush=True)
    loaded.close()
    report["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report["load_average"] = load_average()
    if chosen.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
