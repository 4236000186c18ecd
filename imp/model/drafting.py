"""A smaller model that guesses what the larger one will say. Implements types.Proposer; owned by the engine thread.

Its KV lies in the same blocks as the larger model's, in a cache of its own, so that whatever shares, copies or gives
back a block does so for both. It computes prompts along with the larger model. Of what is said then it computes nothing
until it is asked, and catches up first. Should a block of the cache hold something else than it believes (one that the
other model filled while this one rested), its guesses are worse and nothing else is.

It draws as the request's own sampler does, with the random numbers of the positions it guesses: two models that think
alike then mostly draw alike, also at high temperatures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from ..types import Batch, Row, Sequence
from .inputs import BEYOND, NOTHING_ADAPTED, StepInputs, pack
from .ops import Backend, StepLimits
from .plan import Draw, MaskBits, plan_draws

log = logging.getLogger("imp.drafting")

FAILED = "the draft model failed; the log says how"


class DraftModel:
    """context: positions it was made for; texts that are longer are not guessed at. The rest is as the ModelRunner's
    whose model it guesses at; `limits` are the backend's."""

    def __init__(self, backend: Backend, vocab: int, limits: StepLimits, context: int, bits: MaskBits) -> None:
        self.backend, self.vocab, self.limits, self.bits = backend, vocab, limits, bits
        self.context = context
        self.failed = ""  # why it says nothing any more

    def follow(self, batch: Batch) -> None:
        """Compute the prompts of a step as well."""
        if self.failed:
            return
        try:
            if batch.copies:
                self.backend.copy_blocks(batch.copies)
            for row in batch.rows:
                if not row.seq.started:  # what it shares with an earlier prompt was computed with that
                    row.seq.guided = row.start
            rows = [row for row in batch.rows if row.start < len(row.seq.tokens) - 1 and row.seq.request.pool is None]
            self._compute([row for row in rows if row.start + row.count <= self.context])
        except Exception:
            self._give_up()

    def propose(self, wanted: list[tuple[Sequence, int]]) -> float:
        """Give each of these sequences a draft of at most so many tokens. Their blocks have room for all but the last.
        Returns the seconds it took."""
        began = perf_counter()
        walked = {id(seq): 0 for seq, _ in wanted}
        try:
            fitting = [(seq, count) for seq, count in wanted if len(seq.tokens) + count <= self.context]
            self._catch_up([seq for seq, _ in fitting])
            going = fitting if not self.failed else []
            while going:
                going = self._round(going, walked)
        except Exception:
            self._give_up()
            for seq, _ in wanted:
                seq.draft = []
        finally:
            for seq, _ in wanted:
                if seq.constraint is not None and walked[id(seq)]:
                    seq.constraint.rollback(walked[id(seq)])
        return perf_counter() - began

    def _round(self, going: list[tuple[Sequence, int]], walked: dict[int, int]) -> list[tuple[Sequence, int]]:
        """One more token for each; those that want another."""
        rows = [Row(seq, seq.guided, len(seq.tokens) + len(seq.draft) - seq.guided) for seq, _ in going]
        # a row may begin in the prompt here and end behind it: few positions, which all count as an output's
        logits = self.backend.run(replace(self._pack(rows, _last), prompts_from=BEYOND))
        plan = plan_draws([[Draw(seq, len(seq.draft))] for seq, _ in going], self.vocab, logits.shape[1], self.bits)
        more = []
        for (seq, count), token in zip(going, self.backend.sample(logits, plan).tokens.tolist(), strict=True):
            seq.guided = len(seq.tokens) + len(seq.draft)
            constraint = seq.constraint
            if constraint is not None:
                if not constraint.accept(token):
                    continue
                walked[id(seq)] += 1
                if not constraint.ready():
                    continue
            seq.draft.append(token)
            over = token in seq.request.limits.stop_ids or (constraint is not None and constraint.done)
            if len(seq.draft) < count and not over:
                more.append((seq, count))
        return more

    def _catch_up(self, seqs: list[Sequence]) -> None:
        """Leave no sequence so far behind that one step could not take in what all of them lack."""
        most = self.limits.tokens // max(len(seqs), 1)
        for seq in seqs:
            seq.guided = min(seq.guided, len(seq.tokens) - 1)
            while len(seq.tokens) - seq.guided > most:
                count = min(len(seq.tokens) - 1 - seq.guided, self.limits.tokens)
                self._compute([Row(seq, seq.guided, count)])

    def _compute(self, rows: list[Row]) -> None:
        if rows:
            self.backend.run(self._pack(rows, _none))
        for row in rows:
            row.seq.guided = row.start + row.count

    def _pack(self, rows: list[Row], wants: Callable[[Row], int]) -> StepInputs:
        """Without adapters, which are the larger model's alone."""
        return replace(pack(Batch(rows), self.limits.block_size, wants), adapted=NOTHING_ADAPTED)

    def _give_up(self) -> None:
        log.exception("the draft model is not used any more")
        self.failed = FAILED


def _last(row: Row) -> int:
    return 1


def _none(row: Row) -> int:
    return 0
