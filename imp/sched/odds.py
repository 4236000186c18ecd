"""How likely a guessed token is right, as experience says: by where it comes from and how much matched before it.

Every guess is compared with what was then drawn, whether it was verified in a step or only kept in mind. So it is known
when guessing would pay again, and no step is spent on finding out.
"""

from __future__ import annotations

from imp.types import Source

LENGTHS = (0, 1, 2, 3, 4, 6, 9, 16, 32)  # of a match: where the next kind begins
_KIND = [sum(length >= first for first in LENGTHS) - 1 for length in range(LENGTHS[-1] + 1)]
_KINDS = len(LENGTHS)

# what is assumed until something is known, as if it had been seen PRIOR times
_FIRST = {
    Source.FORCED: (0.9,) * _KINDS,
    Source.RUNNER: (0.7,) * _KINDS,
    Source.RUN: (0.3, 0.3, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
    Source.NEAR: (0.4, 0.4, 0.5, 0.6, 0.65, 0.75, 0.8, 0.9, 0.95),
    Source.REPLACEMENT: (0.4, 0.5, 0.6, 0.6, 0.65, 0.75, 0.8, 0.9, 0.95),
    Source.SHARED: (0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 0.95),
    Source.MODEL: (0.6,) * _KINDS,
}
PRIOR = 8.0
MEMORY = 256.0  # trials after which the older ones count half

OWN = 6.0  # trials of a text that weigh as much as what is known of all texts
DOUBT = 3.0  # misses that every text begins with, until it was seen to repeat itself
FORGET = 0.97  # of a text's own experience, what is left after each trial
SUREST = 0.99

DEBT = -1.0  # tokens that guesses may have cost a text more than they gave: no more are made then
DEEPEST = -2.0  # the most that is remembered of it
CREDIT = 4.0  # and of what they have given more than they cost
LAPSE = 0.99  # of either, what is left after each step


def kind(source: Source, matched: int) -> int:
    """The kind of a guessed token, `matched` tokens behind the point from which on it is a copy."""
    return source.value * _KINDS + _KIND[min(matched, LENGTHS[-1])]


class Texture:
    """How well one text can be guessed beside others: hits and misses, and those to be expected of the kinds tried.

    Beside that stands what guesses have given it and cost, in tokens. Chances are estimates, and so are costs: whatever
    is wrong with them, this bounds what a text can lose."""

    __slots__ = ("balance", "due", "due_misses", "hits", "misses")

    def __init__(self) -> None:
        self.hits = self.due = self.due_misses = self.balance = 0.0
        self.misses = DOUBT

    @property
    def may_lose(self) -> bool:
        return self.balance > DEBT

    def settle(self, accepted: int, cost: float) -> None:
        """A step gave so many tokens by guesses, and lost so many to them."""
        self.balance = min(max(self.balance * LAPSE + accepted - cost, DEEPEST), CREDIT)

    @property
    def factor(self) -> float:
        """By which the odds of every guess about this text are multiplied."""
        return (self.hits + OWN) * (self.due_misses + OWN) / ((self.due + OWN) * (self.misses + OWN))


class Odds:
    """Of all texts together. One for a scheduler."""

    def __init__(self) -> None:
        rates = [rate for source in Source for rate in _FIRST[source]]
        self._hits = [rate * PRIOR for rate in rates]
        self._trials = [PRIOR] * len(rates)

    def chance(self, kind: int, factor: float) -> float:
        """Of a token of this kind, where all before it were right."""
        hits, trials = self._hits[kind], self._trials[kind]
        return min(hits * factor / (hits * factor + trials - hits), SUREST)

    def learn(self, kind: int, hit: bool, text: Texture) -> None:
        due = self._hits[kind] / self._trials[kind]
        text.hits = text.hits * FORGET + hit
        text.misses = text.misses * FORGET + (not hit)
        text.due = text.due * FORGET + due
        text.due_misses = text.due_misses * FORGET + 1 - due
        self._hits[kind] += hit
        self._trials[kind] += 1
        if self._trials[kind] > MEMORY:
            self._hits[kind] /= 2
            self._trials[kind] /= 2
