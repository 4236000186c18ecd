"""What handlers may use: the loaded model and its engine by protocol, the preparation pool, the counters.

One instance, owned by the event loop. Handlers never see sockets, the scheduler or a backend.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, cast, runtime_checkable

from imp import __version__
from imp.chat.message import Refused
from imp.chat.prepare import ModelFacts, compile_constraint
from imp.http.errors import ApiError, bad_request, model_not_found, too_many, unavailable
from imp.http.message import HttpRequest
from imp.http.precedence import Precedence
from imp.http.seal import Seal
from imp.http.store import ResponseStore
from imp.obs.log import Once
from imp.obs.metrics import Metrics
from imp.obs.record import RequestRecord
from imp.spare_time import SpareTime
from imp.types import ConstraintSpec, Event, Failed, Finished, Request

LONG_BODY = 1 << 15  # bytes of JSON: reading so many takes about a millisecond, of numbers; of text a third of it
COMPILERS = 4  # threads: one that is made to wait must not keep short work from being done


class State(Enum):
    """Where the server is in its life; /ready gives the word as its code."""

    NO_MODEL = "no_model"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    SWAPPING = "swapping"
    SUSPENDED = "suspended"


class Generation(Protocol):
    """Events of some requests, as lists of all that came since the last look; leaving early aborts them."""

    ends: list[Finished | Failed]  # exact once `when_over` has called back, also for those that left early

    def when_over(self, callback: Callable[[], None]) -> None: ...
    def expire_after(self, seconds: float) -> None: ...
    def __aiter__(self) -> AsyncIterator[list[Event]]: ...
    async def aclose(self) -> None: ...


class EngineLike(Protocol):
    stats: Any  # sched.stats.Stats: the last step's snapshot
    faulted: bool
    queued_tokens: int  # prompt tokens of requests that wait for their first step

    @property
    def heartbeat(self) -> float: ...
    def ahead(self, priority: int) -> int: ...
    def awaited(self, priority: int) -> bool: ...
    def open(self, requests: Sequence[Request]) -> Generation: ...
    async def abort(self, request_ids: Sequence[str]) -> list[str]: ...
    async def reset_prefix_cache(self) -> bool: ...


class ResidentLike(Protocol):
    """resident.Resident: it changes which model is loaded."""

    async def bring(self, model: str | None) -> None: ...
    async def suspend(self) -> dict[str, Any]: ...
    async def resume(self) -> dict[str, Any]: ...
    async def load_adapter(self, name: str, path: str) -> Any: ...
    async def unload_adapter(self, name: str) -> None: ...


class Loaded(Protocol):
    """bundle.Bundle, as far as handlers may look. What is typed Any here is read by name alone."""

    @property
    def card(self) -> Any: ...
    @property
    def facts(self) -> ModelFacts: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def backend(self) -> Any: ...
    @property
    def memory(self) -> Any: ...
    @property
    def adapters(self) -> Any: ...
    def adapted(self, name: str) -> Loaded | None:
        """As requests see it that name this adapter; None where there is none of that name."""


@dataclass(frozen=True, eq=False, slots=True)
class Lease:
    """One request's hold on the model it was prepared for: neither leaves while it runs."""

    loaded: Loaded
    engine: EngineLike


@runtime_checkable
class EndsThinking(Protocol):
    """A constraint of a request that may think (constrain.thinking)."""

    def end(self) -> int:
        """End it; how many sequences were at it."""


@dataclass(frozen=True, eq=False, slots=True)
class Generating:
    """One HTTP request that occupies the engine, by the names it can be cancelled with."""

    response_id: str  # "chatcmpl-..."
    request_id: str  # X-Request-Id, which a client may use several times
    engine_ids: tuple[str, ...]
    thinking: tuple[EndsThinking, ...] = ()  # that can be ended


@dataclass(slots=True)
class Services:
    pool: Executor
    metrics: Metrics
    sinks: tuple[Callable[[RequestRecord], None], ...] = ()  # of records, besides the metrics; they must not block
    keeps_bodies: bool = False  # records carry request and response, because a request log wants them
    traces: bool = False  # spans are exported
    compilers: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(COMPILERS, "compile")
    )  # a schema may take seconds
    spare_time: SpareTime = field(init=False)  # of what they do
    precedence: Precedence = field(init=False)  # in the pool
    lenient_names: bool = False
    max_batch_items: int = 512
    max_concurrent: int = 64
    max_queued_tokens: int = 0  # 0: no limit
    prepare_threads: int = 2
    request_timeout_s: float = 300.0
    ping_s: float = 15.0
    agent_scan_limit: int = 256  # characters of a line that is left out of agents' system prompts
    stall_s: float = 60.0  # an engine that finishes no step for so long is not ready
    state: State = State.NO_MODEL
    loaded: Loaded | None = None
    engine: EngineLike | None = None
    other_models: Callable[[], list[str]] = list  # names in the models dir
    resident: ResidentLike | None = None  # None: the model stays
    leases: set[Lease] = field(default_factory=set)
    released: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever a lease ends
    said: Once = field(default_factory=Once)  # what of the ignored fields and betas was logged
    generating: set[Generating] = field(default_factory=set)
    responses: ResponseStore = field(default_factory=ResponseStore)
    seal: Seal = field(default_factory=Seal)
    background: set[asyncio.Task[None]] = field(default_factory=set)  # generations nobody's connection waits for
    socket_limit_s: float = 3600.0  # a WebSocket lives so long

    def __post_init__(self) -> None:
        self.spare_time = SpareTime(self.streams)
        self.precedence = Precedence(self.prepare_threads, self._awaited)

    def streams(self) -> bool:
        """Whether anything is being computed, for somebody who waits for its next token."""
        return self.engine is not None and self.engine.stats.running > 0

    def _awaited(self, priority: int) -> bool:
        """Whether a request more urgent than this waits for its first token."""
        return self.engine is not None and self.engine.awaited(priority)

    def serving(self, model: str | None, lora: str | None = None) -> Loaded:
        """The model for a request that names `model`, which may be an adapter, or an adapter of it. ApiError 400, 404
        or 503."""
        loaded = self.loaded
        if loaded is None or self.engine is None:
            code = self.state.value
            raise unavailable(code, _REASONS.get(self.state, "The server is not ready."), retry_after_s=2)
        if model not in (None, loaded.card.name, lora):
            if lora is None and (adapted := loaded.adapted(model)) is not None:
                return adapted
            if not self.lenient_names:
                raise model_not_found(model)
        if lora is None:
            return loaded
        if (adapted := loaded.adapted(lora)) is None:
            raise bad_request("lora", f'"lora": no adapter of the name {lora[:100]!r} is loaded.', "lora_not_found")
        return adapted

    async def lease(self, model: str | None, lora: str | None = None) -> Lease:
        """The model for a generation, loaded where it is another one of the models dir; end it with `release`.

        ApiError 400, 404 or 503.
        """
        if self.resident is not None:
            await self.resident.bring(None if model == lora else model)
        if self.state is State.SUSPENDED:  # or about to be
            raise unavailable(self.state.value, _REASONS[self.state], retry_after_s=5)
        lease = Lease(self.serving(model, lora), cast(EngineLike, self.engine))
        self.leases.add(lease)
        return lease

    def release(self, lease: Lease) -> None:
        self.leases.discard(lease)
        self.released.set()

    async def unleased(self, timeout_s: float, name: str | None = None) -> bool:
        """Wait until no generation holds the model, or its adapter of this name; False: some still do."""
        deadline = time.monotonic() + timeout_s
        while self._held(name):
            self.released.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self.released.wait()
            except TimeoutError:
                return not self._held(name)
        return True

    def _held(self, name: str | None) -> bool:
        return any(name is None or lease.loaded.card.name == name for lease in self.leases)

    def observe(self, record: RequestRecord) -> None:
        """One request has ended: every sink gets its record."""
        self.metrics.observe(record)
        for sink in self.sinks:
            sink(record)

    def make_room(self, requests: Sequence[Request]) -> None:
        """ApiError 429 where the prompts of these are too much beside those that wait; nothing is where none do."""
        waiting = self.engine.queued_tokens if self.engine is not None and self.max_queued_tokens else 0
        if waiting and waiting + sum(len(request.prompt) for request in requests) > self.max_queued_tokens:
            message = f"{waiting} prompt tokens are waiting already, of {self.max_queued_tokens}; retry later."
            raise too_many("queue_full", message, 2)

    @contextmanager
    def entered(self, response_id: str, request_id: str, requests: Sequence[Request]) -> Iterator[None]:
        """Inside, the request is among `generating`."""
        constraints: list[Any] = [each.constraint for each in requests]
        thinking = tuple(each for each in constraints if isinstance(each, EndsThinking))
        one = Generating(response_id, request_id, tuple(each.id for each in requests), thinking)
        self.generating.add(one)
        try:
            yield
        finally:
            self.generating.discard(one)

    async def settled(self, timeout_s: float) -> bool:
        """Wait for what runs in the background; True where nothing does any more."""
        if self.background:
            await asyncio.wait(self.background, timeout=timeout_s)
        return not self.background

    async def read[T](self, request: HttpRequest, read: Callable[[dict[str, Any]], T]) -> T:
        """What `read`, a pure function, makes of the body; of a long one in the pool. Raises what these do."""
        if len(request.body) <= LONG_BODY:
            return read(request.json())
        return await self._work(self.pool, lambda: read(request.json()))

    async def prepare[T](self, work: Callable[[], T], priority: int | None = None) -> T:
        """Run a pure function in the pool, when it is the turn of a request of this priority; what it refuses becomes a
        400."""
        async with self.precedence.place(priority or 0):
            return await self._work(self.pool, work)

    async def constrained(
        self, requests: Sequence[Request], spec: ConstraintSpec | None, facts: ModelFacts
    ) -> list[Request]:
        """The requests with what their output must be. A spec seen before costs a look-up; ApiError 400."""
        if spec is None:
            return list(requests)
        grammar = facts.constraints.cached(spec) if facts.constraints else None
        if grammar is None:
            left = threading.Event()
            try:
                rest = self.spare_time.job(left.is_set).rest
                grammar = await self._work(self.compilers, lambda: compile_constraint(spec, facts, left.is_set, rest))
            except BaseException:
                left.set()  # nobody waits for it any more
                raise
        return [replace(request, constraint=grammar) for request in requests]

    async def _work[T](self, pool: Executor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except Refused as error:
            raise ApiError(error.status, error.code or "invalid_value", error.message, error.param) from None

    @property
    def stalled(self) -> bool:
        """Work is there, and no step has ended for long."""
        return self.engine is not None and time.monotonic() - self.engine.heartbeat > self.stall_s

    @property
    def fingerprint(self) -> str:
        return f"imp-{__version__}"


_REASONS = {
    State.NO_MODEL: "No model is loaded.",
    State.LOADING: "The model is still loading.",
    State.DRAINING: "The server is shutting down.",
    State.SWAPPING: "Another model is being loaded.",
    State.SUSPENDED: "The model is suspended; POST /admin/resume brings it back.",
}
