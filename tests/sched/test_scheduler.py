"""What the scheduler promises, one sentence a test. Whatever is said is judged by tests.toys.reference."""

from __future__ import annotations

import random

import pytest

from imp.sched.shares import shares
from imp.types import Delta, Limits, PromptLogprobs, Reason, Request, Sampling, Started, Usage
from tests.toys import (
    BOS,
    EOS,
    IDS,
    LANGUAGE,
    VOCAB,
    AllowList,
    ScriptedRunner,
    Stage,
    StepFailed,
    ToyDecoder,
    ToyRunner,
    reference,
    unsuspecting,
)

STOP = frozenset({EOS})


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(length))


def free(stage: Stage) -> bool:
    stats = stage.sched.snapshot()
    return stats.blocks_used == 0 and stats.blocks_free + stats.blocks_reclaimable == stats.blocks_total


def reusable(length: int, size: int = 4) -> int:
    """Tokens of a prompt that was computed before: all but the last, where they fill a block at least."""
    return length - 1 if length > size else 0


def first_row(stage: Stage, request_id: str) -> int:
    """Number of the step in which a request got its first row."""
    return next(i for i, rows in enumerate(stage.batches) if any(r == request_id for r, _, _ in rows))


# -- sharing of positions -----------------------------------------------------------------------


def test_a_prompt_that_is_alone_gets_everything():
    assert shares([1000], 512) == [512]
    assert shares([100], 512) == [100]
    assert shares([], 512) == []


def test_half_goes_by_rank_and_half_to_the_shortest():
    assert shares([16_000, 100], 512) == [412, 100]
    assert shares([16_000, 8_000, 100], 512) == [256, 156, 100]
    assert shares([300, 300], 512) == [300, 212]


def test_the_most_urgent_prompt_always_gets_something():
    assert shares([5, 1, 1, 1], 1) == [1, 0, 0, 0]


@pytest.mark.parametrize("seed", range(50))
def test_shares_spend_exactly_what_can_be_spent(seed):
    rng = random.Random(seed)
    pending = [rng.randrange(1, 400) for _ in range(rng.randrange(1, 10))]
    budget = rng.randrange(1, 600)
    granted = shares(pending, budget)
    assert sum(granted) == min(budget, sum(pending))
    assert all(0 <= g <= p for g, p in zip(granted, pending, strict=True)) and granted[0] > 0


# -- steps --------------------------------------------------------------------------------------


def test_g07_01_a_long_prompt_never_takes_a_row_from_those_that_decode():
    stage = Stage(600, 4, max_tokens=16)
    victim = Request("victim", prompt(4), limits=Limits(100))
    attacker = Request("attacker", prompt(40 * 15, 1), limits=Limits(8))
    stage.submit(victim)
    for _ in range(10):
        stage.step()
    stage.submit(attacker)
    for i in range(40):
        stage.step()
        assert stage.batches[-1] == [("victim", 13 + i, 1), ("attacker", 15 * i, 15)]
    stage.run()
    assert stage.transcript["attacker"].essence == reference(attacker).essence
    assert stage.transcript["victim"].essence == reference(victim).essence


def test_g07_02_a_short_request_gets_its_first_token_beside_a_long_prefill():
    def steps_of_long(short: Request | None) -> int:
        stage = Stage(600, 4, max_tokens=32)
        stage.submit(Request("talker", prompt(4), limits=Limits(200)))
        stage.submit(Request("long", prompt(1600, 1), limits=Limits(1)))
        for _ in range(5):
            stage.step()
        if short is not None:
            stage.submit(short)
            stage.step()
            assert stage.transcript["short"].finished  # in the very next step
        while not stage.transcript["long"].finished:
            stage.step()
        return len(stage.batches)

    assert steps_of_long(Request("short", prompt(14, 2), limits=Limits(1))) <= steps_of_long(None) + 1


def test_a_short_request_passes_long_ones_that_wait_for_positions():
    stage = Stage(900, 4, max_tokens=32)
    stage.submit(*[Request(f"long{i}", prompt(800, i), limits=Limits(2)) for i in range(3)])
    stage.step()
    stage.submit(Request("short", prompt(10, 9), limits=Limits(1)))
    stage.step()
    assert stage.transcript["short"].finished
    stage.run()
    assert [first_row(stage, f"long{i}") for i in range(3)] == sorted(first_row(stage, f"long{i}") for i in range(3))


def test_a_stream_of_short_requests_does_not_starve_a_long_one():
    stage = Stage(900, 4, max_tokens=16, max_rows=4)
    stage.submit(Request("long", prompt(400), limits=Limits(2)))
    for i in range(200):
        stage.submit(Request(f"s{i}", prompt(12, i + 1), limits=Limits(1)))
        stage.step()
        if stage.transcript["long"].finished:
            break
    assert len(stage.batches) < 400 / (16 // 2 - 4) + 5


def test_prompts_go_in_chunks_and_the_last_one_speaks():
    stage = Stage(max_tokens=10)
    stage.submit(Request("a", prompt(25), limits=Limits(1)))
    stage.run()
    assert stage.batches == [[("a", 0, 10)], [("a", 10, 10)], [("a", 20, 5)]]


def test_no_more_sequences_run_than_there_are_rows():
    stage = Stage(max_rows=3)
    stage.submit(*[Request(f"r{i}", prompt(5, i), limits=Limits(5, stop_ids=STOP)) for i in range(10)])
    while stage.step() is not None:
        assert stage.sched.snapshot().running <= 3
    assert len(stage.transcript.outputs) == 10


def test_limits_that_cannot_hold_one_position_a_row_are_refused():
    with pytest.raises(ValueError, match="max_rows"):
        Stage(max_rows=8, max_tokens=7)
    with pytest.raises(ValueError, match="max_rows"):
        Stage(max_rows=8, max_logit_rows=7)


# -- priorities ---------------------------------------------------------------------------------


def test_the_more_urgent_class_is_admitted_first_and_equals_in_order_of_arrival():
    stage = Stage(max_rows=1)
    for name, priority in [("a", 0), ("b", 1), ("c", 0), ("d", -1)]:
        stage.submit(Request(name, prompt(5, ord(name)), limits=Limits(2), priority=priority))
    stage.run()
    assert sorted("abcd", key=lambda name: first_row(stage, name)) == ["d", "a", "c", "b"]


def test_an_unimportant_request_is_not_overtaken_for_ever():
    stage = Stage(max_rows=1)
    stage.submit(Request("patient", prompt(3), limits=Limits(1), priority=2))
    for i in range(600):
        stage.submit(Request(f"vip{i}", prompt(3, i), limits=Limits(1), priority=0))
        stage.step()
        if stage.transcript.outputs.get(("patient", 0)):
            break
    # two classes are worth 512 requests, and here one is let in with every step
    assert 200 < len(stage.batches) < 550


# -- prefix cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 20, 23])
def test_g07_08_a_hit_says_the_same_as_a_miss_and_is_reported(length):
    stage = Stage()
    for name in "abc":
        stage.submit(Request(name, prompt(length), limits=Limits(10)))
        stage.run()
    wanted = reusable(length)
    assert [stage.transcript[n].finished.usage.cached for n in "abc"] == [0, wanted, wanted]
    assert stage.transcript["b"].essence == reference(Request("b", prompt(length), limits=Limits(10))).essence
    stats = stage.sched.snapshot()
    assert (stats.cache_queries, stats.cache_hits) == (3 * length, 2 * wanted)


@pytest.mark.parametrize("shared", range(6))
@pytest.mark.parametrize("more", range(4))
def test_g07_08_as_much_is_shared_as_is_equal_behind_a_whole_block(shared, more):
    stage = Stage()
    stage.submit(Request("a", prompt(23), limits=Limits(3)))
    stage.run()
    same = 4 * shared + (more if 0 < shared < 5 else 0)
    other = Request("b", prompt(23)[:same] + prompt(23, 1), limits=Limits(10))
    stage.submit(other)
    stage.run()
    assert prompt(23)[same] != prompt(23, 1)[0]
    assert stage.transcript["b"].started == Started("b", 0, same + 23, same)
    assert stage.transcript["b"].essence == reference(other).essence


def test_prompts_that_arrive_together_compute_what_they_share_once():
    stage = Stage(blocks=200, max_tokens=20)
    requests = [Request(f"r{i}", prompt(80) + prompt(9 - i, i), limits=Limits(3)) for i in range(5)]
    stage.submit(*requests)
    stage.run()
    assert all(stage.transcript[r.id].essence == reference(r).essence for r in requests)
    assert stage.sched.snapshot().positions <= 80 + 5 * (9 + 3 + 3)


def test_the_answer_is_cached_for_the_next_turn():
    stage = Stage()
    stage.submit(Request("a", prompt(9), limits=Limits(12)))
    said = tuple(stage.run()["a"].tokens)
    stage.submit(Request("b", prompt(9) + said + prompt(3, 1)))
    stage.step()
    assert stage.transcript["b"].started.cached == 20  # 9 + 12 tokens, the last of which was never computed


def test_g07_07_salts_do_not_share():
    stage = Stage()
    for name, salt in [("a", b""), ("b", b"x"), ("c", b"y"), ("d", b"x")]:
        stage.submit(Request(name, prompt(20), salt=salt, limits=Limits(4)))
        stage.run()
        assert (
            stage.transcript[name].essence == reference(Request(name, prompt(20), salt=salt, limits=Limits(4))).essence
        )
    assert [stage.transcript[n].started.cached for n in "abcd"] == [0, 0, 0, 19]


def test_resetting_the_cache_waits_for_those_that_run():
    stage = Stage()
    stage.submit(Request("a", prompt(20), limits=Limits(2), pin=20))
    stage.step()
    assert not stage.sched.reset_prefix_cache()
    stage.run()
    assert stage.sched.reset_prefix_cache() and stage.sched.snapshot().blocks_free == 64
    stage.submit(Request("b", prompt(20)))
    stage.step()
    assert stage.transcript["b"].started.cached == 0


# -- n > 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 40])
def test_siblings_share_the_prompt_and_differ_in_what_they_say(length):
    stage = Stage()
    request = Request("a", prompt(length), n=3, limits=Limits(12))
    stage.submit(request)
    assert stage.sched.snapshot().waiting == 3
    stage.run()
    outputs = [stage.transcript["a", i] for i in range(3)]
    assert [out.essence for out in outputs] == [reference(request, i).essence for i in range(3)]
    assert [out.started.cached for out in outputs[1:]] == [reusable(length)] * 2
    assert len({out.text for out in outputs}) > 1
    assert free(stage)


def test_siblings_come_even_if_the_first_ends_at_once():
    stage = Stage()
    request = Request("a", prompt(9), n=3, limits=Limits(1))
    stage.submit(request)
    stage.run()
    assert [stage.transcript["a", i].essence for i in range(3)] == [reference(request, i).essence for i in range(3)]


# -- what never fits, and where it ends -----------------------------------------------------------


def test_g07_11_a_prompt_that_fills_the_context_is_refused_with_both_numbers():
    stage = Stage(blocks=200, context=512)
    stage.submit(Request("a", prompt(600)), Request("b", prompt(512)))
    assert [stage.transcript.failed[n].code for n in "ab"] == ["context_length_exceeded"] * 2
    assert "600" in stage.transcript.failed["a"].message and "512" in stage.transcript.failed["a"].message
    assert stage.step() is None and stage.sched.snapshot().refused == 2


@pytest.mark.parametrize(("length", "max_tokens"), [(500, 100), (500, 1_000_000_000), (511, 5)])
def test_g07_11_g07_12_generation_runs_to_the_end_of_the_context(length, max_tokens):
    stage = Stage(blocks=200, context=512)
    stage.submit(Request("a", prompt(length), limits=Limits(max_tokens)))
    end = stage.run()["a"].finished
    assert (end.reason, end.usage.generated) == (Reason.LENGTH, 512 - length)


def test_a_prompt_the_pool_can_never_hold_is_refused():
    stage = Stage(blocks=8, size=4)
    stage.submit(Request("a", prompt(32)), Request("b", prompt(31)))
    assert stage.transcript.failed["a"].code == "kv_pool_floored"
    stage.run()
    assert stage.transcript["b"].finished.reason is Reason.LENGTH


def test_a_sequence_that_fills_the_whole_pool_ends_with_length():
    stage = Stage(blocks=8, size=4)
    stage.submit(Request("a", prompt(10), limits=Limits(1000)))
    end = stage.run()["a"].finished
    assert (end.reason, end.usage.generated) == (Reason.LENGTH, 22)
    assert free(stage)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_g07_12_zero_and_one_token_are_taken_literally(max_tokens):
    stage = Stage(max_tokens=8)
    request = Request("a", prompt(20), limits=Limits(max_tokens), n=2)
    stage.submit(request)
    stage.run()
    for i in range(2):
        out = stage.transcript["a", i]
        assert out.finished.reason is Reason.LENGTH and len(out.tokens) == max_tokens == out.finished.usage.generated
        assert out.essence == reference(request, i).essence
    assert free(stage)


def test_an_id_in_use_is_refused_and_may_come_again_later():
    stage = Stage()
    stage.submit(Request("a", prompt(5), limits=Limits(2)))
    with pytest.raises(ValueError, match="in use"):
        stage.submit(Request("a", prompt(5)))
    stage.run()
    assert stage.sched.submit(Request("a", prompt(5)), 0.0) == []


# -- memory ---------------------------------------------------------------------------------------


def test_g07_04_preemption_is_invisible_in_the_output():
    size, length = 4, 60
    stage = unsuspecting(Stage(3 * (20 + length) // size, size, max_rows=12, runner=ToyRunner(60, size)))
    constraint = AllowList((frozenset(LANGUAGE[:9]), frozenset(LANGUAGE[5:])), 50)
    requests = [
        Request(
            f"r{i}",
            prompt(20, i),
            Sampling(temperature=0.0, seed=i, logprobs=0 if i == 3 else None),
            Limits(length),
            constraint=constraint if i == 5 else None,
        )
        for i in range(12)
    ]
    stage.submit(*requests)
    stage.run(limit=12 * (length + 20))
    assert stage.sched.snapshot().preemptions > 0
    for request in requests:
        assert stage.transcript[request.id].essence == reference(request).essence
        assert stage.transcript[request.id].started is not None
    assert free(stage)


def test_admission_leaves_room_so_that_memory_pressure_does_not_thrash():
    stage = Stage(blocks=40, size=4, max_rows=16, max_tokens=200)
    stage.submit(*[Request(f"r{i}", prompt(20, i), limits=Limits(40)) for i in range(30)])
    stage.run()
    stats = stage.sched.snapshot()
    computed_once = 30 * (20 + 40 - 1)
    # filling memory to the last block gives 43 preemptions here, and 1.45 times the work
    assert stats.preemptions == 0 and stats.positions == computed_once
    assert stats.steps <= 30 / 2 * 42  # two fit side by side


def test_the_least_urgent_gives_way():
    stage = unsuspecting(Stage(blocks=12, size=4, max_rows=4))
    for name, priority in [("low", 5), ("high", 0), ("mid", 2)]:
        stage.submit(Request(name, prompt(8, ord(name[0])), limits=Limits(30), priority=priority))
    stage.run()
    ended = sorted(("low", "high", "mid"), key=lambda name: stage.transcript[name].finished.marks.last_token)
    assert ended == ["high", "mid", "low"] and stage.sched.snapshot().preemptions > 0


def test_nobody_is_preempted_for_a_guess():
    stage = Stage(blocks=5, size=4, runner=ToyRunner(5, 4, lambda seq, ahead: ahead(6)))
    stage.submit(Request("a", prompt(6), limits=Limits(4)), Request("b", prompt(6, 1), limits=Limits(4)))
    stage.run()
    assert stage.sched.snapshot().preemptions == 0


# -- leaving early ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "where"), [(0, "queue"), (2, "prefill"), (6, "decode")])
@pytest.mark.parametrize("n", [1, 2])
def test_g01_06_abort_frees_everything_wherever_the_request_is(steps, where, n):
    stage = Stage(max_tokens=16, max_rows=4)
    stage.submit(Request("a", prompt(60), n=n, limits=Limits(10_000)))
    for _ in range(steps):
        stage.step()
    before = stage.sched.snapshot().positions
    stage.abort("a")
    stage.abort("a")
    stage.abort("nobody")
    assert all(out.finished.reason is Reason.ABORT for out in stage.transcript.outputs.values())
    assert len(stage.transcript.outputs) == n
    assert stage.step() is None and free(stage)
    stats = stage.sched.snapshot()
    assert (stats.aborted, stats.running, stats.waiting, stats.positions) == (1, 0, 0, before)
    stage.submit(Request("next", prompt(4), limits=Limits(1)))
    stage.step()
    assert stage.transcript["next"].tokens


@pytest.mark.parametrize("cached", [True, False])
def test_g07_05_every_way_of_ending_gives_all_blocks_back(cached):
    rng = random.Random(5)
    stage = unsuspecting(Stage(blocks=40, size=4, max_rows=6, max_tokens=24))
    stage.runner.fails = lambda batch: rng.random() < 0.01
    dead_end = AllowList((frozenset(),))
    for i in range(500):
        stage.submit(
            Request(
                f"r{i}",
                prompt(rng.randrange(1, 60), rng.randrange(8)),
                Sampling(prompt_logprobs=None if cached else 0),
                Limits(rng.randrange(30), stop_ids=STOP, stop_strings=("OP",) if i % 3 else ()),
                n=1 + i % 2,
                constraint=dead_end if i % 50 == 7 else None,
            )
        )
        for _ in range(rng.randrange(6)):
            stage.step()
        if i % 5 == 0:
            unsuspecting(stage)
        if i % 7 == 0:
            stage.abort(f"r{rng.randrange(max(i - 6, 0), i + 1)}")
    stage.run()
    stats = stage.sched.snapshot()
    assert free(stage) and stats.aborted > 10 and stats.failed > 10 and stats.preemptions > 0
    assert stats.submitted == 500


def test_a_failed_step_fails_its_requests_with_all_their_sequences_and_no_others():
    stage = Stage(max_rows=2)
    stage.submit(Request("a", prompt(9), n=2, limits=Limits(50)))
    stage.step()
    stage.step()
    stage.submit(Request("b", prompt(5, 1), limits=Limits(3)))  # no row is left for it
    stage.runner.fails = lambda batch: True
    stage.step()
    assert list(stage.transcript.failed) == ["a"]
    stage.runner.fails = lambda batch: False
    stage.run()
    assert stage.transcript["b"].essence == reference(Request("b", prompt(5, 1), limits=Limits(3))).essence
    assert free(stage) and stage.sched.snapshot().failed == 1


@pytest.mark.parametrize("damage", ["too few results", "no token", "too many tokens", "bad decoder"])
def test_results_that_make_no_sense_leave_the_pool_whole(damage):
    stage = Stage()
    stage.submit(Request("a", prompt(5), limits=Limits(9)), Request("b", prompt(5, 1), limits=Limits(9)))
    stage.step()
    batch = stage.sched.plan(9.0)
    results = stage.runner.step(batch)
    if damage == "too few results":
        results.pop()
    elif damage == "no token":
        results[1].tokens = []
    elif damage == "too many tokens":
        results[1].tokens *= 2
    else:
        results[1].tokens = [99_999]
    with pytest.raises((ValueError, IndexError)):
        stage.sched.apply(batch, results, 9.0)
    events = stage.sched.fail(batch, "engine_step_failed", "no")
    assert [event.request for event in events] == ["a", "b"]
    stage.sched.check()
    assert stage.sched.plan(10.0) is None and free(stage)


# -- pins -------------------------------------------------------------------------------------------


def test_a_pinned_prompt_survives_pressure():
    stage = Stage(blocks=16, size=4)
    stage.submit(Request("p", prompt(16), limits=Limits(0), pin=16))
    stage.run()
    assert stage.sched.snapshot().blocks_pinned == 4
    for i in range(10):
        stage.submit(Request(f"x{i}", prompt(30, i + 1), limits=Limits(8)))
        stage.run()
    stage.submit(Request("q", prompt(16) + prompt(3, 77), limits=Limits(2)))
    stage.run()
    assert stage.transcript["q"].started.cached == 16
    assert stage.sched.reset_prefix_cache()
    stage.sched.check()
    assert free(stage) and stage.sched.snapshot().blocks_pinned == 0


def test_only_so_many_tokens_are_pinned_as_were_asked_for():
    stage = Stage(blocks=64, size=4)
    stage.submit(Request("p", prompt(40), limits=Limits(3), pin=18))
    stage.run()
    assert stage.sched.snapshot().blocks_pinned == 4  # whole blocks


def test_pins_keep_to_their_budget_and_the_oldest_go_first():
    stage = Stage(blocks=64, size=4, pin_budget=8)
    for i in range(3):
        stage.submit(Request(f"p{i}", prompt(16, i), limits=Limits(0), pin=16))
        stage.run()
    assert stage.sched.snapshot().blocks_pinned == 8
    stage.submit(*[Request(f"x{i}", prompt(60, i + 10), limits=Limits(8)) for i in range(9)])
    stage.run()
    for i in range(3):
        stage.submit(Request(f"q{i}", (*prompt(16, i), 1, 2), limits=Limits(1)))
        stage.run()
    assert [stage.transcript[f"q{i}"].started.cached for i in range(3)] == [0, 16, 16]


def test_a_pin_that_is_too_large_is_kept_in_part_and_a_budget_of_nothing_keeps_nothing():
    for budget, kept in ((8, 8), (0, 0)):
        stage = Stage(blocks=64, size=4, pin_budget=budget)
        stage.submit(Request("p", prompt(80), limits=Limits(0), pin=80))
        stage.run()
        assert stage.sched.snapshot().blocks_pinned == kept


def test_the_pins_of_a_conversation_count_once():
    stage = Stage(blocks=64, size=4, pin_budget=20)
    stage.submit(Request("other", prompt(16, 9), limits=Limits(0), pin=16))
    stage.run()
    for turn in range(1, 9):
        stage.submit(Request(f"t{turn}", prompt(8 * turn), limits=Limits(0), pin=8 * turn))
        stage.run()
        assert stage.sched.snapshot().blocks_pinned == 4 + 2 * turn
    assert len(stage.sched.pool.pins) == 2


def test_pins_give_way_to_a_sequence_that_needs_all_memory():
    for tokens, grows in ((62, 2), (4, 60)):
        stage = Stage(blocks=16, size=4, pin_budget=12)
        stage.submit(Request("p", prompt(48), limits=Limits(1), pin=48))
        stage.run()
        big = Request("big", prompt(tokens, 1), limits=Limits(grows))
        stage.submit(big)
        stage.run()
        assert stage.sched.snapshot().blocks_pinned == 0
        assert stage.transcript["big"].essence == reference(big).essence


def test_pins_do_not_give_way_to_what_can_wait():
    stage = unsuspecting(Stage(blocks=16, size=4, max_rows=4, pin_budget=4))
    stage.submit(Request("p", prompt(16), limits=Limits(0), pin=16))
    stage.run()
    stage.submit(*[Request(f"r{i}", prompt(12, i), limits=Limits(20)) for i in range(1, 5)])
    stage.run()
    assert stage.sched.snapshot().blocks_pinned == 4 and stage.sched.snapshot().preemptions > 0


# -- stops and text ---------------------------------------------------------------------------------


def scripted(
    tokens: list[int], limits: Limits, draft: int = 0, logprobs: int | None = None
) -> tuple[Stage, list[Delta]]:
    stage = Stage(runner=ScriptedRunner({"a": tokens}, draft))
    stage.submit(Request("a", (1, 2, 3), Sampling(logprobs=logprobs), limits))
    deltas = []
    while (events := stage.step()) is not None:
        deltas += [event for event in events if isinstance(event, Delta)]
    return stage, deltas


def ids(*pieces: str) -> list[int]:
    return [IDS[piece] for piece in pieces]


@pytest.mark.parametrize("draft", [0, 1, 4, 9])
def test_g01_04_a_stop_string_that_spans_tokens_never_leaks_its_beginning(draft):
    tokens = ids("one", " two", " ST", "OP", "ME", " three")
    stage, deltas = scripted(tokens, Limits(50, stop_ids=STOP, stop_strings=("STOPME",)), draft, logprobs=0)
    out = stage.transcript["a"]
    assert out.text == "one two " and (out.finished.reason, out.finished.stop) == (Reason.STOP, "STOPME")
    assert not any("S" in delta.text for delta in deltas)
    assert out.tokens == ids("one", " two", " ST")  # the blank before the stop string is a part of the third
    assert [lp.token for lp in out.logprobs] == out.tokens
    assert out.finished.usage.generated == 5


@pytest.mark.parametrize("draft", [0, 3])
def test_g01_04_what_only_began_like_a_stop_string_is_released_in_order(draft):
    tokens = ids("one", " ST", "ART", " two")
    stage, deltas = scripted(tokens, Limits(50, stop_ids=STOP, stop_strings=("STOPME",)), draft)
    assert stage.transcript["a"].text == "one START two" == "".join(delta.text for delta in deltas)
    assert stage.transcript["a"].tokens == tokens
    assert (stage.transcript["a"].finished.stop, stage.transcript["a"].finished.reason) == (None, Reason.STOP)


def test_g01_04_a_stop_string_is_cut_at_the_character_and_not_at_the_token():
    stage, _ = scripted(ids("one", " two", " three"), Limits(50, stop_strings=("wo th",)))
    assert stage.transcript["a"].text == "one t"


def test_an_included_stop_string_comes_with_its_tokens():
    tokens = ids("one", " ST", "OP", " two")
    stage, _ = scripted(tokens, Limits(50, stop_strings=(" STOP",), include_stop=True), logprobs=0)
    out = stage.transcript["a"]
    assert (out.text, out.tokens, out.finished.stop) == ("one STOP", tokens[:3], " STOP")
    assert [lp.token for lp in out.logprobs] == tokens[:3]


def test_text_that_is_held_back_comes_at_the_end():
    stage, _ = scripted(ids("one", " ST"), Limits(2, stop_strings=("STOPME",)))
    out = stage.transcript["a"]
    assert (out.text, out.tokens, out.finished.reason) == ("one ST", ids("one", " ST"), Reason.LENGTH)


def test_a_stop_string_that_only_the_end_of_the_text_settles_is_the_reason():
    class Undecided(ToyDecoder):
        """ "ME" is there, but "OPME th" began before it: only the end tells which one it is."""

        def push(self, token: int) -> str:
            self.text += VOCAB[token].decode()
            return ""

        def flush(self) -> str:
            self.stopped = "ME"
            return self._show(self.text.index("ME"))

    stage = Stage(runner=ScriptedRunner({"a": ids("one", "OP", "ME")}))
    stage.sched.new_decoder = Undecided
    stage.submit(Request("a", (1,), limits=Limits(50, stop_ids=STOP, stop_strings=("OPME th", "ME"))))
    out = stage.run()["a"]
    assert (out.text, out.tokens, out.finished.reason) == ("oneOP", ids("one", "OP"), Reason.STOP)
    assert out.finished.stop == "ME" and out.finished.usage.generated == 4


def test_tokens_of_one_character_come_with_the_character():
    tokens = [*"日本".encode(), BOS, *b"!"]
    _, deltas = scripted(tokens, Limits(50, stop_ids=STOP))
    assert [(d.text, len(d.tokens)) for d in deltas] == [("日", 3), ("本", 3), ("!", 2)]


def test_half_a_character_at_the_end_is_shown_as_a_replacement():
    stage, _ = scripted([*b"a", *"日".encode()[:2]], Limits(50, stop_ids=STOP))
    assert stage.transcript["a"].text == "a\ufffd" and len(stage.transcript["a"].tokens) == 3


@pytest.mark.parametrize(("token", "stop"), [(EOS, None), (ord("x"), ord("x"))])
@pytest.mark.parametrize("draft", [0, 5])
def test_a_stop_token_is_counted_but_not_shown(token, stop, draft):
    stage, _ = scripted([*b"ab", token, *b"cd"], Limits(50, stop_ids=STOP | {ord("x")}), draft)
    out = stage.transcript["a"]
    assert (out.text, out.tokens, out.finished.stop) == ("ab", [*b"ab"], stop)
    assert out.finished.reason is Reason.STOP and out.finished.usage.generated == 3


def test_a_step_of_many_tokens_stops_at_the_first_limit():
    stage, _ = scripted([*b"abcdefgh"], Limits(5), draft=3)
    assert stage.transcript["a"].text == "abcde" and stage.transcript["a"].finished.reason is Reason.LENGTH


def test_guesses_leave_half_of_the_positions_to_prompts():
    stage = Stage(600, 4, max_tokens=17, runner=ToyRunner(600, 4, lambda seq, ahead: ahead(30)))
    stage.submit(Request("guesser", prompt(4), limits=Limits(400)))
    stage.step()
    stage.step()
    assert stage.batches[-1] == [("guesser", 4, 17)]  # alone it may use them all
    stage.submit(Request("long", prompt(600, 1), limits=Limits(1)))
    for _ in range(10):
        stage.step()
        assert [count for _, _, count in stage.batches[-1]] in ([9, 8], [8, 9])


# -- guesses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [0, 1, 2, 4])
def test_rejected_guesses_leave_no_trace(right):
    def propose(seq, ahead):
        guesses = ahead(4)
        return guesses[:right] + [(g + 1) % 256 for g in guesses[right:]]

    stage = Stage(runner=ToyRunner(64, 4, propose))
    request = Request("a", prompt(7), limits=Limits(40))
    stage.submit(request)
    out = stage.run()["a"]
    assert out.essence == reference(request).essence
    usage = out.finished.usage
    assert usage.accepted == pytest.approx(usage.drafted * right / 4, abs=4)
    assert len(stage.batches) == pytest.approx(40 / (1 + right), abs=2)
    stats = stage.sched.snapshot()
    assert (stats.drafted, stats.accepted) == (usage.drafted, usage.accepted)
    assert (stats.miss_steps == stats.verify_steps) == (right == 0)


def test_a_constraint_stays_in_step_with_guesses_and_preemption():
    rng = random.Random(3)
    sets = (frozenset(LANGUAGE[:6]), frozenset(LANGUAGE[4:9]), frozenset(LANGUAGE[:14]))

    def propose(seq, ahead):
        return [rng.choice(list(sets[0])) for _ in range(3)]

    stage = unsuspecting(Stage(blocks=24, size=2, max_rows=4, runner=ToyRunner(24, 2, propose)))
    requests = [Request(f"r{i}", prompt(6, i), limits=Limits(35), constraint=AllowList(sets, 28)) for i in range(4)]
    stage.submit(*requests)
    stage.run()
    for request in requests:
        out = stage.transcript[request.id]
        assert out.essence == reference(request).essence and out.finished.reason is Reason.STOP
        assert out.finished.usage.generated == 28
    assert stage.sched.snapshot().preemptions > 0 and stage.sched.snapshot().accepted > 0


def test_a_constraint_without_a_way_on_ends_the_request_with_an_error():
    stage = Stage()
    stage.submit(Request("a", prompt(6), n=2, constraint=AllowList((frozenset({97}), frozenset()))))
    stage.submit(Request("b", prompt(6, 1), limits=Limits(3)))
    stage.run()
    assert stage.transcript.failed["a"].code == "engine_step_failed"
    assert stage.transcript["b"].finished.reason is Reason.LENGTH and free(stage)


def test_no_stop_token_before_min_tokens():
    request = Request("a", prompt(4), limits=Limits(60, min_tokens=25, stop_ids=frozenset(LANGUAGE[:12])))
    stage = Stage()
    stage.submit(request)
    out = stage.run()["a"]
    assert out.finished.usage.generated >= 25 and out.essence == reference(request).essence


# -- prompt logprobs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 4, 30])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_prompt_logprobs_come_once_before_the_text_whatever_the_chunks(length, max_tokens):
    stage = Stage(max_rows=3, max_tokens=40, max_logit_rows=7)
    first = Request("warm", prompt(length), limits=Limits(2))
    request = Request("a", prompt(length), Sampling(prompt_logprobs=0, logprobs=0), Limits(max_tokens), n=2)
    stage.submit(first)
    stage.run()
    stage.submit(request)
    events = []
    while (step := stage.step()) is not None:
        events += step
    assert sum(isinstance(event, PromptLogprobs) for event in events) == 2
    assert [stage.transcript["a", i].essence for i in range(2)] == [reference(request, i).essence for i in range(2)]
    # the sibling needs no logits of the prompt again, so it may share it
    assert [stage.transcript["a", i].finished.usage.cached for i in range(2)] == [0, reusable(length)]
    assert all(count <= 7 for rows in stage.batches for name, _, count in rows if name == "a")


# -- figures --------------------------------------------------------------------------------------------


def test_marks_and_usage_tell_what_happened_when():
    stage = Stage(max_tokens=8)
    stage.submit(Request("a", prompt(20), limits=Limits(4), arrived=0.5))
    end = stage.run()["a"].finished
    assert end.usage == Usage(prompt=20, cached=0, generated=4)
    marks = end.marks
    assert (marks.arrived, marks.scheduled, marks.first_token, marks.last_token) == (0.5, 1.0, 3.0, 6.0)


def test_the_snapshot_counts_steps_and_rows():
    stage = Stage(max_tokens=16)
    stage.submit(Request("a", prompt(8), limits=Limits(6)), Request("b", prompt(30, 1), limits=Limits(3)))
    stage.run()
    stats = stage.sched.snapshot()
    rows = [[count for _, _, count in batch] for batch in stage.batches]
    assert stats.steps == len(rows) and stats.positions == sum(map(sum, rows))
    # "a" decodes five times and "b" twice; "a" does so beside the prompt of "b" once or twice
    assert stats.decode_rows == 7 and stats.decode_max_rows == 2 and 1 <= stats.mixed_steps <= 2
    assert stats.decode_last_rows == len(rows[-1])


class LateRunner(ToyRunner):
    """Often has no token yet for a row that reached the end."""

    rng = random.Random(5)

    def step(self, batch):
        results = super().step(batch)
        for row, result in zip(batch.rows, results, strict=True):
            if row.reaches_end and self.rng.random() < 0.6:
                result.tokens, result.logprobs, result.draft, result.late = [], [], [], True
        return results


def test_a_token_that_is_late_changes_nothing_but_the_time():
    stage = Stage(40, 4, runner=LateRunner(40, 4, lambda seq, ahead: ahead(2)), max_rows=4, max_tokens=12)
    requests = [
        Request(
            f"r{i}",
            prompt(5 + 3 * i, i),
            Sampling(logprobs=1, prompt_logprobs=1 if i % 2 else None),
            Limits(12, stop_ids=STOP),
            n=1 + i % 2,
        )
        for i in range(6)
    ]
    stage.submit(*requests)
    stage.run()
    for request in requests:
        for index in range(request.n):
            assert stage.transcript[request.id, index].essence == reference(request, index).essence
    assert free(stage)


def test_late_rows_are_not_counted_as_decoding():
    class Slow(ToyRunner):
        def step(self, batch):
            results = super().step(batch)
            for row, result in zip(batch.rows, results, strict=True):
                if row.seq.generated and self.steps % 3:
                    result.tokens, result.late = [], True
            return results

    stage = Stage(runner=Slow(64, 4))
    stage.submit(Request("a", prompt(6), limits=Limits(5)), Request("b", prompt(6, 1), limits=Limits(5)))
    stage.run()
    stats = stage.sched.snapshot()
    assert stats.decode_rows == 2 * 4 and stats.decode_steps == 4 and stats.steps > 8


def test_a_row_that_cannot_go_on_fails_its_request_alone():
    class Failing(ToyRunner):
        def step(self, batch):
            results = super().step(batch)
            for row, result in zip(batch.rows, results, strict=True):
                if row.seq.request.id == "bad" and row.seq.generated == 2:
                    result.error = "a reason"
            return results

    stage = Stage(runner=Failing(64, 4))
    bad, good = (Request(name, prompt(6, i), limits=Limits(8), n=2) for i, name in enumerate(("bad", "good")))
    stage.submit(bad, good)
    stage.run()
    failed = stage.transcript.failed
    assert list(failed) == ["bad"] and (failed["bad"].code, failed["bad"].message) == ("engine_step_failed", "a reason")
    assert [stage.transcript["good", i].essence for i in (0, 1)] == [reference(good, i).essence for i in (0, 1)]
    assert free(stage) and stage.failures == 0


def test_a_runner_that_raises_is_not_the_schedulers_business():
    runner = ToyRunner(8, 4)
    runner.fails = lambda batch: True
    stage = Stage(8, 4, runner=runner)
    stage.submit(Request("a", prompt(3)))
    batch = stage.sched.plan(0.0)
    with pytest.raises(StepFailed):
        runner.step(batch)
    stage.sched.fail(batch, "engine_step_failed", "no")
    stage.sched.check()
    assert free(stage)
