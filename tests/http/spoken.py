"""The real server over the script's model, which says what a test lets it say and honours the masks of constraints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from imp import settings
from imp.bundle import Bundle
from imp.chat.formats import hermes
from imp.chat.formats.base import Thinking
from imp.chat.speech import Voice
from imp.engine import Engine
from imp.http.application import Application
from imp.http.gate import Gate, GateSettings
from imp.http.router import Router
from imp.http.routes.table import routes
from imp.http.server import Server
from imp.http.services import Services, State
from imp.obs.metrics import Metrics
from imp.sched.speculation import Speculation
from imp.script import file, load
from imp.script.runner import ScriptRunner

THINK = Thinking("<think>", "</think>")
HERMES = Voice(hermes.FORMAT)
THINKING = Voice(hermes.FORMAT, THINK)
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPENS = TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")


@dataclass
class Spoken:
    client: httpx.AsyncClient
    url: str
    bundle: Bundle
    services: Services
    sdks: list[Any] = field(default_factory=list)  # to be closed

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    def prompts(self) -> list[str]:
        assert isinstance(self.bundle.runner, ScriptRunner)
        return [entry["prompt"] for entry in self.bundle.runner.log]


@asynccontextmanager
async def speaking(
    *replies: Sequence[str] | str,
    voice: Voice | None = HERMES,
    template: str = TEMPLATE,
    options: Sequence[str] = (),
    guesses: Speculation | None = None,
    **script: Any,
) -> AsyncIterator[Spoken]:
    """A server on a free port of 127.0.0.1. replies: each in pieces, or a text, which is a piece a character.

    voice: None: what is found of the template.  options: of the command line.  guesses: what is guessed of outputs;
    None: as of any script's."""
    told = {"replies": [{"pieces": list(reply)} for reply in replies]}
    made = replace(file.parse(told | script, Path()), template=template)
    bundle = load.build(made, settings.load(options))
    if voice is not None:
        known = {bundle.tokenizer.token_text(token): token for token in bundle.tokenizer.special_ids}
        visible = frozenset(known[marker] for marker in voice.markers() if marker in known)
        bundle = replace(bundle, facts=replace(bundle.facts, voice=voice, visible_ids=visible))
    if guesses is not None:
        bundle.scheduler.speculation = guesses
        bundle = replace(bundle, facts=replace(bundle.facts, no_guesses=""))
    async with served(bundle) as spoken:
        yield spoken


@asynccontextmanager
async def served(bundle: Bundle) -> AsyncIterator[Spoken]:
    """A server of this bundle on a free port of 127.0.0.1."""
    engine = Engine(bundle.scheduler, bundle.runner, asyncio.get_running_loop())
    services = Services(pool=ThreadPoolExecutor(2), metrics=Metrics(), state=State.READY, loaded=bundle, engine=engine)
    server = Server(Application(Router(routes(services)), Gate(GateSettings()), services.observe))
    await server.listen("127.0.0.1", 0)
    host, port = server.addresses[0]
    url = f"http://{host}:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            spoken = Spoken(client, url, bundle, services)
            yield spoken
            for sdk in spoken.sdks:
                await sdk.close()
    finally:
        await server.close()
        await engine.stop()
        services.pool.shutdown()
        services.compilers.shutdown()
