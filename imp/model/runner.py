"""One step: pack the batch, run the model, draw tokens, report. Implements types.Runner over a Backend."""

from __future__ import annotations

from ..types import Batch, Row, RowResult, TokenLogprob
from .inputs import pack
from .ops import Backend
from .plan import Draw, MaskBits, plan_step
from .sampling import Drawn


class ModelRunner:
    """Owned by the engine thread. `vocab`: the tokenizer's size; logits past it are padding and never drawn.
    `bits`: what the constraints' masks are made of; the vocabulary in its order unless said."""

    def __init__(self, backend: Backend, vocab: int, block_size: int, bits: MaskBits | None = None):
        self.backend, self.vocab, self.block_size = backend, vocab, block_size
        self.bits = bits or MaskBits.in_order(vocab)

    def step(self, batch: Batch) -> list[RowResult]:
        logits = self.backend.run(pack(batch, self.block_size))
        if not len(logits):
            return [RowResult([]) for _ in batch.rows]
        plan, by_row = plan_step(batch, self.vocab, logits.shape[1], self.bits)
        drawn = self.backend.sample(logits, plan)
        results, at = [], 0
        for row, draws in zip(batch.rows, by_row, strict=True):
            results.append(_result(row, draws, drawn, at))
            if draws and row.seq.request.sampling.mirostat:
                row.seq.mu = float(plan.mu[at + len(draws) - 1])
            at += len(draws)
        return results


def _result(row: Row, draws: list[Draw], drawn: Drawn, at: int) -> RowResult:
    """Prompt logprobs, then drawn tokens as long as they agree with the drafts, plus the first that does not."""
    result, draft = RowResult([]), row.seq.draft
    for i, draw in enumerate(draws, at):
        report = _logprob(draw, drawn, i) if draw.logprobs >= 0 else None
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


def _logprob(draw: Draw, drawn: Drawn, i: int) -> TokenLogprob:
    top = zip(drawn.top_tokens[i, : draw.logprobs].tolist(), drawn.top_values[i, : draw.logprobs].tolist(), strict=True)
    return TokenLogprob(int(drawn.tokens[i]), float(drawn.logprobs[i]), tuple(top), int(drawn.ranks[i]))
