"""Changing the model under running requests: swaps, suspension and what goes wrong; script models, real HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from imp.bundle import Bundle
from imp.engine import Engine
from imp.http.application import Application
from imp.http.gate import Gate
from imp.http.router import Router
from imp.http.routes.table import routes
from imp.http.server import Server
from imp.http.services import Services, State
from imp.obs.metrics import Metrics
from imp.resident import Resident
from imp.script.load import load as load_script
from imp.settings import Settings, load
from imp.weights.checkpoint import InvalidModel

CHAT = "/v1/chat/completions"


@dataclass
class World:
    client: httpx.AsyncClient
    services: Services
    resident: Resident
    loads: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # names that cannot be loaded
    load_s: float = 0.02

    async def ask(self, model: str | None = None, **more: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}]} | more
        return await self.client.post(CHAT, json=body | ({"model": model} if model else {}))

    async def said(self, model: str | None = None, **more: Any) -> str:
        answer = await self.ask(model, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.002)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


@asynccontextmanager
async def serving(folder: Path, *arguments: str, first: str | None = "a", delay_ms: int = 0) -> AsyncIterator[World]:
    """A server whose models dir holds a, b and c, each of which says its name ten times."""
    for name in "abc":
        folder.joinpath(f"{name}.gguf").touch()
        reply = {"pieces": [f"{name} "] * 10, "delay_ms": delay_ms}
        folder.joinpath(f"{name}.json").write_text(json.dumps({"replies": [reply]}))
    settings = load(["--models-dir", str(folder), *arguments], {"HOME": "/nowhere"})
    services = Services(pool=ThreadPoolExecutor(2), metrics=Metrics(), state=State.NO_MODEL)

    def read(path: Path, settings: Settings) -> Bundle:
        world.loads.append(path.stem)
        time.sleep(world.load_s)
        if path.stem in world.broken:
            raise InvalidModel(f"{path}: a secret path")
        return load_script(path.with_suffix(".json"), settings)

    def start(loaded: Bundle) -> Engine:
        return Engine(loaded.scheduler, loaded.runner, asyncio.get_running_loop())

    resident = Resident(settings, services, services.metrics, start, read)
    services.resident, services.other_models = resident, resident.others
    server = Server(Application(Router(routes(services)), Gate(), services.observe))
    await server.listen("127.0.0.1", 0)
    host, port = server.addresses[0]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        world = World(client, services, resident)
        try:
            if first:
                await resident.bring(first)
            yield world
        finally:
            await server.close()
            await resident.close()
            services.pool.shutdown()
            services.compilers.shutdown()


def test_a_request_for_another_model_loads_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as world:
            assert await world.said() == await world.said("a") == "a " * 10
            assert await world.said("b") == await world.said() == "b " * 10
            listed = (await world.client.get("/v1/models")).json()["data"]
            assert [(each["id"], each["loaded"]) for each in listed] == [("b", True), ("a", False), ("c", False)]
            metrics = (await world.client.get("/metrics")).text
            assert 'imp_model_loaded{model="b"} 1' in metrics and 'model="a"} 1' not in metrics
            assert world.loads == ["a", "b"]
            responses = await world.client.post("/v1/responses", json={"input": "Hi", "model": "c"})
            assert responses.status_code == 200 and responses.json()["model"] == "c"

    run(main())


def test_g10_12_a_stream_ends_before_its_model_leaves(tmp_path: Path) -> None:
    # (a): A's stream is whole, then B loads
    async def main() -> None:
        async with serving(tmp_path, delay_ms=20) as world:
            body = {"messages": [{"role": "user", "content": "Hi"}], "model": "a", "stream": True}
            async with world.client.stream("POST", CHAT, json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                other = asyncio.create_task(world.said("b"))
                await world.until(lambda: world.services.state is State.SWAPPING)
                ready = await world.client.get("/ready")
                assert ready.status_code == 503 and ready.json()["error"]["code"] == "swapping"
                assert (await world.client.get("/health")).status_code == 200
                assert world.loads == ["a"]
                rest = "".join([line async for line in lines])
            assert rest.count('"a "') >= 9 and rest.endswith("[DONE]") and "error" not in rest
            assert await other == "b " * 10

    run(main())


def test_g10_12_alternating_models_are_all_answered_in_groups(tmp_path: Path) -> None:
    # (b): 20 at once for two models; (g): and one load for all who want the same
    async def main() -> None:
        async with serving(tmp_path) as world:
            names = ["a", "b"] * 10
            answers = await asyncio.gather(*(world.said(name) for name in names))
            assert answers == [f"{name} " * 10 for name in names]
            assert len(world.loads) <= 4, world.loads
            before = len(world.loads)
            assert set(await asyncio.gather(*(world.said("c") for _ in range(4)))) == {"c " * 10}
            assert world.loads[before:] == ["c"]

    run(main())


def test_g10_12_a_model_that_cannot_be_loaded_leaves_the_one_before(tmp_path: Path) -> None:
    # (d)
    async def main() -> None:
        async with serving(tmp_path) as world:
            world.broken.add("b")
            failed, kept = await asyncio.gather(world.ask("b"), world.said())
            assert failed.status_code == 503 and failed.json()["error"]["code"] == "swap_failed"
            assert failed.headers["retry-after"] and "secret" not in failed.text
            assert kept == await world.said("a") == "a " * 10
            assert (await world.client.get("/ready")).status_code == 200
            world.broken.add("a")  # now neither comes
            assert (await world.ask("b")).status_code == 503
            assert (await world.ask()).json()["error"]["code"] == "no_model"
            world.broken.clear()
            assert await world.said("b") == "b " * 10

    run(main())


@pytest.mark.parametrize("name", ["d", "/etc/passwd", "../a", "a/b/c", "a.gguf", "a/", "\0", ""])
def test_g10_12_an_unknown_model_is_a_404_at_once(tmp_path: Path, name: str) -> None:
    # (f): also while another is being loaded, and without a load
    async def main() -> None:
        async with serving(tmp_path) as world:
            assert (await world.ask(name)).status_code in ((404,) if name else (400, 404, 200))
            if name:
                world.load_s = 0.5
                swap = asyncio.create_task(world.said("b"))
                await world.until(lambda: world.services.state is State.SWAPPING)
                assert (await world.ask(name)).status_code == 404
                assert world.services.state is State.SWAPPING
                await swap
            assert set(world.loads) <= {"a", "b"}

    run(main())


def test_g10_12_clients_that_give_up_leave_nothing_behind(tmp_path: Path) -> None:
    # (e), and memory: leases, streams and transitions are gone after many swaps
    async def main() -> None:
        async with serving(tmp_path) as world:
            for round_ in range(20):
                name = "ab"[round_ % 2]
                asks = [asyncio.create_task(world.ask(name, stream=True)) for _ in range(3)]
                await asyncio.sleep(0.005 * (round_ % 5))
                for each in asks:
                    each.cancel()
                await asyncio.gather(*asks, return_exceptions=True)
            await world.until(lambda: not world.services.leases and world.services.state is State.READY)
            assert world.resident._transition is None and not world.services.generating
            assert await world.said("c") == "c " * 10

    run(main())


def test_a_swap_that_would_cut_requests_off_does_not_happen(tmp_path: Path) -> None:
    async def main() -> None:
        arguments = ("--set", "server.model_swap_drain_ms=50")
        async with serving(tmp_path, *arguments, delay_ms=60) as world:
            running = asyncio.create_task(world.said("a"))
            await world.until(lambda: len(world.services.leases) == 1)
            refused = await world.ask("b")
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "swap_failed"
            assert await running == "a " * 10
            assert await world.said("b", max_tokens=1) == "b "

    run(main())


@pytest.mark.parametrize("arguments", [("--set", "server.model_swap=false"), ("--set", "server.model_names=lenient")])
def test_swapping_can_be_off(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    async def main() -> None:
        async with serving(tmp_path, first=None) as world:
            assert await world.said("a") == "a " * 10  # the first model, by name
        async with serving(tmp_path, *arguments, first=None) as world:
            code = (await world.ask("b")).json()["error"]["code"]
            assert code == "no_model" and world.loads == []

    run(main())


def test_suspend_and_resume(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, delay_ms=10) as world:
            running = asyncio.create_task(world.said())
            await world.until(lambda: len(world.services.leases) == 1)
            suspending = asyncio.create_task(world.client.post("/admin/suspend"))
            await world.until(lambda: world.services.state is State.SUSPENDED)
            began = time.monotonic()
            meanwhile = await world.ask()
            assert meanwhile.status_code == 503 and meanwhile.json()["error"]["code"] == "suspended"
            assert time.monotonic() - began < 5 and not suspending.done()  # at once, not when it is over
            assert await running == "a " * 10  # drained, not cut off
            told = (await suspending).json()
            assert told["suspended"] is True and told["model"] == "a" and "note" not in told
            assert (await world.client.post("/admin/suspend")).json()["note"]
            assert (await world.client.get("/ready")).json()["error"]["code"] == "suspended"
            health = (await world.client.get("/health")).json()
            assert health["suspended"] is True and health["model_loaded"] is False and health["status"] == "ok"
            assert (await world.ask("b")).json()["error"]["code"] == "suspended"
            assert (await world.client.post("/tokenize", json={"prompt": "a"})).status_code == 503
            assert "imp_kv_blocks_total 0" in (await world.client.get("/metrics")).text
            told = (await world.client.post("/admin/resume")).json()
            assert told["suspended"] is False and told["model"] == "a" and told["resume_ms"] >= 0
            assert await world.said() == "a " * 10 and world.loads == ["a", "a"]
            assert (await world.client.post("/admin/resume")).json()["suspended"] is False

    run(main())


def test_suspend_without_a_model_and_a_resume_that_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, first=None) as world:
            for path in ("/admin/suspend", "/admin/resume"):
                answer = await world.client.post(path)
                assert answer.status_code == 409 and answer.json()["error"]["code"] == "no_model"
        async with serving(tmp_path) as world:
            assert (await world.client.post("/admin/suspend")).status_code == 200
            world.broken.add("a")
            assert (await world.client.post("/admin/resume")).json()["error"]["code"] == "resume_failed"
            world.broken.clear()
            assert (await world.client.post("/admin/resume")).status_code == 200
            assert await world.said() == "a " * 10

    run(main())
