"""The engine thread: the only place where the scheduler and the runner are touched.

Other threads send it letters (functions) and it runs them between two steps, so nothing in sched/ or model/ needs a
lock. Events go back to the event loop once per step, in one call, however many streams there are. Each attribute
below has one writer: the loop, or the engine thread; what the other side reads is frozen or a single value.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import TypeVar

from imp.sched.scheduler import Scheduler
from imp.sched.stats import Stats
from imp.types import Batch, DeviceLost, Event, Failed, Finished, Request, Runner, Started

log = logging.getLogger("imp.engine")

FAULT_AFTER = 3  # failed steps in a row
STEP_FAILED = "the engine failed while it computed this request"
FAULTED = "the engine is faulted: its last steps failed"
WAITED = "the request waited too long for its turn"
STOPPING = "the server is shutting down"

T = TypeVar("T")


class EngineStopped(RuntimeError):
    """The engine thread is gone, so nothing can be asked of it."""


class Generation:
    """The events of all sequences of some requests, in lists of everything that came since the last read.

    `async with engine.open(requests) as events: async for batch in events: ...`. It ends when every sequence of every
    request has Finished or its request Failed; leaving earlier aborts what is left. Belongs to the event loop, for one
    reader.

    ends: how the sequences ended, those included that were aborted because the reader left. What a request has used
    stands here and nowhere else, exact once `when_over` has called back.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._left = {request.id: request.n for request in requests}  # sequences that go on
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None  # the reader, where it waits
        self._clock: asyncio.TimerHandle | None = None
        self._expired = False
        self._closed = False
        self._on_over: Callable[[], None] | None = None
        self.ends: list[Finished | Failed] = []

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Event]:
        while not self._events:
            if self._closed or not self._left:
                raise StopAsyncIteration
            if self._expired:
                raise TimeoutError
            self._waiter = self._engine._loop.create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    async def aclose(self) -> None:
        """Abort what still runs; nothing is read any more. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._events = []
        if self._clock is not None:
            self._clock.cancel()
        self._wake()
        self._engine._leave(self, list(self._left))

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back once when every sequence has ended, which after `aclose` takes until the step in progress is over;
        at once where that is so already."""
        if self._left:
            self._on_over = callback
        else:
            callback()

    def expire_after(self, seconds: float) -> None:
        """From then on, reading past what has come raises TimeoutError. 0: never."""
        if seconds:
            self._clock = self._engine._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _put(self, event: Event) -> bool:
        """Take one event; True where the request it belongs to is over."""
        if not self._closed:
            self._events.append(event)
            self._wake()
        if not isinstance(event, Finished | Failed):
            return False
        self.ends.append(event)
        left = self._left
        if isinstance(event, Finished) and left[event.request] > 1:
            left[event.request] -= 1
            return False
        del left[event.request]
        if not left and self._on_over is not None:
            self._on_over()
        return True


class Engine:
    """Runs `scheduler` and `runner` on a thread of its own. Its methods are called on `loop`.

    stats: the scheduler's last snapshot.   faulted: several steps failed in a row.   Both may be read anywhere.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        loop: asyncio.AbstractEventLoop,
        queue_timeout_s: float = 0.0,
        watch: Callable[[str], None] | None = None,
    ) -> None:
        """queue_timeout_s: how long a request may wait for its first step; 0: no limit.  watch: told, on the engine
        thread, what part of a step begins; "" after the last."""
        self._watch = watch or _unwatched
        self._scheduler = scheduler
        self._runner = runner
        self._loop = loop
        self._queue_timeout_s = queue_timeout_s
        self._mail: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # None: stop
        if scheduler.below is not None:
            scheduler.below.connect(self._mail.put)
        # the loop's
        self._streams: dict[str, Generation] = {}  # by request id
        self._left: dict[str, Generation] = {}  # the same of those whose reader has left, until they have ended
        self._calls: set[asyncio.Future[object]] = set()
        # request id -> prompt tokens and priority, until its first step is known here
        self._waiting: dict[str, tuple[int, int]] = {}
        self.queued_tokens = 0  # the sum of these
        self._unheard: dict[str, int] = {}  # request id -> priority, until something of what it says is known here
        self._adapters: dict[str, int] = {}  # request id -> slot of its adapter, of those that have one
        self._streams_done = asyncio.Event()
        self._streams_done.set()
        self._refusal: tuple[str, str] | None = None  # code and message for whoever comes now
        self._stopped = False
        self._hurry = Flag()  # set by the loop: somebody has come who is more urgent than those aside in this step
        # the engine thread's
        self._aside: int | None = None  # the most urgent class of those aside in the step in progress
        self.stats: Stats = scheduler.snapshot()
        self.faulted = False
        self._failures = 0
        self._outbox: list[Event] = []
        self._idle = True
        self._last_step = time.monotonic()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- called on the event loop -----------------------------------------------------------------

    @property
    def heartbeat(self) -> float:
        """time.monotonic() of the last finished step; now, where there is nothing to do and the thread is well."""
        if self._idle and self._thread.is_alive():
            return time.monotonic()
        return self._last_step

    def ahead(self, priority: int) -> int:
        """Requests that wait for their first step and would be in front of one that comes now: those of its own and
        of more urgent classes. Shares of other owners may still bring it forward."""
        return sum(1 for _, other in self._waiting.values() if other <= priority)

    def awaited(self, priority: int) -> bool:
        """Whether a request of a more urgent class waits for its first token."""
        return any(other < priority for other in self._unheard.values())

    @property
    def adapters(self) -> tuple[set[int], set[int]]:
        """Slots of adapters: of requests that run, and of those that wait for their first step."""
        waiting = {slot for request_id, slot in self._adapters.items() if request_id in self._waiting}
        return {slot for request_id, slot in self._adapters.items() if request_id not in self._waiting}, waiting

    def open(self, requests: Sequence[Request]) -> Generation:
        """Send requests to the scheduler. Their ids must be new, or ValueError is raised.

        One that has not had its first step after `queue_timeout_s` fails with `queue_timeout`.
        """
        ids = {request.id for request in requests}
        if len(ids) < len(requests) or not (ids.isdisjoint(self._streams) and ids.isdisjoint(self._left)):
            raise ValueError("a request id is in use")
        generation = Generation(self, requests)
        if self._refusal is not None:
            code, message = self._refusal
            for request_id in ids:
                generation._put(Failed(request_id, code, message))
            return generation
        for request in requests:
            self._streams[request.id] = generation
            self._waiting[request.id] = len(request.prompt), request.priority
            self._unheard[request.id] = request.priority
            self.queued_tokens += len(request.prompt)
            if request.adapter is not None:
                self._adapters[request.id] = request.adapter
        self._streams_done.clear()
        if self._queue_timeout_s:
            self._loop.call_later(self._queue_timeout_s, self._expire, generation, tuple(ids))
        letter = tuple(requests)
        self._mail.put(lambda: self._submit(letter))
        aside = self._aside
        if aside is not None and any(request.priority < aside for request in requests):
            self._hurry.set()
        return generation

    async def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` on the engine thread between two steps and return or raise what it does. Raises EngineStopped."""
        if self._stopped:
            raise EngineStopped(STOPPING)
        done: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(done)  # type: ignore[arg-type]
        done.add_done_callback(self._calls.discard)  # type: ignore[arg-type]

        def answer(result: T | None, error: Exception | None) -> None:
            if done.done():  # nobody waits any more
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def letter() -> None:
            try:
                result = fn()
            except Exception as error:
                self._post(answer, None, error)
            else:
                self._post(answer, result, None)

        self._mail.put(letter)
        return await done

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End these requests; their readers get Finished with Reason.ABORT. Returns those that were still live.

        Raises EngineStopped.
        """
        return await self.call(partial(self._abort, tuple(request_ids)))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts; False, and nothing is done, while a sequence runs. Raises EngineStopped."""
        return await self.call(self._scheduler.reset_prefix_cache)

    async def resume(self) -> None:
        """Take requests again after a fault."""
        await self.call(self._clear_fault)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait until all that run have ended. False: some still run after `timeout_s`."""
        if self._refusal is None:
            self._refusal = ("draining", STOPPING)
        if self._streams_done.is_set():
            return True
        try:
            await asyncio.wait_for(self._streams_done.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the thread after the step it is in; what still runs fails with `draining`."""
        if self._refusal is None:
            self._refusal = ("draining", STOPPING)
        if not self._stopped:
            self._stopped = True
            self._mail.put(None)
        await asyncio.to_thread(self._thread.join)

    def _leave(self, generation: Generation, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._forget(request_id)
            self._left[request_id] = generation
        if request_ids and not self._stopped:
            self._mail.put(partial(self._abort, request_ids))

    def _expire(self, generation: Generation, request_ids: tuple[str, ...]) -> None:
        """End those of a generation's requests that still wait for their first step."""
        late = [each for each in request_ids if each in self._waiting and self._streams.get(each) is generation]
        if late and not self._stopped:
            self._mail.put(partial(self._give_up, late))

    def _no_longer_waits(self, request_id: str) -> None:
        tokens, _ = self._waiting.pop(request_id, (0, 0))
        self.queued_tokens -= tokens

    def _forget(self, request_id: str) -> None:
        self._no_longer_waits(request_id)
        self._unheard.pop(request_id, None)
        self._streams.pop(request_id, None)
        self._adapters.pop(request_id, None)
        if not self._streams:
            self._streams_done.set()

    def _deliver(self, events: list[Event]) -> None:
        streams, left, waiting, unheard = self._streams, self._left, self._waiting, self._unheard
        for event in events:
            if event.request in unheard and not isinstance(event, Started):
                del unheard[event.request]
            if event.request in waiting:
                self._no_longer_waits(event.request)
            stream = streams.get(event.request)
            if stream is None:
                stream = left[event.request]
                if stream._put(event):
                    del left[event.request]
            elif stream._put(event):
                self._forget(event.request)

    def _mourn(self, code: str, message: str) -> None:
        """The thread has ended: whoever still waits for it is told."""
        self._stopped = True
        self._refusal = (code, message)
        self._deliver([Failed(request_id, code, message) for request_id in (*self._streams, *self._left)])
        for call in list(self._calls):
            if not call.done():
                call.set_exception(EngineStopped(message))

    # -- the engine thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._read_mail():
                self._turn()
            self._outbox += self._scheduler.fail_all("draining", STOPPING)
            self._send()
        except BaseException:
            # not a failed step (those are answered) but a broken scheduler: nothing it says can be trusted now
            log.critical("the engine thread ends: its state is inconsistent", exc_info=True)
            if self._scheduler.below is not None:
                self._scheduler.below.distrust()
            self.faulted = True
            self._post(self._mourn, "engine_faulted", FAULTED)
            return
        self._post(self._mourn, "draining", STOPPING)

    def _read_mail(self) -> bool:
        """Run all letters; with nothing else to do, sleep until there is one. False: it is time to stop."""
        mail = self._mail
        self._hurry.clear()
        while self._idle or not mail.empty():
            letter = mail.get()
            self._last_step = time.monotonic()
            self._idle = False
            if letter is None:
                return False
            letter()
        return True

    def _turn(self) -> None:
        """At most one step; its events and those of the letters before it are sent together."""
        scheduler = self._scheduler
        self._watch("plan")
        batch = scheduler.plan(time.monotonic())
        if batch is not None:
            self._step(batch)
        self._watch("deliver")
        self._send()
        self._watch("")
        self._last_step = time.monotonic()
        self._idle = batch is None

    def _step(self, batch: Batch) -> None:
        scheduler = self._scheduler
        batch.hurried = self._hurry.is_set
        self._aside = min((row.seq.request.priority for row in batch.aside), default=None)
        try:
            self._watch("forward")
            results = self._runner.step(batch)
            self._watch("apply")
            events = scheduler.apply(batch, results, time.monotonic())
        except DeviceLost:
            log.critical("the device is lost: only a restart helps", exc_info=True)
            events = scheduler.fail_all("engine_faulted", FAULTED)
            self.faulted = True
        except Exception:
            log.exception("a step of %d rows failed", len(batch.rows) + len(batch.aside))
            events = scheduler.fail(batch, "engine_step_failed", STEP_FAILED)
            scheduler.check()
            self._failures += 1
            self.faulted = self._failures >= FAULT_AFTER
        else:
            self._failures = 0
            self.faulted = False
        self._outbox += events

    def _send(self) -> None:
        self.stats = self._scheduler.snapshot()
        if self._outbox:
            events, self._outbox = self._outbox, []
            self._post(self._deliver, events)

    def _submit(self, requests: tuple[Request, ...]) -> None:
        for request in requests:
            if self.faulted:
                self._outbox.append(Failed(request.id, "engine_faulted", FAULTED))
                continue
            try:
                self._outbox += self._scheduler.submit(request, time.monotonic())
            except Exception:
                log.exception("request %s cannot be queued", request.id)
                self._outbox.append(Failed(request.id, "engine_step_failed", STEP_FAILED))

    def _abort(self, request_ids: Sequence[str]) -> list[str]:
        live = []
        for request_id in request_ids:
            if events := self._scheduler.abort(request_id):
                live.append(request_id)
                self._outbox += events
        return live

    def _give_up(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._outbox += self._scheduler.give_up(request_id, "queue_timeout", WAITED)

    def _clear_fault(self) -> None:
        self._failures = 0
        self.faulted = False

    def _post(self, fn: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, *values)
        except RuntimeError:
            # the loop was closed without stop(): nobody is left to hear it
            log.warning("the event loop is closed; events of the engine are lost")


def _unwatched(part: str) -> None: ...
