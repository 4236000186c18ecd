"""The composition root: builds everything from settings, serves, drains, shuts down. The only place that knows all."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from imp import __version__, bundle, garbage, keys, models
from imp.beside import Beside
from imp.bundle import Bundle, DeviceError
from imp.encoder import EncoderGone
from imp.engine import Engine
from imp.http.application import Application
from imp.http.gate import Gate, GateSettings
from imp.http.notify import Notifier, inherited_sockets
from imp.http.protocol import HttpLimits, KiB
from imp.http.router import Router
from imp.http.routes.table import routes
from imp.http.server import Server, ServerSettings
from imp.http.services import Services, State
from imp.http.store import ResponseStore
from imp.memory import DeviceOutOfMemory, OutOfMemory
from imp.obs import log as logs
from imp.obs.metrics import Metrics
from imp.obs.sinks import Sinks, open_sinks
from imp.obs.stopwatch import Stopwatch
from imp.resident import Resident
from imp.script.file import ScriptError
from imp.script.load import load as load_script
from imp.script.runner import ScriptRunner
from imp.settings import Settings
from imp.text.tokenizer import InvalidTokenizer, UnsupportedTokenizer
from imp.tiers.folder import FolderError
from imp.weights.checkpoint import ContextTooLong, InvalidModel, UnsupportedModel

log = logging.getLogger("imp.app")

PREPARE_THREADS = 2  # render and tokenise; one more is there for whoever is more urgent than those two
SWITCH_S = 0.001  # the event loop waits so long for a thread that runs Python; the interpreter's own choice is 5 ms

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (DeviceOutOfMemory, 3),
    (DeviceError, 3),
    (OutOfMemory, 2),
    (MemoryError, 2),
    (ScriptError, 1),
    (FolderError, 1),
    (models.ModelError, 4),
    (FileNotFoundError, 4),
    (InvalidModel, 5),
    (InvalidTokenizer, 5),
    (ContextTooLong, 1),
    (UnsupportedModel, 6),
    (UnsupportedTokenizer, 6),
    (EncoderGone, 7),
)


class StartError(Exception):
    """The server cannot start: one sentence, and the process's exit code."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def say(line: str) -> None:
    """Progress and the start-up summary, for people: stderr."""
    print(line, file=sys.stderr, flush=True)


def choose_model(settings: Settings) -> Path | None:
    """The model to load: the one named, the only one of the models dir, or the default one; None where none is chosen.

    May take minutes where the default model has to be fetched. Raises ModelError.
    """
    own, paths = settings.model, settings.paths
    if own.model is not None:
        return models.find_model(own.model, own.models_dir)
    if own.models_dir is not None:
        known = models.list_models(own.models_dir)
        if len(known) == 1:
            return next(iter(known.values()))
        names = ", ".join(sorted(known)) or "none"
        say(f"imp-server: no model is loaded; name one with --model (in {own.models_dir}: {names})")
        return None
    if paths.default_model is not None:
        return models.find_model(str(paths.default_model), None)
    return models.default_model(paths.model_cache, models.progress_printer(sys.stderr))


def read_model(
    settings: Settings, progress: Callable[[str], None], early: Beside | None = None
) -> tuple[Path, Bundle] | None:
    """What is to be served, loaded, and where it lies; None where nothing is chosen. early: the process of its encoder,
    if that was begun before. Raises what EXIT_CODES lists."""
    own = settings.model
    if own.script is not None:
        if own.model is not None:
            raise ScriptError("--script and --model exclude each other")
        if settings.speculative.draft_model is not None:
            raise ScriptError("--script and --draft-model exclude each other")
        if settings.kv_cache.disk_dir is not None:
            raise ScriptError("--script and --prefix-cache exclude each other")
        if own.lora:
            raise ScriptError("--script and --lora exclude each other")
        return own.script, load_script(own.script, settings)
    path = choose_model(settings)
    return None if path is None else (path, load_model(path, settings, progress, early))


def load_model(
    path: Path, settings: Settings, progress: Callable[[str], None], early: Beside | None = None
) -> Bundle:
    """A model with its draft model, where the settings name one. Raises what EXIT_CODES lists."""
    draft = settings.speculative.draft_model
    if draft is not None and not settings.speculative.k:
        raise models.ModelError("--draft-model has nothing to do where speculative.k is 0")
    found = None if draft is None else models.find_model(draft, settings.model.models_dir)
    return bundle.load(path, settings, progress, found, early)


def run(settings: Settings, early: Beside | None = None) -> int:
    """Serve until a signal; returns the exit code. early: see read_model."""
    logs.setup(settings.diagnostics.log_level)
    sys.setswitchinterval(SWITCH_S)
    garbage.begin()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(App(settings, early).serve())
    except StartError as error:
        say(f"imp-server: error: {error}")
        return error.exit_code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on this platform; asyncio's own loop serves as well, slower
        return None
    return uvloop.new_event_loop


class App:
    """One server process. Owned by the event loop."""

    def __init__(self, settings: Settings, early: Beside | None = None):
        self.settings, self.early = settings, early
        self.notifier = Notifier(settings.paths.notify_socket, settings.paths.watchdog_us / 1e6 or None)
        self.metrics = Metrics()
        self.sinks = self._open_sinks()
        self.services = self._services()
        self.gate = Gate(self._gate_settings())
        table = routes(
            self.services,
            metrics_need_key=settings.server.metrics_require_auth,
            tokenizer_info=settings.server.tokenizer_info,
            dev_mode=settings.server.dev_mode,
            script_log=self._script_log if settings.model.script else None,
        )
        application = Application(Router(table), self.gate, self.services.observe, self.services.keeps_bodies)
        self.server = Server(application, self._http_settings())
        self.on_reload: list[Callable[[], None]] = [self._reload_keys, self.sinks.reopen]
        self.resident = Resident(settings, self.services, self.metrics, self._engine, self._reload_model)
        self.services.other_models = self.resident.others
        if settings.model.script is None:
            self.services.resident = self.resident
        self.stopping = asyncio.Event()
        self.metrics.read("imp_model_loads_total", lambda: self.resident.loads)

    def _services(self) -> Services:
        own = self.settings
        return Services(
            pool=ThreadPoolExecutor(PREPARE_THREADS + 1, "prepare"),
            prepare_threads=PREPARE_THREADS,
            metrics=self.metrics,
            sinks=self.sinks.observers,
            keeps_bodies=self.sinks.log is not None,
            traces=self.sinks.exporter is not None,
            lenient_names=own.server.model_names == "lenient",
            max_batch_items=own.generation.max_batch_items,
            max_concurrent=own.server.max_concurrent,
            max_queued_tokens=own.server.max_queued_tokens,
            request_timeout_s=own.server.request_timeout_s,
            ping_s=own.server.sse_ping_seconds,
            agent_scan_limit=own.server.agent_scan_limit,
            responses=ResponseStore(
                own.server.response_store_entries,
                own.server.response_store_mib << 20,
                own.server.response_store_ttl_s,
            ),
        )

    def _open_sinks(self) -> Sinks:
        own, headers = self.settings.server, self.settings.paths.otlp_headers
        try:
            sinks = open_sinks(own.log_requests, own.otlp_endpoint, own.otlp_service_name, __version__, headers)
        except OSError as error:
            code = 4 if isinstance(error, FileNotFoundError) else 1
            raise StartError(f"cannot write to {own.log_requests}: {error.strerror or error}", code) from None
        except ValueError as error:
            raise StartError(f"server.otlp_endpoint: {error}", 1) from None
        sinks.connect(self.metrics)
        if sinks.log is not None:
            log.warning("--log-requests: prompts and answers are written to %s", own.log_requests)
        if self.settings.diagnostics.debug_template:
            log.warning("diagnostics.debug_template: this log holds prompts")
        return sinks

    def _gate_settings(self) -> GateSettings:
        own = self.settings.server
        try:
            api_keys = keys.read(own.api_keys, log.warning)
        except keys.KeysError as error:
            raise StartError(str(error), 4 if error.missing else 1) from None
        if not api_keys and "server.api_keys" in self.settings.origins:
            raise StartError("server.api_keys is given, but holds no key", 1)
        return GateSettings(
            api_keys=api_keys,
            rate_limit_per_min=own.rate_limit,
            token_limit_per_min=own.token_rate_limit,
            ip_rate_limit_per_min=own.ip_rate_limit,
            ip_token_limit_per_min=own.ip_token_rate_limit,
            max_concurrent=own.max_concurrent,
            cors_origins=own.cors_origins,
            cors_credentials=own.cors_credentials,
            cors_headers=own.cors_headers,
            cors_max_age_s=own.cors_max_age_s,
            trusted_proxies=own.trusted_proxies,
            allowed_hosts=own.allowed_hosts,
        )

    def _http_settings(self) -> ServerSettings:
        own = self.settings.server
        return ServerSettings(
            read_timeout_s=own.read_timeout_s,
            write_timeout_s=own.write_timeout_s,
            keep_alive_max=own.keep_alive_max,
            max_connections=own.max_connections,
            limits=HttpLimits(
                request_line_bytes=own.max_request_line_kib * KiB,
                head_bytes=own.max_head_kib * KiB,
                header_count=own.max_headers,
                body_bytes=own.max_body_kib * KiB,
            ),
        )

    # -- life ---------------------------------------------------------------------------------------

    async def serve(self) -> int:
        """Listen, load, serve, drain. Returns the exit code."""
        self._on_signals()
        began = time.monotonic()
        await self._listen()
        watchdog = asyncio.create_task(self.notifier.watchdog())
        collecting = asyncio.create_task(garbage.collect_in_time(self.services.streams))
        loading = asyncio.create_task(self._load())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self.stopping.is_set():
                loading.result()
                self.notifier.ready()
                self._summary(time.monotonic() - began)
                await stopping
            await self._shut_down()
        finally:
            for task in (watchdog, collecting, loading, stopping):
                task.cancel()
            await self._close()
        return 0

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def _signalled(self, number: int) -> None:
        if self.stopping.is_set():  # the second one: at once
            os._exit(128 + number)
        self.stopping.set()

    def reload(self) -> None:
        """SIGHUP: read again what may change while we serve. One that fails keeps nobody from the others."""
        for each in self.on_reload:
            try:
                each()
            except Exception:
                log.exception("a part of the reload failed")

    def _reload_keys(self) -> None:
        given = self.settings.server.api_keys
        try:
            found = keys.read(given, log.warning)
        except keys.KeysError as error:
            log.error("the API keys stay as they are: %s", error)
            return
        self.gate.use_keys(found)
        if given:
            log.info("%d API keys are valid now", len(found))

    async def _listen(self) -> None:
        own, paths = self.settings.server, self.settings.paths
        sockets = inherited_sockets(os.getpid(), paths.listen_fds) if paths.listen_fds else []
        try:
            if sockets:
                await self.server.serve(sockets)
            else:
                await self.server.listen(own.host, own.port)
        except OSError as error:
            raise StartError(f"cannot listen on {own.host}:{own.port}: {error.strerror or error}", 1) from None

    async def _load(self) -> None:
        """Find, read and start the model. Without any the server serves what needs none."""
        self.services.state = State.LOADING
        loop = asyncio.get_running_loop()
        try:
            found = await asyncio.to_thread(read_model, self.settings, self._progress(loop), self.early)
        except tuple(kind for kind, _ in EXIT_CODES) as error:
            code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
            raise StartError(str(error) or type(error).__name__, code) from None
        if found is None:
            self.services.state = State.NO_MODEL
            return
        path, loaded = found
        self.resident.take(loaded, path, self.settings)

    def _progress(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """Progress of the loading thread: a line each, and more patience from the service manager."""

        def progress(line: str) -> None:
            say(f"imp-server: {line}")
            loop.call_soon_threadsafe(self.notifier.extend_timeout, 120.0)

        return progress

    def _reload_model(self, path: Path, settings: Settings) -> Bundle:
        """Load a model while the server runs; on a thread."""
        return load_model(path, settings, lambda line: log.info("%s", line))

    def _engine(self, loaded: Bundle) -> Engine:
        timeout_s = self.settings.server.queue_timeout_s
        loop, watch = asyncio.get_running_loop(), self._watch_steps(loaded)
        return Engine(loaded.scheduler, loaded.runner, loop, timeout_s, watch)

    def _watch_steps(self, loaded: Bundle) -> Callable[[str], None] | None:
        """diagnostics.step_timing: what the engine and the runner tell what they do next."""
        if not self.settings.diagnostics.step_timing:
            return None
        stopwatch = Stopwatch()
        stopwatch.connect(self.metrics)
        loaded.watch_steps(stopwatch.enter)
        return stopwatch.enter

    async def _shut_down(self) -> None:
        """Refuse what comes, finish what runs, tell the rest that it ends."""
        self.notifier.stopping()
        self.services.state = State.DRAINING
        self.gate.draining = True
        limit_s = self.settings.server.model_swap_drain_ms / 1000
        if busy := self.server.busy:
            say(f"imp-server: finishing {busy} requests, at most {limit_s:g} s more; a second signal ends at once")
        if not await self._finished(limit_s) and self.resident.engine is not None:
            await self.resident.engine.stop()
            await self._finished(5.0)

    async def _finished(self, limit_s: float) -> bool:
        """Everybody has their answer, and nothing runs in the background either."""
        deadline = time.monotonic() + limit_s
        answered = await self.server.drain(limit_s)
        return await self.services.settled(max(0.0, deadline - time.monotonic())) and answered

    async def _close(self) -> None:
        await self.server.close()
        await self.resident.close()
        await self.sinks.close()  # after the engine's end, with which the last records come
        self.services.pool.shutdown(wait=False, cancel_futures=True)
        self.services.compilers.shutdown(wait=False, cancel_futures=True)

    # -- what people and monitors see ---------------------------------------------------------------

    def _script_log(self) -> list[dict[str, Any]]:
        loaded = self.resident.bundle
        runner = None if loaded is None else loaded.runner
        return list(runner.log) if isinstance(runner, ScriptRunner) else []

    def _summary(self, seconds: float) -> None:
        host, port = self.server.addresses[0]
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{port}"
        say(f"imp-server {__version__} is ready after {seconds:.1f} s")
        if (loaded := self.resident.bundle) is not None:
            card, memory, backend = loaded.card, loaded.memory, loaded.backend
            millions = card.parameters / 1e6
            say(f"  model    {card.name} ({card.architecture}, {millions:.0f}M parameters, {card.quantization})")
            say(f"  context  {memory.context} tokens")
            most = memory.reserved_blocks
            kv_mib = most * memory.block_bytes / 2**20
            say(f"  cache    {most * memory.block_size} tokens in {most} blocks, up to {kv_mib:.0f} MiB")
            say(f"  backend  {backend.describe()}")
        say(f"  listens  {url}  (chat page: {url}/)")
