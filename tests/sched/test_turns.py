"""Whose turn it is: classes with ageing, fair shares of owners, who has to go for whom, and how long outputs are."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from imp.sched.lengths import SHARE, UNKNOWN, WINDOW, Lengths
from imp.sched.scheduler import YIELDS
from imp.sched.turns import AGE, REMEMBERED, Turns
from imp.types import Limits, Request
from tests.sched.test_scheduler import first_row, free, prompt, unsuspecting
from tests.toys import Stage, reference


def exact(stage: Stage, *requests: Request) -> bool:
    return all(stage.transcript[request.id].essence == reference(request).essence for request in requests)


# -- classes ----------------------------------------------------------------------------------------


def test_a_crowd_of_unimportant_requests_does_not_hold_up_an_important_one():
    stage = Stage(blocks=400, max_rows=4, max_tokens=64)
    crowd = [Request(f"low{i}", prompt(20, i), limits=Limits(20), priority=5) for i in range(80)]
    stage.submit(*crowd)
    for i in range(8):
        for _ in range(7):
            stage.step()
        crowd.append(Request(f"high{i}", prompt(30, 1000 + i), limits=Limits(3)))
        stage.submit(crowd[-1])
        stage.step()
        assert stage.batches[-1] == [(f"high{i}", 0, 30)]  # the very next step has nothing else to do
    stage.run()
    assert exact(stage, *crowd) and free(stage)


@pytest.mark.parametrize("priority", [0, 1])
def test_rows_yield_to_a_more_urgent_prompt_but_not_for_ever(priority):
    stage = Stage(blocks=800, max_rows=4, max_tokens=16)
    low = Request("low", prompt(8), limits=Limits(120), priority=1)
    stage.submit(low)
    stage.step()
    stage.step()
    long = Request("long", prompt(600, 1), limits=Limits(1), priority=priority)
    stage.submit(long)
    before = len(stage.batches)
    while not stage.transcript["low"].finished:
        stage.step()
    steps = stage.batches[before : before + 24]
    has_low = [any(name == "low" for name, _, _ in batch) for batch in steps]
    assert has_low == [False] * YIELDS + [True, False] * 10 + [True] if priority == 0 else all(has_low)
    stage.run()
    assert exact(stage, low, long)


def test_prompts_yield_as_rows_do():
    stage = Stage(blocks=800, max_rows=4, max_tokens=16)
    stage.submit(Request("low", prompt(400), limits=Limits(1), priority=1))
    stage.step()
    stage.submit(Request("high", prompt(20, 1), limits=Limits(1)))
    stage.step()
    stage.step()
    assert stage.batches[1:3] == [[("high", 0, 16)], [("high", 16, 4)]]


def test_who_has_waited_long_enough_does_not_yield_to_newcomers():
    stage = Stage(blocks=800, max_rows=2, max_tokens=16)
    stage.submit(Request("old", prompt(4), limits=Limits(2000), priority=1))
    for i in range(int(AGE) + 2):
        stage.submit(Request(f"new{i}", prompt(2, i), limits=Limits(1)))
        stage.step()
    stage.submit(Request("newest", prompt(100, 7), limits=Limits(1)))
    stage.step()
    assert [name for name, _, _ in stage.batches[-1]] == ["old", "newest"]


def test_ones_own_unimportant_requests_do_not_make_ones_important_ones_late():
    stage = Stage(max_rows=1)
    stage.submit(*[Request(f"low{i}", prompt(4, i), limits=Limits(2), priority=1) for i in range(int(AGE) * 3)])
    stage.submit(Request("high", prompt(4, -1), limits=Limits(2)))
    stage.step()
    assert stage.batches == [[("high", 0, 4)]]


# -- owners -----------------------------------------------------------------------------------------


def test_who_comes_later_does_not_queue_behind_anothers_crowd():
    stage = Stage(blocks=400, max_rows=1)
    stage.submit(*[Request(f"a{i}", prompt(9, i), limits=Limits(4), owner="a") for i in range(50)])
    for _ in range(10):
        stage.step()
    stage.submit(*[Request(f"b{i}", prompt(9, 100 + i), limits=Limits(4), owner="b") for i in range(3)])
    stage.run()
    order = sorted(stage.transcript.outputs, key=lambda key: first_row(stage, key[0]))
    places = [i for i, (name, _) in enumerate(order) if name.startswith("b")]
    running = sum(first_row(stage, f"a{i}") < 10 for i in range(50))
    assert places == [running, running + 2, running + 4] or places == [running + 1, running + 3, running + 5]


@pytest.mark.parametrize("sizes", [(1, 1), (1, 20), (20, 1)])
def test_owners_who_always_want_more_get_the_same_work_done(sizes):
    """However many requests at once they send, and however long theirs are."""
    stage = Stage(blocks=4000, size=16, max_rows=2, max_tokens=512)
    rng = random.Random(1)
    waiting = Counter[str]()
    done = Counter[str]()
    sent = 0
    while sum(done.values()) < 600 * 60 * max(sizes) ** 0.5:
        for owner, size, crowd in (("a", sizes[0], 30), ("b", sizes[1], 5)):
            waiting[owner] = sum(seq.request.owner == owner for seq in stage.sched.waiting)
            for _ in range(crowd - waiting[owner]):
                sent += 1
                tokens = prompt(60 * size, rng.randrange(1 << 30))
                stage.submit(Request(f"{owner}{sent}", tokens, limits=Limits(2), owner=owner))
        for event in stage.step() or ():
            if event.request not in stage.transcript.failed and hasattr(event, "usage"):
                done[event.request[0]] += event.usage.prompt
    small = 512 / 60 if 1 in sizes and sizes != (1, 1) else 1  # a request counts for UNIT tokens at least
    share = done["a"] / done["b"]
    assert 1 / small * 0.8 < share < small * 1.25
    if sizes == (1, 1):
        assert 0.9 < share < 1.1


def test_an_owner_who_fills_all_places_makes_some_for_others():
    stage = Stage(blocks=400, max_rows=4, max_tokens=64)
    greedy = [Request(f"a{i}", prompt(8, i), limits=Limits(200), owner="a") for i in range(6)]
    stage.submit(*greedy)
    for _ in range(20):
        stage.step()
    others = [Request(f"b{i}", prompt(8, 50 + i), limits=Limits(30), owner="b") for i in range(5)]
    stage.submit(*others)
    stage.step()
    running = Counter(seq.request.owner for seq in stage.sched.running)
    assert running == {"a": 2, "b": 2} and stage.sched.snapshot().preemptions == 2
    third = Request("c0", prompt(8, 99), limits=Limits(9), owner="c")
    stage.submit(third)
    stage.step()
    assert Counter(seq.request.owner for seq in stage.sched.running)["c"] == 1
    stage.run()
    assert exact(stage, *greedy, *others, third) and free(stage)


def test_an_owner_who_fills_all_memory_makes_room_for_others():
    stage = Stage(blocks=40, size=4, max_rows=16, max_tokens=64)
    greedy = [Request(f"a{i}", prompt(24, i), limits=Limits(16), owner="a") for i in range(5)]
    stage.submit(*greedy)
    for _ in range(5):
        stage.step()
    assert len(stage.sched.running) == 4
    other = Request("b", prompt(20, 50), limits=Limits(16), owner="b")
    stage.submit(other)
    stage.step()
    assert "b" in {seq.request.id for seq in stage.sched.running}
    stage.run()
    assert exact(stage, *greedy, other) and stage.sched.snapshot().preemptions > 0


def test_nobody_goes_for_an_owner_who_has_a_fair_share_or_wants_more_than_that():
    stage = Stage(blocks=40, size=4, max_rows=16, max_tokens=64)
    stage.submit(*[Request(f"a{i}", prompt(24, i), limits=Limits(16), owner="a") for i in range(4)])
    stage.step()
    stage.submit(Request("b", prompt(100, 50), limits=Limits(16), owner="b"))  # more than half of the memory
    stage.run()
    assert stage.sched.snapshot().preemptions == 0 and stage.transcript["b"].finished


def test_nobody_goes_for_a_less_urgent_request_of_another_owner():
    stage = Stage(blocks=400, max_rows=2)
    stage.submit(*[Request(f"a{i}", prompt(8, i), limits=Limits(20), owner="a") for i in range(2)])
    stage.step()
    stage.submit(Request("b", prompt(8, 9), limits=Limits(2), owner="b", priority=1))
    stage.run()
    assert stage.sched.snapshot().preemptions == 0


def test_one_owner_is_served_in_the_order_of_arrival():
    for owner in ("", "a"):
        stage = Stage(max_rows=1)
        stage.submit(*[Request(f"r{i}", prompt(5, i), limits=Limits(2), owner=owner) for i in range(9)])
        stage.run()
        assert [rows[0][0] for rows in stage.batches[::2]] == [f"r{i}" for i in range(9)]


def test_what_is_remembered_of_owners_is_bounded():
    turns = Turns()
    for i in range(3 * REMEMBERED):
        turns.now = max(turns.now, turns.stamp(f"owner {i}", 0, 100))
        turns.now += 0.01
    assert len(turns._ends) <= REMEMBERED + 1


# -- expected outputs -------------------------------------------------------------------------------


def test_nine_of_ten_outputs_are_not_longer_than_expected():
    rng, lengths, seen = random.Random(2), Lengths(), []
    assert lengths.expected == UNKNOWN
    for _ in range(3 * WINDOW):
        seen.append(int(rng.expovariate(1 / 200)))
        lengths.add(seen[-1])
        assert lengths.expected == np.percentile(seen[-WINDOW:], 100 * SHARE, method="lower")


def test_as_many_run_as_can_be_expected_to_end():
    """Requests may say a million tokens, and say eight: places are given by what they say."""
    stage = Stage(blocks=60, size=4, max_rows=16, max_tokens=400)
    requests = [Request(f"r{i}", prompt(16, i), limits=Limits(8)) for i in range(40)]
    stage.submit(*requests)
    stage.run()
    assert stage.sched.places.lengths.expected == 8
    for i in range(12):
        stage.submit(Request(f"more{i}", prompt(16, 100 + i), limits=Limits(1_000_000)))
    stage.step()
    stage.step()
    # four blocks of prompt and two to come each; eight of them have said two tokens and one
    assert len(stage.sched.running) == 10 and stage.sched.snapshot().blocks_reserved == 8 * 1 + 2 * 2


def test_who_says_more_than_expected_goes_on_and_others_give_way():
    stage = unsuspecting(Stage(blocks=30, size=4, max_rows=16, max_tokens=400))
    requests = [Request(f"r{i}", prompt(16, i), limits=Limits(60)) for i in range(6)]
    stage.submit(*requests)
    stage.step()
    assert len(stage.sched.running) == 6
    stage.run()
    assert exact(stage, *requests) and stage.sched.snapshot().preemptions > 0


def test_alone_a_sequence_needs_room_for_its_tokens_only():
    stage = Stage(blocks=10, size=4)
    request = Request("r", prompt(38), limits=Limits(1_000_000))
    stage.submit(request)
    assert stage.run()["r"].finished.usage.generated == 2
