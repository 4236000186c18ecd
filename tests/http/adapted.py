"""A server with a tiny real model that may have adapters: the resident, the engine and the CPU backend are the real
ones. What an adapter should say, a model with merged weights says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from imp import bundle
from imp.adapters import Adapters, Shapes, read_named
from imp.bundle import Bundle, ModelCard
from imp.chat.prepare import Vectors
from imp.chat.template import BUILTIN
from imp.cpu.backend import CpuBackend
from imp.engine import Engine
from imp.facts import constraint_compiler, mask_bits, model_facts, template
from imp.http.application import Application
from imp.http.gate import Gate
from imp.http.router import Router
from imp.http.routes.table import routes
from imp.http.server import Server
from imp.http.services import Services, State
from imp.memory import BLOCK_SIZE, plan
from imp.model import arch
from imp.model.runner import ModelRunner
from imp.obs.metrics import Metrics
from imp.resident import Resident
from imp.sched.blocks import BlockPool
from imp.script import vocabulary
from imp.settings import Settings, load, named_paths
from tests.model import adapters, tiny
from tests.model.test_arch import MemoryCheckpoint

VOCAB = 288
CONFIG: dict[str, Any] = tiny.CONFIGS["llama"] | {"vocab_size": VOCAB}


def tensors(merged: str | None = None) -> dict[str, np.ndarray]:
    """Of the tiny model, with the adapter of this name in its weights."""
    given = tiny.tensors("llama")
    rng = np.random.default_rng(77)
    given["model.embed_tokens.weight"] = (rng.standard_normal((VOCAB, 96)) * 0.25).astype(np.float32)
    if merged is None:
        return given
    sides, own = adapters.tensors("llama", merged), adapters.config(merged)
    for name in [name for name in sides if ".lora_A." in name]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        down, up = sides[name], sides[name.replace("lora_A", "lora_B")]
        alphas = own.get("alpha_pattern", {})
        alpha = next((a for last, a in alphas.items() if module.endswith(f".{last}")), own["lora_alpha"])
        scale = alpha / (len(down) ** 0.5 if own.get("use_rslora") else len(down))
        given[f"{module}.weight"] = given[f"{module}.weight"] + np.float32(scale) * (up @ down)
    return given


def loaded(settings: Settings, kernels: Path, merged: str | None = None) -> Bundle:
    """As bundle.load, of the tiny model."""
    model = arch.build(MemoryCheckpoint(CONFIG, tensors(merged)))
    backend = CpuBackend(1, kernels)
    given = read_named(named_paths(settings.model.lora), model)
    known = Adapters(Shapes(model.modules, model.formats), backend)
    known.planned_bytes = sum(backend.adapter_bytes(model, adapter) for _, _, adapter in given)
    memory = plan(
        1 << 20, backend.kv_block_bytes(model, BLOCK_SIZE), context=256, rows=16, blocks=256, free_bytes=1 << 30
    )
    limits = bundle.step_limits(memory, settings)
    backend.load(model, limits)
    for name, path, adapter in given:
        known.known[name] = known.keep(name, path, adapter)
    tokenizer = vocabulary.tokenizer(BUILTIN["chatml"], (), ())
    constraints = constraint_compiler(tokenizer, settings)
    chosen = template(BUILTIN["chatml"], tokenizer, "auto")
    facts = model_facts(tokenizer, chosen, {"temperature": 0}, memory.context, settings, constraints)
    guesses = bundle.speculation(settings)
    return Bundle(
        card=ModelCard("tiny", "llama", "F32", 1, 1 << 20, 256, 1),
        facts=replace(facts, vectors=Vectors(96), no_guesses=guesses.off),
        tokenizer=tokenizer,
        backend=backend,
        runner=ModelRunner(backend, tokenizer.vocab_size, BLOCK_SIZE, mask_bits(constraints)),
        scheduler=bundle.scheduler(
            tokenizer, BlockPool(memory.blocks, BLOCK_SIZE), memory, limits, settings, guesses, backend.aside.limits
        ),
        memory=memory,
        adapters=known,
    )


@dataclass
class World:
    client: httpx.AsyncClient
    services: Services
    resident: Resident
    metrics: Metrics

    async def completion(self, prompt: str, **more: Any) -> dict[str, Any]:
        """Of 16 tokens, with their ids."""
        body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True} | more
        answer = await self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ids(self, prompt: str, **more: Any) -> list[int]:
        return (await self.completion(prompt, **more))["choices"][0]["token_ids"]

    async def admin(self, what: str, **body: Any) -> httpx.Response:
        return await self.client.post(f"/admin/lora/{what}", json=body)

    async def models(self) -> list[str]:
        return [each["id"] for each in (await self.client.get("/v1/models")).json()["data"]]


@asynccontextmanager
async def serving(kernels: Path, *arguments: str, merged: str | None = None) -> AsyncIterator[World]:
    """merged: the adapter whose weights are in the model's own."""
    settings = load(list(arguments), {"HOME": "/nowhere"})
    settings = replace(settings, paths=replace(settings.paths, cache=kernels))
    metrics = Metrics()
    services = Services(pool=ThreadPoolExecutor(2), metrics=metrics, state=State.NO_MODEL)

    def read(path: Path, settings: Settings) -> Bundle:
        return loaded(settings, kernels, merged)

    def start(found: Bundle) -> Engine:
        return Engine(found.scheduler, found.runner, asyncio.get_running_loop())

    resident = Resident(settings, services, metrics, start, read)
    services.resident = resident
    resident.take(read(Path("tiny"), settings), Path("tiny"), settings)
    server = Server(Application(Router(routes(services)), Gate(), services.observe))
    await server.listen("127.0.0.1", 0)
    host, port = server.addresses[0]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        try:
            yield World(client, services, resident, metrics)
        finally:
            await server.close()
            await resident.close()
            services.pool.shutdown()
            services.compilers.shutdown()
