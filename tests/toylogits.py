"""A model whose next-token scores are a function of the tokens before, without weights: for whatever happens between
logits and text. The runner, the scheduler, the sampler's plan and the constraints around it are the real ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imp.constrain.compiler import Compiler
from imp.constrain.vocab import VocabTables
from imp.model.inputs import StepInputs
from imp.model.plan import MaskBits
from imp.model.runner import ModelRunner
from imp.model.sampling import Drawn, SamplingPlan, reference_sample
from imp.sched.scheduler import Scheduler
from imp.types import ConstraintKind, ConstraintSpec, Limits, Request, Sampling
from tests.toys import BOS, EOS, VOCAB, Stage

PADDING = 24  # ids beyond the vocabulary, which the toy likes best
BLOCK = 4
PLAIN = Sampling(temperature=1.0)
Taste = Callable[[np.ndarray, int], None]  # changes a row of scores [len(VOCAB)], given the last token


def likes(text: str, much: float = 6.0) -> Taste:
    """More of these characters."""

    def change(row: np.ndarray, last: int) -> None:
        row[list(text.encode())] += much

    return change


class ToyLogits:
    """Backend: the scores of a position depend on all tokens up to it, which it reads back through the block table, and
    on which of them it was given as a prompt's."""

    name = "toy"

    def __init__(
        self, blocks: int, taste: Taste = lambda row, last: None, vocab: int = len(VOCAB), block: int = BLOCK
    ) -> None:
        self.kv, self.taste = np.full((blocks * block, 2), -1, np.int64), taste  # token, and whether it was a prompt's
        self.vocab, self.block = vocab, block

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        size = self.block
        for source, target in copies:
            self.kv[target * size : (target + 1) * size] = self.kv[source * size : (source + 1) * size]

    def run(self, inputs: StepInputs) -> np.ndarray:
        self.kv[inputs.slots, 0] = inputs.tokens
        self.kv[inputs.slots, 1] = np.arange(len(inputs.tokens)) >= inputs.prompts_from
        rows = []
        for at in inputs.wanted:
            b = int(np.searchsorted(inputs.row_starts, at, side="right")) - 1
            table = inputs.table[inputs.table_starts[b] : inputs.table_starts[b + 1]]
            places = np.arange(int(inputs.positions[at]) + 1)
            history = self.kv[table[places // self.block] * self.block + places % self.block]
            assert (history >= 0).all(), "a position was read that was never computed"
            rows.append(self.scores(*history.T))
        return np.array(rows, np.float32).reshape(len(rows), self.vocab + PADDING)

    def scores(self, tokens: np.ndarray, read: np.ndarray) -> np.ndarray:
        """Of what follows these tokens.   read: which of them are a prompt's, 0 or 1."""
        rng = np.random.default_rng(int(np.dot(2 * tokens + read + 1, np.arange(1, len(tokens) + 1) ** 2 % 977)))
        row = rng.standard_normal(self.vocab + PADDING) * 2
        self.taste(row, int(tokens[-1]))
        row[self.vocab :] = 50.0
        return row

    def hidden(self) -> np.ndarray:
        return np.zeros((0, 1), np.float32)

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        return reference_sample(logits, plan)


def compiler(code_folder: Path, **options: Any) -> Compiler:
    """Of constraints over the toy vocabulary. options: of Compiler."""

    def encode(data: bytes) -> list[int]:
        """Greedily, longest pieces first."""
        ids, at = [], 0
        longest = sorted(range(258, len(VOCAB)), key=lambda t: -len(VOCAB[t]))
        while at < len(data):
            token = next((t for t in longest if data.startswith(VOCAB[t], at)), data[at])
            ids.append(token)
            at += len(VOCAB[token])
        return ids

    tables = VocabTables.build(VOCAB, {EOS, BOS}, {EOS}, code_folder)
    return Compiler(lambda: tables, encode, cache_dir=code_folder, **options)


def stage(made: Compiler, *, blocks: int = 200, taste: Taste = lambda row, last: None, jump: bool = True, **limits: int) -> Stage:
    """Scheduler and runner over the toy, driven by hand."""
    bits = MaskBits(made.tables.bit_tokens, made.tables.bit_aliases)
    runner = ModelRunner(ToyLogits(blocks, taste), len(VOCAB), BLOCK, bits)  # type: ignore[arg-type]
    found = Stage(blocks, BLOCK, runner=runner, **limits)  # type: ignore[arg-type]
    assert isinstance(found.sched, Scheduler)
    found.sched.speculation.jump_ahead = jump
    return found


def request(made: Compiler, id: str, kind: ConstraintKind | None, text: str = "", *, sampling: Sampling = PLAIN, limits: Limits | None = None, n: int = 1, prompt: int = 6) -> Request:
    grammar = None if kind is None else made.compile(ConstraintSpec(kind, text))
    rng = random.Random(id)
    tokens = tuple(rng.randrange(97, 123) for _ in range(prompt))
    return Request(id, tokens, sampling, limits or Limits(200, stop_ids=frozenset({EOS})), n, constraint=grammar)
