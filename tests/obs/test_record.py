"""How the ends of sequences become one account of a request. Numbers worked by hand."""

from __future__ import annotations

import pytest

from imp.obs.record import mean_gap_s, merged, reasoning_exhausted, used
from imp.types import Failed, Finished, Marks, Reason, Usage


def finished(request: str, index: int, usage: Usage, marks: Marks, reason: Reason = Reason.STOP) -> Finished:
    return Finished(request, index, reason, None, usage, marks)


ENDS = [
    finished("a", 1, Usage(10, 10, 4), Marks(1.0, 2.5, 3.5, 6.5)),  # a sibling: all of its prompt was there already
    finished("a", 0, Usage(10, 2, 3), Marks(1.0, 2.0, 3.0, 5.0)),
    Failed("b", "engine_step_failed", "it broke", Usage(7, 1, 2), Marks(1.0, 4.0, 5.0, 5.5)),
    finished("c", 0, Usage(5, 0, 0), Marks(1.0), Reason.ABORT),  # left while it waited
]


def test_prompts_count_once_and_only_where_they_were_begun() -> None:
    assert used(ENDS) == Usage(prompt=17, cached=3, generated=9)
    assert used([]) == Usage()


def test_a_failure_after_the_leader_ended_does_not_count_the_prompt_again() -> None:
    leader = finished("a", 0, Usage(10, 2, 3), Marks(1.0, 2.0, 3.0, 5.0))
    rest = Failed("a", "engine_step_failed", "it broke", Usage(10, 10, 4), Marks(1.0, 2.5, 3.5, 6.0))
    for ends in ([leader, rest], [rest, leader]):
        assert used(ends).prompt == 10 and used(ends).generated == 7


def test_the_earliest_begin_and_the_latest_end_count() -> None:
    assert merged(ENDS) == Marks(scheduled=2.0, first_token=3.0, last_token=6.5)
    assert merged(ENDS[3:]) == Marks()


def test_the_mean_gap_is_over_all_gaps() -> None:
    assert mean_gap_s(ENDS) == pytest.approx((3.0 + 2.0) / (3 + 2))
    assert mean_gap_s(ENDS[3:]) is None
    assert mean_gap_s([finished("a", 0, Usage(1, 0, 1), Marks(1, 2, 3, 3))]) is None


@pytest.mark.parametrize(
    "reason, generated, reasoning, exhausted",
    [
        (Reason.LENGTH, 8, 8, True),
        (Reason.LENGTH, 8, 7, False),
        (Reason.STOP, 8, 8, False),
        (Reason.ABORT, 8, 8, False),
        (Reason.LENGTH, 0, 0, False),
    ],
)
def test_reasoning_that_used_the_length_up(reason: Reason, generated: int, reasoning: int, exhausted: bool) -> None:
    end = finished("a", 0, Usage(3, 0, generated, reasoning=reasoning), Marks(), reason)
    assert reasoning_exhausted([ENDS[1], end]) is exhausted
