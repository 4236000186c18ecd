"""What is computed aside goes on until it is done, whoever comes, leaves or is in a hurry meanwhile."""

from __future__ import annotations

from collections import defaultdict

from imp.sched.aside import Aside
from imp.types import Limits, Request
from tests.sched.test_scheduler import prompt
from tests.toys import Stage, reference


def stage_of(piece: int, tokens: int = 16, most: int = 2) -> Stage:
    """One that decodes for ever, and `piece` positions aside in every step."""
    stage = Stage(400, 4, max_rows=6, aside=Aside(tokens, most))
    stage.runner.piece = lambda: piece
    return stage


def talker(name: str = "talker", priority: int = 0) -> Request:
    return Request(name, prompt(5), limits=Limits(300, min_tokens=300), priority=priority)


def started(stage: Stage, *requests: Request) -> None:
    """They are submitted and have begun to decode."""
    stage.submit(*requests)
    while any(seq.generated == 0 for seq in (*stage.sched.running, *stage.sched.waiting)):
        stage.step()


def positions(stage: Stage, request_id: str) -> list[tuple[int, int]]:
    """(start, count) of every different chunk of a request, in order."""
    rows = [(start, count) for step in stage.aside for name, start, count in step if name == request_id]
    return list(dict.fromkeys(rows))


def test_a_prompt_beside_a_row_that_decodes_is_computed_aside_but_for_its_last_token():
    stage = stage_of(piece=4)
    started(stage, talker())
    long = Request("long", prompt(41, 1), limits=Limits(3))
    stage.submit(long)
    while "long" not in {name for name, _, _ in stage.batches[-1]}:
        stage.step()
        assert "talker" in {name for name, _, _ in stage.batches[-1]}
    assert positions(stage, "long") == [(0, 16), (16, 16), (32, 8)]
    assert stage.batches[-1][-1] == ("long", 40, 1)
    assert sum("long" in {name for name, _, _ in step} for step in stage.aside) == 10
    stage.run()
    assert stage.transcript["long"].tokens == reference(long).tokens


def test_alone_a_prompt_is_computed_in_the_step_itself():
    stage = stage_of(piece=4)
    stage.submit(Request("long", prompt(41, 1), limits=Limits(1)))
    stage.step()
    assert stage.batches == [[("long", 0, 41)]] and stage.aside == [[]]


def test_what_was_begun_is_ended_at_once_where_nothing_decodes_any_more():
    stage = stage_of(piece=1)
    started(stage, talker())
    stage.submit(Request("long", prompt(41, 1), limits=Limits(1)))
    stage.step()
    stage.step()
    stage.abort("talker")
    stage.step()
    assert stage.batches[-1] == [] and stage.aside[-1] == [("long", 0, 16)]
    stage.step()
    assert stage.batches[-1] == [("long", 16, 25)] and stage.aside[-1] == []


def test_a_chunk_is_given_up_when_one_in_it_leaves_and_the_others_begin_again():
    stage = stage_of(piece=1)
    started(stage, talker())
    first, second = (Request("first", prompt(30, 1), limits=Limits(2)), Request("second", prompt(20, 2)))
    stage.submit(first, second)
    for _ in range(3):
        stage.step()
    assert {name for name, _, _ in stage.aside[-1]} == {"first", "second"}
    stage.abort("first")
    stage.step()
    assert stage.aside[-1] == [("second", 0, 16)]
    stage.run()
    assert stage.transcript["second"].tokens == reference(second).tokens


def test_who_is_in_a_hurry_takes_the_place_of_a_chunk_but_not_of_one_after_the_other():
    """Urgent prompts without end, beside an urgent row that decodes: the other prompt gets on all the same."""
    stage = stage_of(piece=2)
    started(stage, talker())
    slow = Request("slow", prompt(60, 1), limits=Limits(2), priority=1)
    stage.submit(slow)
    stage.step()
    assert stage.aside[-1] == [("slow", 0, 16)]
    stage.submit(Request("urgent0", prompt(20, 2), limits=Limits(1)))
    stage.step()
    assert stage.aside[-1][0][0] == "urgent0"
    seen = defaultdict(int)
    for number in range(1, 200):
        if not any(seq.request.id.startswith("urgent") for seq in (*stage.sched.running, *stage.sched.waiting)):
            stage.submit(Request(f"urgent{number}", prompt(20, number + 2), limits=Limits(1)))
        stage.step()
        seen["slow" if any(name == "slow" for name, _, _ in stage.aside[-1]) else "urgent"] += 1
        if stage.transcript["slow"].finished:
            break
    assert stage.transcript["slow"].finished and seen["urgent"] > 10


def test_less_urgent_rows_yield_and_what_they_had_aside_rests_and_goes_on():
    stage = stage_of(piece=2)
    started(stage, talker(priority=1))
    stage.submit(Request("slow", prompt(17, 1), limits=Limits(2), priority=1))
    for _ in range(2):
        stage.step()
    stage.submit(Request("urgent", prompt(50, 2), limits=Limits(1)))
    stage.step()
    assert stage.batches[-1] == [("urgent", 0, 50)] and stage.aside[-1] == []
    before = len(stage.aside)
    while any(name == "slow" for name, _, _ in (stage.step(), stage.aside[-1])[1]):
        pass
    assert len(stage.aside) - before == 7  # 16 positions, two a step, of which two steps were before
    assert positions(stage, "slow") == [(0, 16)]
