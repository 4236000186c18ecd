"""Who is prepared next: the more urgent, those who have waited for long, and nobody while somebody more urgent waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from imp.http.precedence import AGE_S, Precedence
from tests.http.scripted import serving
from tests.http.wire import run

Order = list[tuple[int, int]]


class Clock:
    """The loop's time, which goes on by itself and where a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead_s = 0.0
        real = loop.time
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]


class Desk:
    """Prepares one at a time; notes whom. `open` lets all go."""

    def __init__(self, awaited: Callable[[int], bool] = lambda priority: False, places: int = 1) -> None:
        self.precedence = Precedence(places, awaited)
        self.open = asyncio.Event()
        self.order: Order = []
        self.within = self.most = 0

    async def work(self, priority: int, number: int) -> None:
        async with self.precedence.place(priority):
            self.order.append((priority, number))
            self.within += 1
            self.most = max(self.most, self.within)
            try:
                await self.open.wait()
                await asyncio.sleep(0)
            finally:
                self.within -= 1

    async def queue(self, *given: tuple[int, int]) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.work(*each)) for each in given]
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


def test_the_more_urgent_go_first_and_equals_as_they_came() -> None:
    async def test() -> None:
        desk = Desk()
        tasks = await desk.queue((0, 0), (10, 1), (10, 2), (3, 3), (-1, 4), (3, 5))
        desk.open.set()
        await asyncio.gather(*tasks)
        assert desk.order == [(0, 0), (-1, 4), (3, 3), (3, 5), (10, 1), (10, 2)]

    on_loop(test)


def test_no_more_are_prepared_than_there_are_places_whoever_leaves() -> None:
    async def test() -> None:
        rng = random.Random(5)
        desk = Desk(places=3)
        desk.open.set()
        for _ in range(40):
            tasks = [asyncio.create_task(desk.work(1, i)) for i in range(20)]
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            for each in rng.sample(tasks, 8):
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert desk.within == 0
        assert desk.most == 3
        desk.open.clear()
        desk.order.clear()
        tasks = await desk.queue(*[(1, i) for i in range(5)])
        assert len(desk.order) == 3  # every place has come back, and no more
        desk.open.set()
        await asyncio.gather(*tasks)

    on_loop(test)


def test_one_place_more_is_there_for_whoever_is_more_urgent_than_all_within() -> None:
    async def test() -> None:
        desk = Desk(places=2)
        tasks = await desk.queue((5, 0), (5, 1), (5, 2), (4, 3), (3, 4))
        assert desk.order == [(5, 0), (5, 1), (4, 3)]
        desk.open.set()
        await asyncio.gather(*tasks)
        assert desk.order == [(5, 0), (5, 1), (4, 3), (3, 4), (5, 2)] and desk.most == 3

    on_loop(test)


def test_half_a_second_makes_up_for_a_class() -> None:
    async def test() -> None:
        desk, clock = Desk(), Clock(asyncio.get_running_loop())
        tasks = await desk.queue((0, 0), (2, 1))
        clock.ahead_s = 1.9 * AGE_S
        tasks += await desk.queue((0, 2))
        clock.ahead_s = 2.1 * AGE_S
        tasks += await desk.queue((0, 3))
        desk.open.set()
        await asyncio.gather(*tasks)
        assert desk.order == [(0, 0), (0, 2), (2, 1), (0, 3)]

    on_loop(test)


def test_nobody_is_prepared_while_somebody_more_urgent_waits_for_a_first_token_but_not_for_ever() -> None:
    async def test() -> None:
        urgent: set[int] = {0}
        desk = Desk(lambda priority: any(each < priority for each in urgent), places=4)
        clock = Clock(asyncio.get_running_loop())
        tasks = await desk.queue((1, 1), (1, 2), (0, 3))
        assert desk.order == [(0, 3)]
        clock.ahead_s = 1.1 * AGE_S
        tasks += await desk.queue((1, 4))
        assert desk.order == [(0, 3), (1, 1), (1, 2)]  # they have waited long enough
        urgent.clear()
        while len(desk.order) < 4:
            await asyncio.sleep(0.005)
        desk.open.set()
        await asyncio.gather(*tasks)

    on_loop(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_an_urgent_request_is_prepared_before_a_crowd_that_came_before(path: str) -> None:
    async def main() -> None:
        async with serving(rows=8, blocks=2000) as server:
            order: list[int] = []
            opened = server.engine.open

            def opening(requests: Any) -> Any:
                order.append(requests[0].priority)
                return opened(requests)

            server.engine.open = opening  # type: ignore[method-assign]
            place = server.services.precedence.place
            busy = [place(0) for _ in range(server.services.prepare_threads)]
            for each in busy:
                await each.__aenter__()
            text: dict[str, Any] = {"prompt": "x"} if path == "/v1/completions" else {"input": "x"}
            if path == "/v1/chat/completions":
                text = {"messages": [{"role": "user", "content": "x"}]}
            bodies = [text | {"priority": priority} for priority in [9] * 40 + [0]]
            answers = [asyncio.create_task(server.post(path, **body)) for body in bodies]
            await server.until(lambda: len(server.services.precedence) == len(bodies), 30)
            for each in busy:
                await each.__aexit__(None, None, None)
            assert {answer.status_code for answer in await asyncio.gather(*answers)} == {200}
            assert sorted(order) == [0] + [9] * 40 and order.index(0) < 4

    run(main)
