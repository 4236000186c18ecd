"""Requests that begin at once keep the loop from nothing else for long, and all are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from imp.http import turns as module
from imp.http.turns import TURN_S, Turns
from tests.http import test_server

BEGIN_S = TURN_S * 0.4  # what one takes here


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


async def counted(clock: Clock, count: int) -> tuple[list[int], list[int]]:
    """Of so many that come at once: the order in which they begin, and how many do so between two turns of the loop."""
    turns, order, at_once = Turns(), list[int](), [0]

    def begin(number: int) -> None:
        clock.now += BEGIN_S
        order.append(number)
        at_once[-1] += 1

    for number in range(count):
        if turns.has_time():
            begin(number)
        else:
            turns.later(lambda number=number: begin(number))
    while len(order) < count:
        at_once.append(0)
        await asyncio.sleep(0)
    for _ in range(2):
        await asyncio.sleep(0)
    assert turns.has_time()  # as if nothing had been
    return order, at_once


@pytest.mark.parametrize("count", [1, 2, 3, 4, 200])
def test_many_begin_in_several_turns_and_in_their_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    order, at_once = asyncio.run(counted(clock, count))
    assert order == list(range(count)) and max(at_once) == min(count, 3)


def test_one_that_fails_keeps_none_of_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, begun = Clock(), []
        monkeypatch.setattr(module, "time", clock)
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        turns = Turns()
        assert turns.has_time()
        clock.now += TURN_S
        assert not turns.has_time()
        turns.later(lambda: {}["nothing"])
        turns.later(lambda: begun.append(1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == [1] and [type(each) for each in failures] == [KeyError]

    asyncio.run(main())


@pytest.mark.parametrize("loop", test_server.LOOPS.values(), ids=test_server.LOOPS)
@pytest.mark.parametrize(
    "scene",
    [
        test_server.test_keep_alive_pipelining_and_errors_on_one_connection,
        test_server.test_one_byte_at_a_time,
        test_server.test_more_pipelined_requests_than_are_read_ahead,
        test_server.test_malformed_requests_get_the_envelope_and_a_closed_connection,
        test_server.test_100_continue_only_for_a_wanted_body,
        test_server.test_slow_requests_are_408_and_idle_connections_close,
        test_server.test_a_request_and_its_fin_together_leave_nothing_behind,
        test_server.test_get_is_answered_after_a_half_close,
        test_server.test_too_large_bodies_are_413_before_they_are_read,
        test_server.test_draining_finishes_what_runs_and_refuses_the_rest,
        test_server.test_what_is_unsent_survives_draining,
    ],
)
def test_connections_are_served_as_ever_where_whatever_comes_waits_for_a_turn(
    scene: Any, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_S", -1.0)
    scene(loop)
