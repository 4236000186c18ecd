"""Which model is in memory: loaded, swapped for another, given up for a while and taken back. Owned by the event loop.

One transition at a time, and everybody who wants the same one shares it. A transition begins when the requests that
run have ended, which those that wait for it may have to wait for; it never cuts one off. Requests that come meanwhile
wait, too, so that a busy model cannot keep another from its turn; all that wait for one model then run together.
When another model cannot be loaded the one before comes back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imp import models, readings
from imp.adapters import Adapters, LoadedAdapter
from imp.bundle import Bundle, DeviceError
from imp.encoder import EncoderGone
from imp.engine import Engine
from imp.http.errors import ApiError, bad_request, model_not_found, unavailable
from imp.http.services import Loaded, Services, State
from imp.memory import OutOfMemory
from imp.obs.metrics import Metrics
from imp.settings import Settings, named_paths
from imp.text.tokenizer import InvalidTokenizer, UnsupportedTokenizer
from imp.tiers.folder import FolderError
from imp.weights.checkpoint import InvalidModel, UnsupportedModel

log = logging.getLogger("imp.resident")

SUSPEND_DRAIN_S = 60.0
# A full collection walks these in 10 ms, in which nothing else can run. A load leaves a tenth of it, and a hundred
# thousand objects for ever where it had to compile: those are frozen, that is never walked again, once.
MANY_OBJECTS = 40_000
LOAD_ERRORS = (
    OutOfMemory,
    DeviceError,
    EncoderGone,
    FolderError,
    MemoryError,
    OSError,
    models.ModelError,
    InvalidModel,
    InvalidTokenizer,
    UnsupportedModel,
    UnsupportedTokenizer,
)

Load = Callable[[Path, Settings], Bundle]
Start = Callable[[Bundle], Engine]


class SwapError(Exception):
    """Another model could not be taken in; the message is for its clients."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that was loaded, and how to load it again."""

    path: Path
    settings: Settings  # those it was loaded with
    name: str


class Resident:
    """The loaded model and its engine, in `services` for all to see."""

    def __init__(self, settings: Settings, services: Services, metrics: Metrics, start: Start, load: Load) -> None:
        """start: makes the engine of a bundle.  load: reads a model; runs on a thread of its own."""
        self.settings, self.services, self.metrics = settings, services, metrics
        self.bundle: Bundle | None = None
        self.engine: Engine | None = None
        self.loads = 0
        self._start, self._load = start, load
        self._known: _Known | None = None
        self._changing = asyncio.Lock()  # held while adapters come or go
        self._transition: asyncio.Task[Any] | None = None
        self._target: str | None = None  # of a swap in progress

    # -- for whoever wants a model ------------------------------------------------------------------

    def others(self) -> list[str]:
        """Names in the models dir, besides the loaded one."""
        here = self._known.path if self._known else None
        found = models.list_models(self.settings.model.models_dir)
        return sorted(name for name, path in found.items() if path != here)

    async def bring(self, model: str | None) -> None:
        """Return when no transition is going on and, where `model` is another one of the models dir, that is loaded.

        ApiError 503 where it cannot be. Whatever else is wrong with the name or the state is the caller's to see.
        """
        while self.services.state in (State.READY, State.NO_MODEL, State.SWAPPING):
            transition, target = self._transition, self._target
            if transition is None:
                if model is None or not self._may_swap_to(model):
                    return
                self._begin(self._swap(model), State.SWAPPING, model)
                continue
            if model is not None and not self._exists(model):
                raise model_not_found(model)
            try:
                await asyncio.shield(transition)
            except SwapError as error:
                if target == model:
                    raise unavailable("swap_failed", str(error), retry_after_s=5) from None
            else:
                if model in (target, None) and self.bundle is not None:
                    return  # before the next one, which somebody may have asked for already, sees that nothing runs

    def _exists(self, model: str) -> bool:
        if self.settings.server.model_names == "lenient" or self._exists_as_model(model):
            return True
        return self._known is not None and model in named_paths(self._known.settings.model.lora)

    def _may_swap_to(self, model: str) -> bool:
        own, services = self.settings.server, self.services
        if not own.model_swap or own.model_names == "lenient" or services.state not in (State.READY, State.NO_MODEL):
            return False
        return (self._known is None or model != self._known.name) and model in self.others()

    # -- transitions --------------------------------------------------------------------------------

    def take(self, loaded: Bundle, path: Path, settings: Settings) -> None:
        """Serve this bundle from now on."""
        self.bundle, self.engine = loaded, self._start(loaded)
        self._known = _Known(path, settings, loaded.card.name)
        self.loads += 1
        readings.connect(self.metrics, self.engine, loaded.memory, loaded.card.name, loaded.adapters)
        readings.connect_device(self.metrics, loaded.device_memory)
        self.services.loaded, self.services.engine = loaded, self.engine
        self.services.state = State.READY
        if len(gc.get_objects()) > MANY_OBJECTS:
            gc.freeze()

    async def suspend(self) -> dict[str, Any]:
        """Give weights and cache back once nothing runs. ApiError 409 without a model, 503 where too much runs on."""
        if self.services.state is State.SUSPENDED and self._known is not None:
            return self._suspended() | {"note": "already suspended"}
        return await self._alone(self._suspend, State.SUSPENDED)

    async def resume(self) -> dict[str, Any]:
        """Load again what was suspended. ApiError 409 without a model, 503 where it cannot be."""
        if self.services.state is not State.SUSPENDED:
            if self.bundle is None:
                raise ApiError(409, "no_model", "There is no model to resume.")
            return {"suspended": False, "model": self.bundle.card.name, "resume_ms": 0, "note": "not suspended"}
        return await self._alone(self._resume, State.SUSPENDED)

    async def load_adapter(self, name: str, path: str) -> LoadedAdapter:
        """Let requests name this adapter from now on, also after a suspension. ApiError."""
        async with self._changing, self._held() as loaded:
            adapters, where = self._adapters(loaded), Path(path).expanduser().absolute()
            self._check_name(name, adapters)
            if not where.is_dir():
                raise ApiError(404, "adapter_not_found", f"There is no directory {path!r:.300}.", "path")
            try:
                adapter = await asyncio.to_thread(adapters.load, name, where)
            except (InvalidModel, UnsupportedModel) as error:
                code = "invalid_adapter" if isinstance(error, InvalidModel) else "unsupported_adapter"
                raise ApiError(400, code, f"{error}.", "path") from None
            except OutOfMemory as error:
                raise ApiError(507, "out_of_memory", f"{error}.") from None
            adapters.known[name] = adapter
            self._remember(adapters)
        log.info("adapter %s is loaded: rank %d, %.1f MiB", name, adapter.rank, adapter.size_bytes / 2**20)
        return adapter

    async def unload_adapter(self, name: str) -> None:
        """New requests do not find it any more; it leaves when those that have it have ended. ApiError 404, and 503
        where they take too long: then it stays."""
        async with self._changing, self._held() as loaded:
            adapters, drain_s = self._adapters(loaded), self.settings.server.model_swap_drain_ms / 1000
            adapter = adapters.known.pop(name, None)
            if adapter is None:
                raise ApiError(404, "adapter_not_found", f"No adapter of the name {name[:100]!r} is loaded.", "name")
            if not await self.services.unleased(drain_s, name):
                adapters.known[name] = adapter
                raise unavailable("not_drained", f"Requests with it still run after {drain_s:g} s.", retry_after_s=5)
            adapters.drop(adapter)
            self._remember(adapters)
        log.info("adapter %s has left", name)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Loaded]:
        """The loaded model, which stays while inside. ApiError 503."""
        lease = await self.services.lease(None)
        try:
            yield lease.loaded
        finally:
            self.services.release(lease)

    def _adapters(self, loaded: Loaded) -> Adapters:
        if loaded.adapters is None:
            raise ApiError(409, "no_model", "There is no model here that could have adapters.")
        return loaded.adapters

    def _check_name(self, name: str, adapters: Adapters) -> None:
        try:
            named_paths((f"{name}=path",))
        except ValueError as error:
            raise bad_request("name", f'"name": {error}.') from None
        if name in adapters.known or self._exists_as_model(name):
            raise bad_request("name", f'"name": {name[:100]!r} is taken; unload what has it first.', "name_taken")

    def _exists_as_model(self, name: str) -> bool:
        return name in self.others() or (self._known is not None and name == self._known.name)

    def _remember(self, adapters: Adapters) -> None:
        """What there is now is what comes again with the model."""
        assert self._known is not None
        own = self._known.settings
        given = tuple(f"{each.name}={each.path}" for each in adapters)
        self._known = replace(self._known, settings=replace(own, model=replace(own.model, lora=given)))

    async def close(self) -> None:
        """End whatever runs."""
        if self._transition is not None:
            self._transition.cancel()
            await asyncio.wait({self._transition})
        await self._unload()

    async def _alone(self, transition: Callable[[], Awaitable[dict[str, Any]]], state: State) -> dict[str, Any]:
        if self._transition is not None:
            raise unavailable("swapping", "The model is being changed; try again when that is over.")
        if self._known is None or self.services.state not in (State.READY, State.SUSPENDED):
            raise ApiError(409, "no_model", "There is no model that could be suspended or resumed now.")
        task = self._begin(transition(), state, None)
        return await asyncio.shield(task)

    def _begin(self, work: Awaitable[Any], state: State, target: str | None) -> asyncio.Task[Any]:
        """Start a transition; the state is told at once, so that what comes now waits or is refused."""
        self.services.state, self._target = state, target

        async def run() -> Any:
            try:
                return await work
            finally:
                self._transition = self._target = None
                if self.services.state is State.SWAPPING:
                    self.services.state = State.READY if self.bundle else State.NO_MODEL

        task = self._transition = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody waits any more
        return task

    async def _swap(self, model: str) -> None:
        before, began = self._known, time.monotonic()
        path = models.list_models(self.settings.model.models_dir).get(model)
        drain_s = self.settings.server.model_swap_drain_ms / 1000
        if path is None or not await self.services.unleased(drain_s):
            raise SwapError(f"Requests of another model still run after {drain_s:g} s; try again later.")
        await self._unload()
        settings = replace(
            self.settings,
            model=replace(self.settings.model, served_name=model, lora=()),  # adapters and a draft model are for the
            speculative=replace(self.settings.speculative, draft_model=None),  # model they were named with
        )
        try:
            await self._take_in(path, settings)
        except LOAD_ERRORS as error:
            log.error("model %s cannot be loaded: %s", model, error)
            await self._restore(before)
            raise SwapError(f'The model "{model}" cannot be loaded; the log says why.') from None
        log.info("model %s is loaded after %.1f s", model, time.monotonic() - began)

    async def _restore(self, before: _Known | None) -> None:
        if before is None or self.services.state is State.DRAINING:
            return
        try:
            await self._take_in(before.path, before.settings)
        except LOAD_ERRORS as error:
            log.error("model %s cannot be loaded again: %s", before.name, error)
            self._known = None

    async def _suspend(self) -> dict[str, Any]:
        if not await self.services.unleased(SUSPEND_DRAIN_S):
            if self.services.state is not State.DRAINING:
                self.services.state = State.READY
            raise unavailable("not_drained", f"Requests still run after {SUSPEND_DRAIN_S:g} s.", retry_after_s=5)
        assert self.bundle is not None
        usage = self.bundle.device_memory
        before = usage()
        await self._unload()
        after, told = usage(), self._suspended()
        if before is not None and after is not None:
            told |= {"vram_free_before": before.free_bytes, "vram_free_after": after.free_bytes}
        return told

    def _suspended(self) -> dict[str, Any]:
        assert self._known is not None
        # the weights are in their file and prompts can be computed again, so nothing is written anywhere
        return {
            "suspended": True,
            "model": self._known.name,
            "snapshot_bytes": 0,
            "vram_free_before": None,
            "device_reset": False,
        }

    async def _resume(self) -> dict[str, Any]:
        assert self._known is not None
        began = time.monotonic()
        try:
            await self._take_in(self._known.path, self._known.settings)
        except LOAD_ERRORS as error:
            log.error("model %s cannot be loaded again: %s", self._known.name, error)
            raise unavailable("resume_failed", "The model cannot be loaded again; the log says why.") from None
        took_ms = round((time.monotonic() - began) * 1e3)
        warm = 0 if self.bundle is None else sum(tier.blocks for tier in self.bundle.scheduler.snapshot().tiers)
        return {"suspended": False, "model": self._known.name, "resume_ms": took_ms, "warm_hits": warm}

    async def _take_in(self, path: Path, settings: Settings) -> None:
        loaded = await asyncio.to_thread(self._load, path, settings)
        if self.services.state is State.DRAINING:  # the server ends; nobody will ask
            loaded.close()
        else:
            self.take(loaded, path, settings)

    async def _unload(self) -> None:
        """Stop the engine and give all memory back."""
        services, engine, loaded = self.services, self.engine, self.bundle
        services.loaded = services.engine = self.engine = self.bundle = None
        if engine is not None:
            await engine.stop()
        if loaded is not None:
            readings.disconnect(self.metrics)
            leaving = [loaded]
            del loaded, engine
            await asyncio.to_thread(_let_go, leaving)


def _let_go(leaving: list[Bundle]) -> None:
    """Close the last reference to a bundle. Gigabytes are given back and processes end, which takes its time."""
    leaving.pop().close()
    gc.collect()
