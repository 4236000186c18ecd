"""What of prompts a step computes: in rows of its own, and aside.

Beside rows that decode, prompts are computed aside, where the runner can, or only as much of them as is computed soon;
where nothing decodes, in short steps. Whose turn it is, and who has blocks, has been decided before.
"""

from __future__ import annotations

from imp.sched.aside import Aside
from imp.sched.burst import Burst
from imp.sched.pace import Decode, Pace
from imp.sched.shares import shares
from imp.types import Row, Sequence

TAIL = 8  # of this part of a prompt its end is no shorter


def left_of(seq: Sequence) -> int:
    """Positions of a prompt that are still to be computed, but at least an eighth of all there were: the end of a long
    prompt is no short one, whose first token would come so much sooner if steps were longer for it."""
    cached = seq.cached if seq.started else seq.computed
    return max(seq.pending, (len(seq.tokens) - cached) // TAIL)


class Prompts:
    """Belongs to the scheduler. max_tokens: positions per step.   cap: of prompts, in one that has decode rows."""

    def __init__(self, max_tokens: int, cap: int, pace: Pace, aside: Aside, burst: Burst) -> None:
        self.max_tokens, self.cap = max_tokens, cap
        self.pace, self.aside, self.burst = pace, aside, burst

    def admission_budget(self, prompts: list[Sequence], decoding: list[Sequence]) -> int:
        """Positions that must be shared by those who come in and `prompts`."""
        if self.aside.tokens:
            return self.max_tokens
        rows, keys = len(decoding), sum([len(seq.tokens) for seq in decoding])
        return self._budget(prompts, Decode(rows, keys, rows, keys))

    def put_aside(
        self, prompts: list[Sequence], decode_rows: int, hurried: Sequence | None
    ) -> tuple[list[Row], list[Sequence]]:
        """What is computed aside in this step, and those of `prompts` that get rows of the step itself: without rows
        that decode, all of them, but not before a chunk that was begun has been ended.

        hurried: the prompt for which less urgent ones are no longer among `prompts`."""
        aside = self.aside
        if not decode_rows:
            self.burst.choose(prompts, self.max_tokens)
        if not aside.tokens:
            return [], prompts
        aside.keep_if_whole()
        yields = hurried is not None and aside.is_outranked_by(hurried)
        prompts = aside.others(prompts)
        if not decode_rows:
            return (aside.rows, []) if aside.rows and not yields else ([], prompts)
        if yields:
            aside.give_up_for_others()
        apart = [seq for seq in prompts if seq.pending > 1 and seq.request.sampling.prompt_logprobs is None]
        if apart and not aside.rows:
            aside.begin(apart)
        return aside.rows, [seq for seq in prompts if seq not in apart]

    def rows(self, prompts: list[Sequence], decode: Decode, logits: int) -> list[Row]:
        """Rows of these in a step with `decode`.

        logits: rows of them that are left for the log-probabilities of prompts."""
        rows = []
        for seq, count in zip(prompts, self._counts(prompts, decode), strict=True):
            row = Row(seq, seq.computed, min(count, seq.in_one_row))
            if row.wants_prompt_logprobs:
                row.count = min(row.count, 1 + logits)
                logits -= max(row.count - 1, 0)
            if row.count:
                rows.append(row)
        return rows

    def _counts(self, prompts: list[Sequence], decode: Decode) -> list[int]:
        if decode.rows:
            return shares([seq.pending for seq in prompts], self._budget(prompts, decode))
        soon = self.pace.portion(max([seq.computed for seq in prompts]))
        return self.burst.counts(prompts, self.max_tokens if soon is None else soon)

    def _budget(self, prompts: list[Sequence], decode: Decode) -> int:
        """Positions of prompts in a step with `decode`."""
        budget = self.max_tokens - decode.positions
        if not decode.rows:
            return budget
        if self.pace.wants_to_learn:
            return 0
        if all(seq.pending == 1 for seq in prompts):
            return min(budget, self.cap)  # they are as cheap as rows that decode
        soon = self.pace.chunk(decode, max((seq.computed for seq in prompts), default=0))
        return min(budget, self.cap) if soon is None else min(budget, self.cap, soon)
