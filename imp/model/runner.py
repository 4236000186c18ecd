"""One step: pack the batch, run the model, draw tokens, pool, report. Implements types.Runner over a Backend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from ..types import Batch, Pool, Row, RowResult, TokenLogprob
from .inputs import outputs_first, pack, pooled_positions
from .ops import Aside, Backend, Logits
from .plan import Draw, MaskBits, plan_step
from .sampling import Drawn, logprobs_at

IDLE_S = 0.002  # slept where every row waits for its mask
PART_S = 0.004  # of a piece aside: how soon it ends for somebody more urgent


def _alone(batch: Batch) -> None: ...


class ModelRunner:
    """Owned by the engine thread. `vocab`: the tokenizer's size; logits past it are padding and never drawn.
    `bits`: what the constraints' masks are made of; the vocabulary in its order unless said. `follow`: is told of every
    step before it is computed.

    Rows whose mask takes long sit out until it is there, and nobody else waits for it."""

    def __init__(
        self,
        backend: Backend,
        vocab: int,
        block_size: int,
        bits: MaskBits | None = None,
        follow: Callable[[Batch], None] = _alone,
    ):
        self.backend, self.vocab, self.block_size = backend, vocab, block_size
        self.bits = bits or MaskBits.in_order(vocab)
        self.follow = follow
        self.watch: Callable[[str], None] = _unwatched  # told what part of a step begins
        self._begun: list[Row] | None = None  # computed aside

    def step(self, batch: Batch) -> list[RowResult]:
        results = self._step(batch)
        return results + self._piece(batch) if batch.aside else results

    def _step(self, batch: Batch) -> list[RowResult]:
        """Results of the rows of the step itself."""
        self.watch("pack")
        late = _sit_out(batch.rows)
        if not late and batch.rows:
            return self._compute(batch)
        computed = Batch([row for i, row in enumerate(batch.rows) if i not in late], batch.copies)
        if not computed.rows:
            self.follow(computed)
            if batch.copies:
                self.backend.copy_blocks(batch.copies)
            if not batch.aside:
                time.sleep(IDLE_S)
        results = iter(self._compute(computed) if computed.rows else ())
        return [RowResult([], late=True) if i in late else next(results) for i in range(len(batch.rows))]

    def _piece(self, batch: Batch) -> list[RowResult]:
        """Results of the rows aside: pending until the last piece of them has been computed."""
        aside, rows = self.backend.aside, Batch(batch.aside)
        assert aside, "the backend computes nothing aside"
        self.watch("forward")
        began = time.perf_counter()
        if batch.aside is not self._begun:
            self._begun = batch.aside
            aside.begin(pack(rows, self.block_size))
        ended = _go_on(aside, batch)
        results = [RowResult([], pending=not ended) for _ in rows.rows]
        if ended:
            self._begun = None
            self.follow(rows)
            _pool(rows, results, aside.hidden())
        batch.aside_took_s = time.perf_counter() - began
        return results

    def _compute(self, batch: Batch) -> list[RowResult]:
        """Results in the order of its rows, whatever order they are computed in."""
        ordered = Batch(outputs_first(batch.rows), batch.copies)
        results = self._compute_in_order(ordered)
        if ordered.rows == batch.rows:
            return results
        found = {id(row): result for row, result in zip(ordered.rows, results, strict=True)}
        return [found[id(row)] for row in batch.rows]

    def _compute_in_order(self, batch: Batch) -> list[RowResult]:
        inputs = pack(batch, self.block_size)
        self.watch("forward")
        if batch.copies:
            self.backend.copy_blocks(batch.copies)
        self.follow(batch)
        logits = self.backend.run(inputs)
        self.watch("sample")
        results = self._draw(batch, logits) if len(logits) else [RowResult([]) for _ in batch.rows]
        _pool(batch, results, self.backend.hidden())
        return results

    def _draw(self, batch: Batch, logits: Logits) -> list[RowResult]:
        plan, by_row = plan_step(batch, self.vocab, logits.shape[1], self.bits)
        asked = _asked(by_row, logits, self.vocab)
        drawn = self.backend.sample(logits, plan)
        results, at = [], 0
        for row, draws in zip(batch.rows, by_row, strict=True):
            results.append(_result(row, draws, drawn, asked, at))
            if row.seq.request.pool is Pool.SCORE and draws:
                results[-1].vector = tuple([value for _, value in asked.get(at, ())])
            if draws and row.seq.request.sampling.mirostat:
                row.seq.mu = float(plan.mu[at + len(draws) - 1])
            at += len(draws)
        return results


def _go_on(aside: Aside, batch: Batch) -> bool:
    """Compute a piece of what is aside, or a little of it where somebody more urgent waits. True: all is computed."""
    if batch.aside_s == math.inf:
        return aside.go_on(math.inf)
    until = time.perf_counter() + batch.aside_s
    while True:
        left = 0.0 if batch.hurried() else until - time.perf_counter()
        ended = aside.go_on(min(max(left, 0.0), PART_S))
        if ended or left <= PART_S:
            return ended


def _sit_out(rows: list[Row]) -> set[int]:
    """The rows that cannot be drawn from now. Prompts end one position earlier instead."""
    held = [i for i, row in enumerate(rows) if row.seq.constraint is not None and row.reaches_end]
    waiting = [i for i in held if not _is_ready(rows[i])]
    if waiting:  # what one of them has set going may be another's grammar
        waiting = [i for i in held if not _is_ready(rows[i])]
    for i in waiting:
        if rows[i].count > 1 and not rows[i].seq.draft:
            rows[i].count -= 1
    return {i for i in waiting if rows[i].reaches_end}


def _is_ready(row: Row) -> bool:
    assert row.seq.constraint is not None
    return row.seq.constraint.ready()


def _unwatched(part: str) -> None: ...


Asked = dict[int, tuple[tuple[int, float], ...]]  # by row of logits


def _asked(by_row: list[list[Draw]], logits: Logits, vocab: int) -> Asked:
    """The log-probabilities of tokens that requests name, before the sampler overwrites the logits."""
    found: Asked = {}
    for i, draw in enumerate(draw for draws in by_row for draw in draws):
        tokens = draw.seq.request.sampling.logprob_tokens
        if tokens and draw.target < 0:
            found[i] = tuple(zip(tokens, logprobs_at(logits[i, :vocab], tokens).tolist(), strict=True))
    return found


def _result(row: Row, draws: list[Draw], drawn: Drawn, asked: Asked, at: int) -> RowResult:
    """Prompt logprobs, then drawn tokens as long as they agree with the drafts, plus the first that does not."""
    result, draft = RowResult([]), row.seq.draft
    for i, draw in enumerate(draws, at):
        report = _logprob(draw, drawn, asked, i) if draw.logprobs >= 0 else None
        if draw.target >= 0:
            if report:
                result.prompt_logprobs.append(report)
            continue
        token = int(drawn.tokens[i])
        result.tokens.append(token)
        if report:
            result.logprobs.append(report)
        if draw.drafted < len(draft) and draft[draw.drafted] != token:
            break
    return result


def _logprob(draw: Draw, drawn: Drawn, asked: Asked, i: int) -> TokenLogprob:
    top = zip(drawn.top_tokens[i, : draw.logprobs].tolist(), drawn.top_values[i, : draw.logprobs].tolist(), strict=True)
    own = float(drawn.logprobs[i])
    return TokenLogprob(int(drawn.tokens[i]), own, tuple(top), int(drawn.ranks[i]), asked.get(i, ()))


def _pool(batch: Batch, results: list[RowResult], hidden: np.ndarray) -> None:
    """Add each pooling row's states, hidden [P, D], to its sequence's sum; the vector once the prompt's end is there.

    Positions are added one after the other in float64, so that no cut of a prompt into steps changes a bit.
    """
    if all(row.seq.request.pool in (None, Pool.SCORE) for row in batch.rows):
        return
    at = 0
    for row, result in zip(batch.rows, results, strict=True):
        seq, count = row.seq, len(pooled_positions(row))
        for state in hidden[at : at + count].astype(np.float64):
            seq.pooled = state if seq.pooled is None else seq.pooled + state
        at += count
        if seq.pooled is not None and row.reaches_end:
            positions = len(seq.request.prompt) if seq.request.pool is Pool.MEAN else 1
            result.vector = tuple((seq.pooled / positions).astype(np.float32).tolist())
