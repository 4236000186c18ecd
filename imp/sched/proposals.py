"""When a draft model is asked, and for how much. Belongs to Speculation.

Its guesses cost its own steps besides the positions that verify them, and what it would have said is not known unless
it is asked. So where it did not pay it is tried again, after pauses that double as long as it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from imp.sched.costs import StepCosts
from imp.sched.odds import Odds, kind
from imp.types import Proposer, Sequence, Source

MODEL = kind(Source.MODEL, 0)
UNKNOWN = 0.25  # of a step of the larger model, until it was measured: one of the draft model
SLOPE = 0.1  # of its steps over the sequences
TRIAL = 2  # tokens asked for to find out
SHORTEST, LONGEST = 16, 1024  # steps of a pause


class Proposals:
    """costs: of the larger model's steps; None: it is asked for all it can say."""

    def __init__(self, proposer: Proposer, most: int, costs: StepCosts | None, odds: Odds) -> None:
        self.proposer, self.most, self.costs, self.odds = proposer, most, costs, odds
        self.own_costs = StepCosts(SLOPE)
        self._pause = self._rest = SHORTEST

    def depth(
        self, factors: list[float], spare: int, positions: int, expected: float, margin: float, limit: float = math.inf
    ) -> int:
        """How many tokens to ask for about each of some sequences, whose texts have these factors, in a step that has
        so many positions and gives so many tokens without them.

        limit: how long the step may take, in steps of one position."""
        most = min(self.most, spare // len(factors))
        if self.costs is None or most < 1:
            return max(most, 0)
        chance = self.odds.chance
        chances = [chance(MODEL, factor) for factor in factors]
        best, rate = 0, margin * expected / self.costs.of(positions)
        powers, tokens, round_cost = chances, expected, self._round_cost(len(factors))
        for count in range(1, most + 1):
            tokens += sum(powers)
            takes = self.costs.of(positions + count * len(factors)) + count * round_cost
            here = tokens / takes
            if here > rate and takes <= limit:
                best, rate = count, here
            powers = [power * p for power, p in zip(powers, chances, strict=True)]
        if best:
            self._pause = SHORTEST
        return best or self._trial(most)

    def ask(self, seqs: list[Sequence], depth: int, room: Callable[[Sequence], int]) -> float:
        """Have their drafts filled. Returns the seconds it took."""
        wanted = [(seq, count) for seq in seqs if (count := min(depth, room(seq))) > 0]
        if not wanted:
            return 0.0
        seconds = self.proposer.propose(wanted)
        self.own_costs.learn(len(wanted), seconds / max(count for _, count in wanted))
        return seconds

    def _round_cost(self, rows: int) -> float:
        """Of one token for each of so many sequences, in the larger model's steps of one position."""
        assert self.costs is not None
        if not (self.costs.scale and self.own_costs.scale):
            return UNKNOWN * (1 + SLOPE * (rows - 1))
        return self.own_costs.of(rows) * self.own_costs.scale / self.costs.scale

    def _trial(self, most: int) -> int:
        """It does not seem to pay. Now and then that is looked at again."""
        self._rest -= 1
        if self._rest > 0:
            return 0
        self._pause = min(2 * self._pause, LONGEST)
        self._rest = self._pause
        return min(TRIAL, most)
