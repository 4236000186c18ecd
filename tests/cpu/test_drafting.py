"""A draft model beside a model, both tiny: the output is what it would be, and a twin's guesses are all right.

A twin has the same weights, so wherever its cache holds what it should, it draws what the model will. A wrong block, a
stale position or a token too few shows as a guess that was wrong.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.drafting import FAILED, DraftModel
from imp.model.ops import StepLimits
from imp.model.plan import MaskBits
from imp.model.runner import ModelRunner
from imp.sched.blocks import BlockPool
from imp.sched.costs import StepCosts
from imp.sched.proposals import SHORTEST
from imp.sched.scheduler import Scheduler
from imp.sched.speculation import Speculation
from imp.types import Drafting, Limits, Request, Sampling
from tests.model import adapters, tiny
from tests.model.test_arch import checkpoint
from tests.model.test_lora import read
from tests.toys import AllowList, ToyDecoder, Transcript

LIMITS = StepLimits(tokens=64, rows=8, logit_rows=64, context=256, blocks=64)
VOCAB = tiny.BASE["vocab_size"]
FREE = Limits(40)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "warm": Sampling(temperature=1.0, seed=3),
    "filters": Sampling(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, typical_p=0.98, seed=4),
    "penalties": Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3, seed=5),
    "history": Sampling(temperature=1.0, dry_multiplier=0.8, xtc_probability=0.5, bias=((7, 3.0),), logprobs=2, seed=6),
}


class Pair:
    """A model and a draft model behind the real scheduler; `backends` are theirs."""

    def __init__(self, folder, draft="llama", context=256):
        self.target, self.small = (CpuBackend(1, folder) for _ in range(2))
        self.target.load(arch.build(checkpoint("llama")), LIMITS)
        self.small.load(arch.build(checkpoint(draft)), LIMITS)
        self.context = context

    def run(self, requests, *, guesses=True, most=6, costs=None, blocks=64, positions=64, stagger=0):
        bits = MaskBits.in_order(VOCAB)
        self.drafting = DraftModel(self.small, VOCAB, LIMITS, self.context, bits)
        self.speculation = Speculation(most=most, costs=costs, proposer=self.drafting if guesses else None)
        follow = [self.drafting.follow] if guesses else []
        runner = ModelRunner(self.target, VOCAB, 16, bits, *follow)
        self.sched = Scheduler(
            BlockPool(blocks, 16),
            context=LIMITS.context,
            max_rows=8,
            max_tokens=positions,
            max_logit_rows=LIMITS.logit_rows,
            new_decoder=ToyDecoder,
            speculation=self.speculation,
        )
        transcript, waiting, now = Transcript(), list(requests), 0.0
        while True:
            for _ in range(1 if stagger else len(waiting)):
                if waiting and (not stagger or now % stagger == 0):
                    transcript.add(self.sched.submit(waiting.pop(0), now))
            now += 1.0
            batch = self.sched.plan(now)
            if batch is None:
                if not waiting:
                    return transcript
                continue
            transcript.add(self.sched.apply(batch, runner.step(batch), now))
            self.sched.check()

    def close(self):
        self.target.close()
        self.small.close()


@pytest.fixture(scope="module")
def twins(kernel_folder):
    pair = Pair(kernel_folder)
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def strangers(kernel_folder):
    pair = Pair(kernel_folder, "llama-linear")
    yield pair
    pair.close()


def request(id, sampling=SAMPLINGS["greedy"], length=30, limits=FREE, **fields):
    rng = random.Random(id)
    return Request(id, tuple(rng.randrange(VOCAB) for _ in range(length)), sampling, limits, **fields)


def same(pair, requests, **how):
    """What guesses gave is what comes without; the transcript."""
    plain = {key: out.essence for key, out in pair.run(requests, guesses=False).outputs.items()}
    found = pair.run(requests, **how)
    assert {key: out.essence for key, out in found.outputs.items()} == plain
    assert not pair.drafting.failed
    return found


def usage(transcript):
    return [out.finished.usage for out in transcript.outputs.values()]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_twins_guesses_are_all_right_and_change_nothing(twins, sampling):
    (used,) = usage(same(twins, [request("a", sampling)]))
    assert used.drafted == used.accepted > 25 and used.verify_steps == 6


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_strangers_guesses_are_often_wrong_and_change_nothing(strangers, sampling):
    (used,) = usage(same(strangers, [request("a", sampling)]))
    assert used.drafted > used.accepted
    assert used.generated == 40


def test_guesses_stay_right_in_a_batch_whose_prompts_come_in_pieces(twins):
    requests = [request(f"r{i}", list(SAMPLINGS.values())[i % 5], 20 + 9 * i) for i in range(8)]
    for used in usage(same(twins, requests, positions=24, stagger=3)):
        assert used.drafted == used.accepted
    assert twins.sched.snapshot().accepted > 100


def test_guesses_stay_right_after_preemptions_and_with_shared_prompts(twins):
    """Blocks are taken away, given to others, shared and copied; 14 of them are too few for all, and the
    later ones are the more urgent."""
    shared = tuple(random.Random("shared").randrange(VOCAB) for _ in range(40))
    tails = [request(f"r{i}", SAMPLINGS["warm"], 3 + 5 * i) for i in range(7)]
    requests = [replace(each, prompt=shared + each.prompt, n=1 + i % 2, priority=-i) for i, each in enumerate(tails)]
    found = same(twins, requests, blocks=14, stagger=2)
    stats = twins.sched.snapshot()
    assert stats.preemptions and stats.cache_hits
    drafted, accepted = (sum(getattr(used, name) for used in usage(found)) for name in ("drafted", "accepted"))
    assert drafted > 100 and accepted / drafted > 0.95, "what a resting draft model missed may cost a guess, no more"


def test_guesses_keep_to_constraints_and_ends(twins):
    rule = AllowList((frozenset(range(60)), frozenset({5}), frozenset(range(100, 160))), 31)
    requests = [
        request("constrained", SAMPLINGS["warm"], constraint=rule),
        request("stop", SAMPLINGS["warm"], limits=Limits(40, stop_ids=frozenset(range(20)))),
        request("short", limits=Limits(2)),
        request("near the end", length=250, limits=Limits(40)),
        request("none", drafting=Drafting(wanted=False)),
        request("mirostat", Sampling(temperature=1.0, mirostat=2, seed=1)),
    ]
    found = same(twins, requests)
    for id in ("none", "mirostat"):
        assert found[id].finished.usage.drafted == 0
    for used in usage(found):
        assert used.drafted == used.accepted


def test_texts_longer_than_the_draft_models_context_are_left_alone(kernel_folder, twins):
    twins.context = 48
    try:
        found = same(twins, [request("long", length=60), request("grows", length=30)])
    finally:
        twins.context = 256
    assert found["long"].finished.usage.drafted == 0
    grown = found["grows"].finished.usage
    assert 10 <= grown.drafted == grown.accepted < 24


@pytest.mark.parametrize("at", [0, 3])
def test_a_draft_model_that_fails_is_given_up_and_the_output_goes_on(twins, monkeypatch, at, caplog):
    calls, run = [], twins.small.run

    def fail(inputs):
        calls.append(1)
        if len(calls) > at:
            raise RuntimeError("out of order")
        return run(inputs)

    plain = twins.run([request("a")], guesses=False)["a"].essence
    monkeypatch.setattr(twins.small, "run", fail)
    assert twins.run([request("a")])["a"].essence == plain
    assert len(calls) == at + 1 and twins.speculation.mode == ("off", FAILED)
    assert "not used any more" in caplog.text


def test_a_draft_model_that_does_not_pay_is_asked_more_and_more_rarely(twins):
    """Every step takes the same time here: the draft model's do, too, so that its guesses are worth nothing."""
    costs = StepCosts()
    costs.learn(1, 1e-9)  # beside it the draft model's steps, which are measured, take for ever
    asked = []
    propose = DraftModel.propose
    try:
        DraftModel.propose = lambda self, wanted: (asked.append(twins.sched.snapshot().steps), propose(self, wanted))[1]
        same(twins, [request("a", length=4, limits=Limits(240))], costs=costs)
    finally:
        DraftModel.propose = propose
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert 2 <= len(asked) < 6 and gaps == sorted(gaps) and gaps[0] > SHORTEST, asked


def test_adapters_keep_to_their_requests_whatever_the_schedule(twins, tmp_path):
    """Five adapters and none over one prompt, guessed at by a model that has no adapters, with prompts in pieces,
    preemption, shared blocks, n > 1 and constraints: each says what it says alone, and no two say the same."""
    slots = [twins.target.add_adapter(read(tmp_path, "llama", name)) for name in adapters.ADAPTERS]
    shared = tuple(random.Random("shared").randrange(VOCAB) for _ in range(40))
    rule = AllowList((frozenset(range(60)), frozenset(range(100, 160))), 31)
    requests = [
        request(
            f"r{i}",
            list(SAMPLINGS.values())[i % 3],
            adapter=owner,
            salt=b"" if owner is None else bytes([owner]),
            n=1 + i % 2,
            priority=-i,
            constraint=rule if i % 4 == 3 else None,
        )
        for i, owner in enumerate([None, *slots] * 2)
    ]
    requests = [replace(each, prompt=shared) for each in requests]
    alone = [twins.run([each], guesses=False)[each.id].essence for each in requests]
    for how in ({"blocks": 20, "stagger": 2, "positions": 24}, {"blocks": 64}):
        found = twins.run(requests, **how)
        assert [found[each.id].essence for each in requests] == alone
        stats = twins.sched.snapshot()
        assert stats.cache_hits and stats.accepted > 50
        assert stats.preemptions or how["blocks"] == 64
    greedy = [each.id for each in requests if each.sampling.temperature == 0]
    assert len({tuple(found[id].tokens) for id in greedy}) == len(greedy)
    for slot in slots:
        twins.target.drop_adapter(slot)
