"""Rows of those that decode, with the guesses that they verify, and who has to go where they find no blocks."""

from __future__ import annotations

from imp.sched.pace import Pace
from imp.sched.places import Places
from imp.sched.room import full_at
from imp.sched.speculation import Speculation
from imp.types import Row, Sequence


class Decoding:
    """Belongs to the scheduler, whose limits these are."""

    def __init__(self, places: Places, pace: Pace, context: int, max_tokens: int, max_logit_rows: int) -> None:
        self.pace = pace
        self.places, self.pool = places, places.pool
        self.context, self.max_tokens, self.max_logit_rows = context, max_tokens, max_logit_rows

    def rows(self, decoding: list[Sequence], speculation: Speculation, left: int) -> list[Row]:
        """One row for each of these sequences, which decode, most urgent first.  left: as for Pace.stretch().

        Victims leave from the other end, so a sequence that already has a row is never one.
        """
        rows: list[Row] = []
        places, size = self.places, self.pool.size
        decoding = [seq for seq in decoding if seq.blocks]  # some may have had to go for who came in
        if decoding:
            longest = self.pace.stretch(len(decoding), sum([len(seq.tokens) for seq in decoding]), left)
            speculation.draft(decoding, self._spare_positions(), self._room_for_guesses, places.grow, longest)
        for seq in decoding:
            if not seq.blocks:
                break  # it was a victim, and so are those behind it
            count = 1 + len(seq.draft)
            if seq.computed + count > len(seq.blocks) * size:
                if not places.make_room(seq):
                    break  # it was its own victim, so it was the last
                count = 1 + len(seq.draft)
            rows.append(Row(seq, seq.computed, count))
        return rows

    def spare_logits(self, rows: list[Row]) -> int:
        """Logit rows left when everybody who runs, or may be admitted in this step, has one."""
        reserved = min(self.places.max_rows, len(self.places.running) + len(self.places.waiting))
        return self.max_logit_rows - reserved - sum([row.count - 1 for row in rows])

    def _room_for_guesses(self, seq: Sequence) -> int:
        """How many can be right before the sequence is full, the token behind them included. None where the row is the
        prompt's last position: what is behind it would be of the output."""
        if seq.in_prompt:
            return 0
        return max(full_at(self.pool, seq, self.context) - len(seq.tokens) - 1, 0)

    def _spare_positions(self) -> int:
        """For guesses: what is left when everybody has one position and one logit row; half of that where prompts want
        positions."""
        running = self.places.running
        spare = self.max_tokens - len(running)
        if self.places.waiting or any(seq.computed + 1 < len(seq.tokens) for seq in running):
            spare //= 2
        return min(spare, self.spare_logits([]))
