"""How many guesses are verified: by what they cost, by how likely they are, and never at much loss."""

from __future__ import annotations

import math
import random

import pytest

from imp.sched.costs import StepCosts
from imp.sched.odds import CREDIT, DEBT, DEEPEST, Odds, Texture, kind
from imp.sched.speculation import Speculation
from imp.types import Drafting, Guess, Limits, Request, Sampling, Sequence, Source

FREE = 1000


class Oracle:
    """Knows what comes next with a probability, and says how much it says to have matched."""

    def __init__(self, right: float, matched: int = 6, seed: int = 1):
        self.right, self.matched, self.rng = right, matched, random.Random(seed)
        self.asked = 0

    def guess(self, seq, ahead, most):
        self.asked += 1
        at = len(seq.tokens) + len(ahead)
        tokens = [at + i if self.rng.random() < self.right else -1 for i in range(most)]
        return Guess(tokens, Source.RUN, self.matched)

    def ended(self, seq): ...
    def forget(self): ...


def sequence(id="r", **fields):
    """A text whose tokens are their own positions."""
    request = Request(id, tuple(range(10)), limits=Limits(10_000), **fields)
    return Sequence(request, 0, 0, list(request.prompt), blocks=[0])


def generate(speculation, seqs, tokens, step_time, spare=64, longest=math.inf):
    """(seconds, positions, steps) that so many tokens of each take."""
    seconds, positions, steps = 0.0, 0, 0
    while min(len(seq.tokens) for seq in seqs) < 10 + tokens:
        speculation.draft(seqs, spare, lambda seq: FREE, lambda seq, count: True, longest)
        count = len(seqs) + sum(len(seq.draft) for seq in seqs)
        assert count <= len(seqs) + spare
        for seq in seqs:
            accepted = 0
            while accepted < len(seq.draft) and seq.draft[accepted] == len(seq.tokens) + accepted:
                accepted += 1
            drawn = [len(seq.tokens) + i for i in range(accepted + 1)]
            speculation.verified(seq, drawn, accepted)
            seq.tokens += drawn
            seq.draft = []
        took = step_time(count)
        speculation.took(count, took)
        seconds, positions, steps = seconds + took, positions + count, steps + 1
    return seconds, positions, steps


def linear(slope):
    return lambda positions: 0.01 * (1 + slope * (positions - 1))


@pytest.mark.parametrize("slope", [0.02, 0.25, 0.5])
@pytest.mark.parametrize("right", [0.0, 0.05, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_guessing_is_never_much_slower_and_gains_what_there_is(slope, right, rows):
    """Beside every depth that could be held all the time, none included."""
    speculation = Speculation(Oracle(right), costs=StepCosts())
    seqs = [sequence(f"r{i}") for i in range(rows)]
    took, _, _ = generate(speculation, seqs, 400, linear(slope))

    def per_token(depth):
        """Seconds of a token of each row where every draft has this depth."""
        given = sum(right**i for i in range(depth + 1))
        return linear(slope)(rows * (1 + depth)) / given

    plain, best = per_token(0), min(per_token(depth) for depth in range(17))
    produced = sum(len(seq.tokens) - 10 for seq in seqs) / rows
    assert took <= produced * plain * 1.03
    assert took <= produced * best * 1.25 or took <= produced * plain * 0.55


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("longest", [1.0, 1.5, 2.0])
def test_guesses_however_good_make_no_step_longer_than_it_may_be(rows, longest):
    """Once it is known what positions cost, and but for the one step of many that tries whether they cost less now."""
    speculation = Speculation(Oracle(1.0, 32), costs=StepCosts())
    seqs = [sequence(f"r{i}") for i in range(rows)]
    step_time, taken = linear(0.25), []
    generate(speculation, seqs, 2000, lambda count: taken.append(step_time(count)) or taken[-1], longest=longest)
    later = sorted(taken[len(taken) // 2 :])
    alone = step_time(rows)
    assert later[int(0.9 * len(later))] <= longest * alone * (1 + 1e-9)
    if rows < 16 and longest > 1.0:  # of so many, the machine is full without guesses
        assert later[len(later) // 2] > 0.8 * longest * alone


def test_what_is_wrong_about_chances_costs_a_text_little():
    """Guesses that match long runs and are never right: what all texts taught is wrong about this one."""
    speculation = Speculation(Oracle(1.0, 32), costs=StepCosts())
    for i in range(3):
        generate(speculation, [sequence(f"good {i}")], 200, linear(0.25))
    speculation.lookup = Oracle(0.0, 32)
    took, positions, steps = generate(speculation, [sequence("bad")], 300, linear(0.25))
    assert steps == 300
    assert took < 300 * 0.01 * 1.02 and positions > 300


def test_a_text_that_begins_to_repeat_itself_is_guessed_within_a_few_tokens():
    speculation = Speculation(Oracle(0.0), costs=StepCosts())
    seq = sequence()
    generate(speculation, [seq], 300, linear(0.25))
    speculation.lookup = Oracle(1.0)
    _, _, steps = generate(speculation, [seq], 400, linear(0.25))  # a hundred tokens more
    assert steps < 55


def test_guesses_that_cannot_pay_are_not_even_looked_for():
    lookup = Oracle(1.0)
    speculation = Speculation(lookup, costs=StepCosts(1.0))
    seqs = [sequence(f"r{i}") for i in range(8)]
    generate(speculation, seqs, 20, linear(1.0))
    assert not lookup.asked
    speculation = Speculation(lookup, costs=StepCosts(0.1))
    generate(speculation, seqs, 40, linear(0.1), spare=0)
    assert not lookup.asked, "there are no positions for guesses"


def test_costs_are_relearnt_when_the_machine_changes():
    """What other programs take from it makes all steps slower; then positions become dear, then cheap again."""
    speculation = Speculation(Oracle(0.95, 32), costs=StepCosts())
    seq = sequence()
    generate(speculation, [seq], 300, linear(0.1))
    slow, dear = lambda n: 3 * linear(0.1)(n), linear(0.8)
    for step_time, most in ((slow, 0.5), (dear, 1.1), (linear(0.1), 0.6)):
        target = len(seq.tokens) - 10 + 300
        began = len(seq.tokens)
        took, _, _ = generate(speculation, [seq], target, step_time)
        assert took <= (len(seq.tokens) - began) * step_time(1) * most, step_time(2)


def test_positions_between_measured_ones_are_estimated():
    costs = StepCosts(0.5)
    assert costs.of(1) == 1 and costs.of(5) == 3 and costs.of(100) == 50.5
    for _ in range(200):
        costs.learn(1, 0.01)
        costs.learn(4, 0.016)
    assert costs.of(4) == pytest.approx(1.6, rel=0.02)
    assert costs.of(3) == pytest.approx(2.0) and costs.of(8) == pytest.approx(1.6 * 4.5 / 2.5, rel=0.02)
    costs.learn(4, 0.0)
    costs.learn(4, -1.0)
    assert costs.of(4) == pytest.approx(1.6, rel=0.02), "a clock that stands still says nothing"
    for _ in range(20):
        costs.learn(4, 0.5)
    for _ in range(200):
        costs.learn(1, 0.01)
        costs.learn(4, 0.016)
    assert costs.of(4) == pytest.approx(1.6, rel=0.1)


def test_chances_follow_what_is_seen():
    odds, text = Odds(), Texture()
    one, other = kind(Source.RUN, 3), kind(Source.RUN, 32)
    assert odds.chance(one, 1.0) < odds.chance(other, 1.0)
    rng = random.Random(3)
    for _ in range(2000):
        odds.learn(one, rng.random() < 0.8, Texture())
    assert odds.chance(one, 1.0) == pytest.approx(0.8, abs=0.1)
    for _ in range(100):
        odds.learn(one, False, text)
    assert text.factor < 0.2 and odds.chance(other, text.factor) < odds.chance(other, 1.0)
    for i in range(33):
        assert kind(Source.RUN, i) <= kind(Source.RUN, i + 1) == kind(Source.RUN, min(i + 1, 32))


def test_balances_are_bounded_and_lapse():
    text = Texture()
    text.settle(0, 1e9)
    assert text.balance == DEEPEST and not text.may_lose
    for _ in range(100):
        text.settle(0, 0.0)
    assert DEBT < text.balance < 0 and text.may_lose
    text.settle(10**6, 0.0)
    assert text.balance == CREDIT


@pytest.mark.parametrize(
    "fields",
    [{"drafting": Drafting(wanted=False)}, {"sampling": Sampling(mirostat=2)}, {"sampling": Sampling(mirostat=1)}],
)
def test_requests_that_want_no_guesses_get_none(fields):
    speculation = Speculation(Oracle(1.0))
    seqs = [sequence("a"), sequence("b", **fields)]
    speculation.draft(seqs, 8, lambda seq: FREE, lambda seq, count: True)
    assert len(seqs[0].draft) == 8 and not seqs[1].draft


def test_drafts_end_with_a_stop_token_and_before_the_sequence_is_full():
    request = Request("r", tuple(range(10)), limits=Limits(100, stop_ids=frozenset({13})))
    seq = Sequence(request, 0, 0, list(request.prompt), blocks=[0])
    speculation = Speculation(Oracle(1.0))
    speculation.draft([seq], 64, lambda seq: FREE, lambda seq, count: True)
    assert seq.draft == [10, 11, 12, 13]
    seq.draft = []
    speculation.draft([seq], 64, lambda seq: 2, lambda seq, count: True)
    assert seq.draft == [10, 11]


def test_what_the_runner_proposed_is_judged_too():
    seq = sequence()
    seq.draft = [10, 11, 12]
    speculation = Speculation(costs=StepCosts(0.01))
    speculation.draft([seq], 2, lambda seq: FREE, lambda seq, count: True)
    assert seq.draft == [10, 11]
    speculation.verified(seq, [10, 99], 1)
    assert (seq.drafted, seq.accepted, seq.verify_steps, seq.verified) == (2, 1, 1, 2)
