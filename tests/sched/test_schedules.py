"""Whatever the schedule, every sequence says what it would have said alone, and every block comes back.

Each seed makes up a pool, limits and some twenty requests that share prefixes, and mixes chunked prompts, prefix
and beginnings that are copied, preemption, priorities, owners, n > 1, aborts one by one and in storms, guesses right
and wrong, stop strings, stop tokens, pins, prompt logprobs, constraints, salts, failing steps, and steps that take
time. All invariants are checked after every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.costs import StepCosts
from imp.sched.pace import Pace
from imp.sched.speculation import Speculation
from imp.sched.tiers import Below
from imp.speculate.lookup import SuffixLookup
from imp.types import Batch, Drafting, Limits, Reason, Request, Sampling
from tests.toys import EOS, LANGUAGE, AllowList, Stage, ToyRunner, reference

SEEDS, CHUNK = 520, 40
MakeBelow = Callable[[BlockPool, ToyRunner], Below]


def make_drafter(rng: random.Random, longest: int):
    """Guesses of random length: mostly what the model will say, sometimes not."""

    def propose(seq, ahead):
        guesses = ahead(rng.randrange(longest + 1))
        return [g if rng.random() < 0.8 else rng.choice(LANGUAGE) for g in guesses]

    return propose


def make_speculation(rng: random.Random, folder: Path) -> Speculation:
    """From nothing but jump-ahead to a lookup whose guesses have to pay; this machine's steps take no time."""
    if rng.random() < 0.4:
        return Speculation(jump_ahead=rng.random() < 0.8)
    lookup = SuffixLookup(folder, rng.randrange(1, 4), rng.choice([0, 2048, 65536]))
    return Speculation(lookup, most=rng.randrange(1, 17), costs=StepCosts(0.1) if rng.random() < 0.5 else None)


def expect(rng: random.Random, request: Request) -> Request:
    """The same with what its caller may say of its output: nothing, or much that is right."""
    said = reference(request).tokens if rng.random() < 0.5 else []
    prediction = [t if rng.random() < 0.9 else rng.choice(LANGUAGE) for t in said]
    drafting = Drafting(rng.random() < 0.9, tuple(prediction), shares=rng.random() < 0.7)
    return replace(request, drafting=drafting, owner=rng.choice(["", "key"]))


def make_constraint(rng: random.Random) -> AllowList:
    sets = tuple(frozenset(rng.sample(LANGUAGE, rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4)))
    return AllowList(sets, rng.randrange(1, 25))


def make_request(rng: random.Random, i: int, prefixes: list[tuple[int, ...]], letters: int, longest: int) -> Request:
    prompt = (rng.choice(prefixes) + tuple(rng.randrange(letters) for _ in range(rng.randrange(1, 20))))[:longest]
    limits = Limits(
        max_tokens=rng.choice([0, 1, 5, 17, 30, 1_000_000_000] if rng.random() < 0.2 else [3, 12, 30]),
        min_tokens=rng.choice([0, 0, 0, 4]),
        stop_ids=frozenset(rng.sample(LANGUAGE, rng.choice([0, 1])) + rng.choice([[EOS], [EOS], [EOS], []])),
        stop_strings=tuple(rng.sample([" STOPME", "OPa", "é", "one two", "b", "ME th"], rng.choice([0, 0, 1, 2]))),
        include_stop=rng.random() < 0.3,
    )
    if limits.max_tokens > 1000 and EOS not in limits.stop_ids:
        limits = Limits(12)
    return Request(
        f"r{i}",
        prompt,
        Sampling(
            seed=rng.randrange(5),
            logprobs=rng.choice([None, None, 0]),
            prompt_logprobs=rng.choice([None, None, None, None, 0]),
        ),
        limits,
        n=rng.choice([1, 1, 1, 2, 3]),
        priority=rng.choice([-1, 0, 0, 1]),
        owner=rng.choice(["", "", "a", "b"]),
        constraint=make_constraint(rng) if rng.random() < 0.2 else None,
        salt=rng.choice([b"", b"", b"tenant"]),
        pin=rng.randrange(1, len(prompt) + 1) if rng.random() < 0.2 else 0,
    )


def play(
    seed: int, folder: Path, below: MakeBelow | None = None, grows: bool = False
) -> tuple[Stage, dict[str, Request], set[str]]:
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4, 8])
    blocks = rng.choice([rng.randrange(60 // size, 120 // size), rng.randrange(90 // size, 400 // size)])
    context = rng.choice([60, 80, 1_000_000])
    max_rows = rng.randrange(2, 11)
    start = 0
    if grows:
        context = min(context, 80)
        start, blocks = -(-context // size), -(-context // size) + blocks
    seconds = rng.choice([None, lambda batch: 0.01 + 0.001 * sum(row.count for row in batch.rows)])
    stage = Stage(
        blocks,
        size,
        runner=ToyRunner(blocks, size, make_drafter(rng, rng.choice([1, 3, 6])) if rng.random() < 0.5 else None),
        context=context,
        max_rows=max_rows,
        max_tokens=max_rows + rng.randrange(0, 40),
        max_logit_rows=max_rows + rng.randrange(0, 20),
        speculation=make_speculation(rng, folder),
        pin_budget=rng.choice([0, blocks // 4, blocks]),
        pace=Pace(rng.choice([None, 0.001, 0.03, 10.0])),
        takes=seconds,
        aside=rng.choice([None, Aside(rng.randrange(1, 40), rng.randrange(1, 5))]),
        below=below,
        start=start,
        grant=lambda wanted: rng.randrange(wanted + 1),
    )
    stage.runner.piece = lambda: rng.randrange(1, 12)
    for _ in range(rng.choice([0, 50])):  # experience tells that outputs are short
        stage.sched.places.lengths.add(rng.randrange(1, 4))
    letters = rng.choice([2, 50])  # with two letters, equal blocks turn up in different contexts
    prefixes = [tuple(rng.randrange(letters) for _ in range(rng.randrange(30))) for _ in range(3)]
    requests: dict[str, Request] = {}
    aborted: set[str] = set()
    if rng.random() < 0.3:

        def fails(batch: Batch) -> bool:
            return rng.random() < 0.02

        stage.runner.fails = fails
    for i in range(rng.randrange(8, 22)):
        request = expect(rng, make_request(rng, i, prefixes, letters, 49))
        requests[request.id] = request
        stage.submit(request)
        stage.sched.check()
        for _ in range(rng.randrange(5)):
            stage.step()
        if rng.random() < 0.1:
            victim = rng.choice(list(requests))
            aborted.add(victim)
            stage.abort(victim)
        if rng.random() < 0.03:
            for victim in rng.sample(list(requests), len(requests) // 2 + 1):  # many leave at once
                aborted.add(victim)
                stage.abort(victim)
        if rng.random() < 0.05:
            stage.sched.reset_prefix_cache()
            stage.sched.check()
    stage.run()
    return stage, requests, aborted


def judge(stage: Stage, requests: dict[str, Request], aborted: set[str]) -> None:
    sched = stage.sched
    everything = sched.pool.count * sched.pool.size
    for request in requests.values():
        if request.id in stage.transcript.failed:
            code = stage.transcript.failed[request.id].code
            floored = len(request.prompt) + 1 > everything
            assert (code == "kv_pool_floored" and floored) or (code == "engine_step_failed" and stage.failures)
            continue
        for index in range(request.n):
            out = stage.transcript[request.id, index]
            assert out.finished is not None
            wanted = reference(request, index, sched.context)
            usage = out.finished.usage
            if out.finished.reason is Reason.ABORT:
                assert request.id in aborted
                assert wanted.text.startswith(out.text) and wanted.tokens[: len(out.tokens)] == out.tokens
            elif out.essence != wanted.essence:
                # the one excuse: memory was full of this sequence
                length = len(request.prompt) + usage.generated
                assert out.finished.reason is Reason.LENGTH and length >= everything
                assert out.essence == reference(request, index, length).essence
            assert usage.cached < usage.prompt and usage.predicted_accepted <= usage.accepted <= usage.drafted
            assert usage.predicted <= usage.drafted and usage.verify_steps <= usage.verified


@pytest.mark.parametrize("first", range(4000, 4080, CHUNK))
def test_a_pool_that_grows_gives_the_same_outputs(first, kernel_folder):
    grown = evictions = 0
    for seed in range(first, first + CHUNK):
        try:
            stage, requests, aborted = play(seed, kernel_folder, grows=True)
            judge(stage, requests, aborted)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        pool = stage.sched.pool
        assert len(pool.refs) == len(pool.content) == pool.count <= pool.most
        grown += pool.count > -(-stage.sched.context // pool.size)
        evictions += pool.evictions
    assert grown > CHUNK // 2 and evictions


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_any_schedule_gives_the_reference_output(first, kernel_folder):
    seen = dict.fromkeys(
        ("preemptions", "cache_hits", "copies", "evictions", "mixed_steps", "accepted", "miss_steps"), 0
    )
    seen |= dict.fromkeys(("aborted", "failed"), 0)
    predicted, aside = 0, 0
    for seed in range(first, first + CHUNK):
        try:
            stage, requests, aborted = play(seed, kernel_folder)
            judge(stage, requests, aborted)
            while stage.sched.pool.unpin_oldest():
                pass
            stats = stage.sched.snapshot()
            assert (stats.waiting, stats.running, stats.blocks_used, stats.blocks_live) == (0, 0, 0, 0)
            assert stats.blocks_free + stats.blocks_reclaimable == stats.blocks_total
            assert stage.sched.reset_prefix_cache() and stage.sched.snapshot().blocks_free == stats.blocks_total
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        for name in seen:
            seen[name] += getattr(stats, name)
        aside += sum(map(bool, stage.aside))
        ends = [out.finished for out in stage.transcript.outputs.values() if out.finished]
        predicted += sum(end.usage.predicted_accepted for end in ends)
    assert predicted and aside and all(seen.values()), f"these schedules were too easy: {seen}"
