"""The engine thread: streams, leaving early, failed steps, calls, draining and stopping."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from imp.engine import Engine, EngineStopped, Generation
from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.types import Batch, Delta, DeviceLost, Event, Failed, Finished, Limits, Reason, Request, RowResult, Started
from tests.toys import EOS, ToyDecoder, ToyRunner, Transcript, reference

STOP = frozenset({EOS})
FOREVER = Limits(1_000_000_000)


class GatedRunner(ToyRunner):
    """Waits for a permit before every step, so that a test knows what happens between which steps."""

    def __init__(self, blocks: int, size: int) -> None:
        super().__init__(blocks, size)
        self.permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def step(self, batch: Batch) -> list[RowResult]:
        self.entered.release()
        self.permits.acquire()
        return super().step(batch)

    async def enter(self) -> None:
        """Until the engine is inside a step."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=10)


class Aware(GatedRunner):
    """Knows what it computes."""

    batch = Batch([])

    def step(self, batch: Batch) -> list[RowResult]:
        self.batch = batch
        return super().step(batch)


def make(
    runner: ToyRunner | None = None, max_rows: int = 4, context: int = 2000
) -> tuple[Engine, Scheduler, ToyRunner]:
    runner = runner or ToyRunner(1000, 4)
    scheduler = Scheduler(
        BlockPool(1000, 4),
        context=context,
        max_rows=max_rows,
        max_tokens=32,
        max_logit_rows=32,
        new_decoder=ToyDecoder,
        eos_ids=STOP,
    )
    return Engine(scheduler, runner, asyncio.get_running_loop()), scheduler, runner


class SlowRunner(ToyRunner):
    """Fills its 4000 cells in 20 seconds: within a test's time it never gets there."""

    def step(self, batch: Batch) -> list[RowResult]:
        time.sleep(0.005)
        return super().step(batch)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 30)

    asyncio.run(limited())


async def read(generation: Generation) -> Transcript:
    transcript = Transcript()
    async with generation as events:
        async for batch in events:
            transcript.add(batch)
    return transcript


def test_requests_are_answered_side_by_side():
    async def test() -> None:
        engine, _, _ = make()
        requests = [
            Request(f"r{i}", tuple(range(i + 1)), n=1 + i % 2, limits=Limits(30, stop_ids=STOP)) for i in range(9)
        ]
        transcripts = await asyncio.gather(*[read(engine.open([request])) for request in requests])
        for request, transcript in zip(requests, transcripts, strict=True):
            for i in range(request.n):
                assert transcript[request.id, i].essence == reference(request, i).essence
        await engine.call(engine._scheduler.check)
        assert engine.stats.running == engine.stats.waiting == engine.stats.blocks_used == 0
        await engine.stop()

    run(test)


def test_one_stream_carries_all_sequences_of_several_requests():
    async def test() -> None:
        engine, _, _ = make()
        requests = [Request("a", (1, 2), n=2, limits=Limits(9)), Request("b", (3,), limits=Limits(20))]
        transcript = await read(engine.open([*requests, Request("c", tuple(range(256)) * 8)]))
        for request, index in [(requests[0], 0), (requests[0], 1), (requests[1], 0)]:
            assert transcript[request.id, index].essence == reference(request, index).essence
        assert transcript.failed["c"].code == "context_length_exceeded"
        await engine.stop()

    run(test)


def test_a_slow_reader_gets_everything_in_one_list():
    async def test() -> None:
        engine, _, _ = make()
        generation = engine.open([Request("a", (1, 2, 3), limits=Limits(40))])
        while generation._left:
            await asyncio.sleep(0)  # the engine runs ahead, nobody reads
        events = await anext(generation)
        assert isinstance(events[-1], Finished) and sum(isinstance(e, Delta) for e in events) > 5
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        await engine.stop()

    run(test)


# G01-06
@pytest.mark.parametrize("steps", [0, 2, 70])  # in the queue, in a prompt of 64 chunks, while decoding
def test_leaving_early_frees_the_slot_within_one_step(steps):
    async def test() -> None:
        engine, scheduler, runner = make(GatedRunner(1000, 4), max_rows=1)
        blocker = engine.open([Request("blocker", (9,), limits=FOREVER)] if steps == 0 else [])
        generation = engine.open([Request("gone", tuple(range(256)) * 7, limits=FOREVER)])
        for _ in range(steps):
            await runner.enter()
            runner.permits.release()
        await runner.enter()
        await generation.aclose()  # while a step is computed
        await generation.aclose()
        await blocker.aclose()
        after = engine.open([Request("next", (5, 6), limits=Limits(1))])
        runner.permits.release()  # that step ends
        await runner.enter()  # and the next one is the newcomer's
        running = [seq.request.id for seq in scheduler.running]
        assert running == ["next"]
        if steps == 0:
            assert engine.stats.positions <= 1 + 1  # the one that left was never computed
        runner.permits.release()
        assert (await read(after))["next"].finished.reason is Reason.LENGTH
        assert engine.stats.aborted == (2 if steps == 0 else 1)
        await engine.stop()

    run(test)


def test_breaking_out_of_the_loop_aborts():
    async def test() -> None:
        engine, _, _ = make()
        async with engine.open([Request("a", (1,), limits=FOREVER)]) as events:
            async for _ in events:
                break
        assert await engine.call(lambda: engine._scheduler.snapshot().blocks_used) == 0
        assert await engine.drain(0)
        await engine.stop()

    run(test)


def test_a_cancelled_reader_aborts():
    async def test() -> None:
        engine, _, runner = make(GatedRunner(1000, 4))
        task = asyncio.create_task(read(engine.open([Request("a", (1,), limits=FOREVER)])))
        await runner.enter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        runner.permits.release()
        assert await engine.call(lambda: engine._scheduler.snapshot().running) == 0
        await engine.stop()

    run(test)


def test_a_failed_step_fails_its_requests_and_the_next_ones_work(caplog):
    async def test() -> None:
        engine, _, runner = make(max_rows=2)
        runner.fails = lambda batch: any(row.seq.request.id == "bad" for row in batch.rows)
        bad = engine.open([Request("bad", (1, 2, 3), n=2)])
        failed = (await read(bad)).failed["bad"]
        assert failed.code == "engine_step_failed" and "secret" not in failed.message
        assert not engine.faulted
        request = Request("good", (1, 2, 3), limits=Limits(9))
        assert (await read(engine.open([request])))["good"].essence == reference(request).essence
        assert engine.stats.blocks_used == 0
        await engine.stop()

    run(test)
    assert "/a/secret/path" in caplog.text and "Traceback" in caplog.text


def test_a_lost_device_ends_everything_at_once():
    async def test() -> None:
        engine, _, runner = make(max_rows=1)

        def lose(batch: Batch) -> bool:
            raise DeviceLost("an address of the device")

        waiting = asyncio.create_task(read(engine.open([Request("a", (1,), limits=FOREVER), Request("b", (2,))])))
        runner.fails = lose
        failed = (await waiting).failed
        assert {failed[name].code for name in ("a", "b")} == {"engine_faulted"}, "the one that waits fails too"
        assert "address" not in failed["a"].message
        assert engine.faulted and engine.stats.blocks_used == 0
        await engine.stop()

    run(test)


def test_three_failed_steps_in_a_row_are_a_fault_until_the_engine_is_resumed():
    async def test() -> None:
        engine, _, runner = make()
        runner.fails = lambda batch: True
        for i in range(3):
            assert not engine.faulted
            assert (await read(engine.open([Request(f"r{i}", (1,))]))).failed[f"r{i}"].code == "engine_step_failed"
        assert engine.faulted
        steps = runner.steps
        assert (await read(engine.open([Request("x", (1,))]))).failed["x"].code == "engine_faulted"
        assert runner.steps == steps
        runner.fails = lambda batch: False
        await engine.resume()
        assert not engine.faulted
        assert (await read(engine.open([Request("y", (1,), limits=Limits(2))])))["y"].finished
        await engine.stop()

    run(test)


def test_a_step_that_works_ends_the_row_of_failures():
    async def test() -> None:
        engine, _, runner = make()
        for i in range(8):
            runner.fails = lambda batch, fails=i % 3 != 2: fails
            await read(engine.open([Request(f"r{i}", (1,), limits=Limits(1))]))
            assert not engine.faulted
        await engine.stop()

    run(test)


def test_calls_run_between_steps_and_hand_back_results_and_errors():
    async def test() -> None:
        engine, scheduler, _ = make(SlowRunner(1000, 4), context=1_000_000)
        async with engine.open([Request("a", (1,), limits=FOREVER)]) as events:
            await anext(events)
            assert await engine.call(lambda: (threading.current_thread().name, scheduler.pool.count)) == (
                "engine",
                1000,
            )
            with pytest.raises(ZeroDivisionError):
                await engine.call(lambda: 1 // 0)
            assert await anext(events)
        await engine.stop()
        with pytest.raises(EngineStopped):
            await engine.call(lambda: 1)

    run(test)


def test_stats_and_heartbeat_are_read_without_waiting_for_a_step():
    async def test() -> None:
        engine, _, runner = make(GatedRunner(1000, 4))
        assert engine.heartbeat == pytest.approx(time.monotonic(), abs=1)
        generation = engine.open([Request("a", (1, 2, 3), limits=Limits(2))])
        await runner.enter()
        stuck = engine.heartbeat
        assert engine.stats.steps == 0 and stuck == engine.heartbeat <= time.monotonic()
        runner.permits.release()
        await runner.enter()
        assert engine.stats.steps == 1 and engine.stats.running == 1 and engine.heartbeat > stuck
        runner.permits.release()
        await read(generation)
        await engine.call(lambda: None)
        assert engine.stats.running == 0
        await engine.stop()

    run(test)


def test_draining_finishes_what_runs_and_refuses_what_comes():
    async def test() -> None:
        engine, _, _ = make()
        running = asyncio.create_task(read(engine.open([Request("a", (1,), limits=Limits(50))])))
        await asyncio.sleep(0)
        drained = asyncio.create_task(engine.drain(10))
        await asyncio.sleep(0)
        assert (await read(engine.open([Request("late", (1,))]))).failed["late"].code == "draining"
        assert await drained and (await running)["a"].finished.usage.generated == 50
        await engine.stop()

    run(test)


def test_draining_has_an_end_and_stopping_fails_what_is_left():
    async def test() -> None:
        engine, scheduler, _ = make(SlowRunner(1000, 4), context=1_000_000)
        task = asyncio.create_task(read(engine.open([Request("a", (1,), limits=FOREVER)])))
        await asyncio.sleep(0)
        assert not await engine.drain(0.01)
        await engine.stop()
        await engine.stop()
        assert (await task).failed["a"].code == "draining"
        scheduler.check()
        assert not scheduler.running

    run(test)


def test_a_broken_scheduler_ends_the_thread_loudly_and_nobody_waits_for_ever(caplog):
    async def test() -> None:
        engine, scheduler, _ = make()

        def break_it() -> None:
            scheduler.pool.refs[0] += 1
            scheduler.plan = None  # type: ignore[method-assign,assignment]

        task = asyncio.create_task(read(engine.open([Request("a", (1,), limits=FOREVER)])))
        await asyncio.sleep(0)
        await engine.call(break_it)
        assert (await task).failed["a"].code == "engine_faulted"
        assert engine.faulted
        assert (await read(engine.open([Request("b", (1,))]))).failed["b"].code == "engine_faulted"
        with pytest.raises(EngineStopped):
            await engine.call(lambda: 1)
        await engine.stop()

    run(test)
    assert "inconsistent" in caplog.text and "Traceback" in caplog.text


def test_an_id_may_not_be_used_twice_at_once():
    async def test() -> None:
        engine, _, _ = make()
        async with engine.open([Request("a", (1,), limits=FOREVER)]):
            with pytest.raises(ValueError, match="in use"):
                engine.open([Request("a", (1,))])
        with pytest.raises(ValueError, match="in use"):
            engine.open([Request("b", (1,)), Request("b", (1,))])
        await engine.stop()

    run(test)


def test_a_request_that_cannot_be_queued_fails_alone():
    class Broken:
        def start(self) -> None:
            raise MemoryError("no more states")

    async def test() -> None:
        engine, _, _ = make()
        transcript = await read(
            engine.open([Request("bad", (1,), constraint=Broken()), Request("good", (1,), limits=Limits(2))])  # type: ignore[arg-type]
        )
        assert transcript.failed["bad"].code == "engine_step_failed" and transcript["good"].finished
        await engine.stop()

    run(test)


def test_the_loop_is_woken_once_a_step_however_many_streams_there_are():
    async def test() -> None:
        engine, _, runner = make(GatedRunner(1000, 4))
        wakes: list[list[Event]] = []
        deliver = engine._deliver
        engine._deliver = lambda events: (wakes.append(events), deliver(events))[1]  # type: ignore[method-assign]
        tasks = [asyncio.create_task(read(engine.open([Request(f"r{i}", (i,), limits=Limits(3))]))) for i in range(4)]
        await asyncio.sleep(0)
        for _ in range(8):
            runner.permits.release()
        await asyncio.gather(*tasks)
        assert len(wakes) == runner.steps
        assert not any(isinstance(event, Failed) for events in wakes for event in events)
        await engine.stop()

    run(test)


def test_an_idle_engine_uses_no_processor_time():
    async def test() -> None:
        engine, _, _ = make()
        before = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - before < 0.1
        await engine.stop()

    interval = sys.getswitchinterval()
    run(test)
    assert sys.getswitchinterval() == interval


def test_what_is_aside_is_told_of_who_is_more_urgent_and_of_nobody_else():
    async def test() -> None:
        runner = Aware(1000, 4)
        scheduler = Scheduler(
            BlockPool(1000, 4),
            context=2000,
            max_rows=4,
            max_tokens=32,
            max_logit_rows=32,
            new_decoder=ToyDecoder,
            aside=Aside(64, 4),
        )
        engine = Engine(scheduler, runner, asyncio.get_running_loop())
        reading = [asyncio.create_task(read(engine.open([Request("talks", (1,), limits=Limits(400), priority=5)])))]
        reading.append(asyncio.create_task(read(engine.open([Request("long", tuple(range(250)), priority=5)]))))
        await runner.enter()
        while not runner.batch.aside:
            runner.permits.release()
            await runner.enter()
        batch = runner.batch
        for name, priority, hurried in [("equal", 5, False), ("idler", 6, False), ("urgent", 4, True)]:
            request = Request(name, (7, 8), limits=Limits(2), priority=priority)
            reading.append(asyncio.create_task(read(engine.open([request]))))
            await asyncio.sleep(0)
            assert batch.hurried() is hurried
        runner.permits.release()
        await runner.enter()
        assert runner.batch is not batch and not runner.batch.hurried()  # it has come in
        assert [row.seq.request.id for row in runner.batch.rows] == ["urgent"]
        runner.permits.release(10_000)
        await asyncio.gather(*reading)
        await engine.stop()

    run(test)


def test_a_first_token_is_awaited_until_it_is_there_or_never_will_be():
    async def test() -> None:
        engine, _, runner = make(GatedRunner(1000, 4))
        urgent = engine.open([Request("urgent", tuple(range(40)), limits=Limits(5), priority=3)])  # two steps of 32
        await runner.enter()
        assert engine.awaited(4) and not engine.awaited(3)
        runner.permits.release()
        assert isinstance((await anext(urgent))[0], Started)
        assert engine.awaited(4)
        runner.permits.release(8)
        assert isinstance((await anext(urgent))[0], Delta)
        assert not engine.awaited(4)
        leaves = engine.open([Request("leaves", (1, 2), limits=Limits(5), priority=3)])
        assert engine.awaited(4)
        await leaves.aclose()
        assert not engine.awaited(4)
        runner.permits.release(1000)
        assert isinstance((await anext(engine.open([Request("long", (1,) * 3000, priority=3)])))[0], Failed)
        assert not engine.awaited(4)
        await urgent.aclose()
        await engine.stop()

    run(test)
