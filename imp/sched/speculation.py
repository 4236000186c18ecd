"""Which guesses about the next tokens are verified, and how many. Belongs to the scheduler.

A guess costs a position of the step and is worth a token if it is right. For each sequence there is a candidate: what
a constraint forces or the runner proposes, and behind it what the lookup finds, as far as the constraint and the limits
let it go on. Of all candidates together so many tokens are taken, the likeliest first, that the step gives the most
tokens for its time; none where that is not some more than without. Nothing here can change a text: a guess is kept only
where it is what the sampler draws at its position, with that position's own random number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from imp.sched.costs import StepCosts
from imp.sched.odds import Odds, Texture, kind
from imp.sched.proposals import MODEL, Proposals
from imp.types import Constraint, Lookup, Proposer, Sequence, Source

MARGIN = 1.05  # guesses must promise so much more than no guesses: neither chances nor costs are known exactly
RETRY = 32  # in one step of so many, costs are taken for lower than they were measured: that may have changed ...
HOPE = 0.8  # ... by this much,
NOVELTY = 0.2  # or by this, where no step of so many positions was measured
PLAIN = 17  # of these, the step without guesses: what the others cost more is learnt from it
RETRY_LONG = 256  # the same of what is too long for a step, which costs others: more rarely, and by HOPE alone
_GROWING = (Source.RUN, Source.NEAR, Source.REPLACEMENT, Source.SHARED)


@dataclass(slots=True)
class Candidate:
    """What may follow a sequence's tokens, and what is known of how well it can be guessed."""

    text: Texture = field(default_factory=Texture)
    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)  # of each token
    predicted: range = range(0)  # those of them that the caller expects


class Speculation:
    """lookup: None: only what is forced or proposed is verified.  most: tokens of a draft.  costs: None: everything
    that there is room for is verified, whatever it costs.  jump_ahead: what a constraint forces is a guess.
    proposer: a draft model.  why: for people, where nothing guesses."""

    def __init__(
        self,
        lookup: Lookup | None = None,
        *,
        most: int = 16,
        costs: StepCosts | None = None,
        jump_ahead: bool = True,
        proposer: Proposer | None = None,
        why: str = "no drafter is configured",
    ) -> None:
        self.lookup, self.most, self.costs, self.jump_ahead = lookup, most, costs, jump_ahead
        self.odds = Odds()
        self.proposals = None if proposer is None else Proposals(proposer, most, costs, self.odds)
        self._why = why
        self._steps = 0
        self._proposing_s = 0.0  # of the step in preparation
        self._price = 0.0  # tokens that a guess costs in it
        self._longest = math.inf  # times that it may take as long as without guesses

    @property
    def mode(self) -> tuple[str, str]:
        """What guesses, and why that: for people."""
        names = [name for name, there in (("ngram", self.lookup), ("draft_model", self.proposals)) if there]
        if self.proposals is not None and self.proposals.proposer.failed:
            return "+".join(names[:-1]) or "off", self.proposals.proposer.failed
        return ("+".join(names), "as far as it pays") if names else ("off", self._why)

    @property
    def off(self) -> str:
        """Why nothing is guessed about outputs; empty: something is."""
        mode, why = self.mode
        return why if mode == "off" else ""

    @property
    def no_predictions(self) -> str:
        """Why Drafting.prediction is no help; empty: it is."""
        return "" if self.lookup is not None else self._why

    def draft(
        self,
        decoding: list[Sequence],
        spare: int,
        room: Callable[[Sequence], int],
        reserve: Callable[[Sequence, int], bool],
        longest: float = math.inf,
    ) -> None:
        """Give these sequences their drafts, the most urgent first: `spare` tokens in all at most.

        A draft that is there already was proposed by the runner. room(seq): tokens that can be appended before the
        one that fills the sequence. reserve(seq, count): take blocks for so many of its positions; False: there are
        none. longest: how many times as long as without guesses the step may take.
        """
        self._steps += 1
        self._proposing_s = 0.0
        spare = max(spare, 0) if longest > 1.0 and not self._learns_without(len(decoding)) else 0
        self._longest = longest
        pays = self._could_pay(len(decoding), spare)
        found = []
        for seq in decoding:
            if seq.drafts is not None:
                seq.drafts.tokens = []
            forced = seq.constraint is not None and spare > 0
            candidate = self._candidate(seq, room, pays) if pays or seq.draft or forced else None
            if candidate is not None:
                found.append((seq, candidate))
        expected = 0.0
        if found:
            depths, expected = self._depths(found, len(decoding), spare)
            for (seq, candidate), depth in zip(found, depths, strict=True):
                seq.draft = candidate.tokens[:depth]
        if self.proposals is not None and not self.proposals.proposer.failed:
            self._ask(self.proposals, decoding, spare, expected, room, reserve)
        self._price = self._price_of(len(decoding), sum([len(seq.draft) for seq in decoding]))

    def _learns_without(self, rows: int) -> bool:
        """Whether so many rows have no guesses in this step, for what it takes to be known."""
        costs = self.costs
        if costs is None or not costs.scale:
            return False
        return self._steps % RETRY == PLAIN or not costs.is_known(rows)

    def _price_of(self, rows: int, guesses: int) -> float:
        """Tokens that all rows lose, by the step taking longer, for each of so many guesses."""
        costs = self.costs
        if costs is None or not guesses:
            return 0.0
        base = costs.of(rows)
        more = costs.of(rows + guesses) - base + (self._proposing_s / costs.scale if costs.scale else 0.0)
        return rows * max(more, 0.0) / base / guesses

    def _ask(
        self,
        proposals: Proposals,
        decoding: list[Sequence],
        spare: int,
        expected: float,
        room: Callable[[Sequence], int],
        reserve: Callable[[Sequence, int], bool],
    ) -> None:
        """Let the draft model guess about those for whom nothing better is known. expected: right guesses of others."""
        free = [seq for seq in decoding if not seq.draft and _may_be_guessed(seq)]
        taken = sum([len(seq.draft) for seq in decoding])
        if not free or spare - taken < len(free):
            return
        for seq in free:
            seq.drafts = seq.drafts or Candidate()
        free = [seq for seq in free if seq.drafts.text.may_lose]
        if not free:
            return
        factors = [seq.drafts.text.factor for seq in free]
        rows = len(decoding)
        limit = math.inf if self.costs is None else self._longest * self.costs.of(rows)
        depth = proposals.depth(factors, spare - taken, rows + taken, rows + expected, MARGIN, limit)
        if not depth:
            return
        free = [seq for seq in free if reserve(seq, 1 + min(depth, room(seq)))]
        self._proposing_s = proposals.ask(free, depth, room)
        for seq in free:
            seq.drafts.tokens, seq.drafts.kinds = seq.draft.copy(), [MODEL] * len(seq.draft)
            seq.drafts.predicted = range(0)

    def verified(self, seq: Sequence, tokens: list[int], accepted: int) -> None:
        """So many of its draft's tokens were right; `tokens` are all that were drawn."""
        drafted, candidate = len(seq.draft), seq.drafts
        seq.guided = min(seq.guided, len(seq.tokens) + accepted)  # what was computed behind these is another text's
        if drafted:
            seq.drafted += drafted
            seq.accepted += accepted
            seq.verify_steps += 1
            seq.verified += len(tokens)
        if candidate is None:
            return
        candidate.text.settle(accepted, drafted * self._price)
        if not candidate.tokens:
            return
        expected = candidate.predicted
        seq.predicted += len(range(expected.start, min(expected.stop, drafted)))
        seq.predicted_accepted += len(range(expected.start, min(expected.stop, accepted)))
        learn, text = self.odds.learn, candidate.text
        for guess, token, of_kind in zip(candidate.tokens, tokens, candidate.kinds, strict=False):
            learn(of_kind, guess == token, text)
            if guess != token:
                break
        candidate.tokens = []

    def took(self, positions: int, seconds: float) -> None:
        """The duration of a step of decode rows alone, its preparation included."""
        if self.costs is not None:
            self.costs.learn(positions, seconds - self._proposing_s)

    def ended(self, seq: Sequence) -> None:
        if self.lookup is not None:
            self.lookup.ended(seq)
        seq.drafts = None

    def forget(self) -> None:
        """What is kept of texts that have ended."""
        if self.lookup is not None:
            self.lookup.forget()

    def _could_pay(self, rows: int, spare: int) -> bool:
        """Whether guesses that are all right would be worth their cost."""
        costs = self.costs
        if self.lookup is None or not spare or not rows:
            return False
        if costs is None:
            return True
        ahead = min(self.most, max(spare // rows, 1))
        more = min(spare, rows * ahead)
        return any((rows + m) / costs.of(rows + m) > MARGIN * rows / costs.of(rows) for m in (1, more // 2, more) if m)

    def _candidate(self, seq: Sequence, room: Callable[[Sequence], int], looks: bool) -> Candidate | None:
        """looks: the lookup is asked as well. None where nothing can be said, or nothing may be: with mirostat
        every draw depends on the one before it."""
        request, constraint = seq.request, seq.constraint
        proposed, seq.draft = seq.draft, []
        if request.sampling.mirostat or (constraint is not None and not constraint.ready()):
            return None
        source = Source.RUNNER
        if not proposed and constraint is not None and self.jump_ahead:
            proposed, source = constraint.forced(), Source.FORCED
        candidate = seq.drafts
        if candidate is None:
            candidate = seq.drafts = Candidate()
        most = room(seq)
        tokens = proposed[:most]
        kinds = [kind(source, 0)] * len(tokens)
        candidate.predicted = range(0)
        if looks and self.lookup is not None and request.drafting.wanted and len(tokens) < min(most, self.most):
            guess = self.lookup.guess(seq, tokens, min(most, self.most) - len(tokens))
            if guess is not None:
                start, grows = len(tokens), guess.source in _GROWING
                candidate.predicted = range(start, start + guess.expected)
                kinds += [kind(guess.source, guess.matched + i * grows) for i in range(len(guess.tokens))]
                tokens = tokens + guess.tokens
        if constraint is not None:
            del tokens[_allowed(constraint, tokens) :]
        candidate.tokens, candidate.kinds = _until_stop(tokens, request.limits.stop_ids), kinds
        return candidate if candidate.tokens else None

    def _depths(
        self, found: list[tuple[Sequence, Candidate]], rows: int, spare: int
    ) -> tuple[list[int], float]:
        """How many tokens of each candidate the step should verify, and how many of all these are likely right."""
        if self.costs is None:
            depths = []
            for _, candidate in found:
                depths.append(min(len(candidate.tokens), spare))
                spare -= depths[-1]
            return depths, 0.0
        chance, chances = self.odds.chance, []
        for i, (_, candidate) in enumerate(found):
            if not candidate.text.may_lose:
                continue
            factor, value = candidate.text.factor, 1.0
            for of_kind in candidate.kinds[: len(candidate.tokens)]:
                value *= chance(of_kind, factor)
                chances.append((value, i))
        chances.sort(key=_value, reverse=True)  # within a candidate they fall, and equal ones keep their order
        depths = [0] * len(found)
        taken = chances[: self._best(chances[:spare], rows)]
        for _, i in taken:
            depths[i] += 1
        return depths, sum([value for value, _ in taken])

    def _best(self, chances: list[tuple[float, int]], rows: int) -> int:
        """The number of guesses, likeliest first, with which a step gives most tokens for its time."""
        costs = self.costs
        assert costs is not None
        hopes = self._steps % RETRY == 0
        base = costs.of(rows)
        room = (self._longest - 1.0) * base / (HOPE if self._steps % RETRY_LONG == 0 else 1.0)
        best, most, tokens = 0, MARGIN * rows / base, float(rows)
        for count, (value, _) in enumerate(chances, 1):
            tokens += value
            more = costs.of(rows + count) - base
            fits = more <= room
            if hopes:
                more *= HOPE if costs.is_known(rows + count) else NOVELTY
            rate = tokens / (base + more)
            if fits and rate > most:
                best, most = count, rate
        return best


def _may_be_guessed(seq: Sequence) -> bool:
    held = seq.constraint is not None and not seq.constraint.ready()
    return seq.request.drafting.wanted and not seq.request.sampling.mirostat and not held


def _value(chance: tuple[float, int]) -> float:
    return chance[0]


def _allowed(constraint: Constraint, tokens: list[int]) -> int:
    """How many of the tokens the constraint lets through, one after the other, and knows soon what may come behind
    them. It stands where it stood."""
    count, is_ready = 0, True
    while is_ready and count < len(tokens) and not constraint.done and constraint.accept(tokens[count]):
        count += 1
        is_ready = constraint.ready()
    constraint.rollback(count)
    return count if is_ready else count - 1


def _until_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """Up to the first stop token: nothing comes behind it."""
    if stop_ids.isdisjoint(tokens):
        return tokens
    return tokens[: next(i for i, token in enumerate(tokens) if token in stop_ids) + 1]
