"""Prompt chunks that are computed aside: a piece in every step, beside rows that decode, until they are done.

So however long a prompt is, and however dear its attention, a step takes no longer than it may, and a chunk has the
size that is computed best. The last token of a prompt is never among them: its logits are wanted, and it gets a row of
the step itself. A chunk is given up as soon as one of its sequences has lost its blocks.
"""

from __future__ import annotations

from imp.sched.shares import shares
from imp.sched.turns import outranks
from imp.types import Row, Sequence


class Aside:
    """Belongs to the scheduler. tokens: positions of a chunk, 0: the runner computes nothing aside.  most: its rows."""

    def __init__(self, tokens: int = 0, most: int = 1) -> None:
        self.tokens, self.most = tokens, most
        self.rows: list[Row] = []  # of the chunk that has begun; the same list until it is done
        self._blocks: list[list[int]] = []  # of each of its sequences, when it began
        self._owed = False  # one was given up for others, and none has been done since

    def begin(self, prompts: list[Sequence]) -> None:
        """A new chunk of these, sorted by rank, which have more than one position to compute: of prompts' positions, or
        of those behind them, whichever the first of these has next."""
        prompts = [seq for seq in prompts if seq.in_prompt == prompts[0].in_prompt]
        granted = shares([min(seq.in_one_row, seq.pending - 1) for seq in prompts], self.tokens)
        chosen = [(seq, count) for seq, count in zip(prompts, granted, strict=True) if count][: self.most]
        self.rows = [Row(seq, seq.computed, count) for seq, count in chosen]
        self._blocks = [seq.blocks for seq, _ in chosen]

    def others(self, prompts: list[Sequence]) -> list[Sequence]:
        """Those of `prompts` that are not in the chunk."""
        mine = {id(row.seq) for row in self.rows}
        return [seq for seq in prompts if id(seq) not in mine] if mine else prompts

    def is_outranked_by(self, seq: Sequence) -> bool:
        """Whether all in the chunk are."""
        return all(outranks(seq, row.seq) for row in self.rows)

    def give_up(self) -> None:
        """What has been computed of it is lost."""
        self.rows, self._blocks = [], []

    def give_up_for_others(self) -> None:
        """The same, but not of one chunk after the other: whoever is in them gets on."""
        if self.rows and not self._owed:
            self.give_up()
            self._owed = True

    def keep_if_whole(self) -> None:
        """Whoever loses his blocks gets other ones, in another list."""
        if any(row.seq.blocks is not blocks for row, blocks in zip(self.rows, self._blocks, strict=True)):
            self.give_up()

    def done(self) -> None:
        """It has been computed."""
        self.rows, self._blocks, self._owed = [], [], False
