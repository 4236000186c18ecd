"""The real HTTP layer, dialects, engine, scheduler and decoder over a model that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
from tokenizers import AddedToken

from imp.chat.prepare import ConstraintCompiler, ModelFacts, Vectors
from imp.chat.template import BUILTIN, ChatTemplate
from imp.engine import Engine
from imp.http.application import Application
from imp.http.gate import Gate, GateSettings
from imp.http.router import Router
from imp.http.routes.table import routes
from imp.http.server import Server
from imp.http.services import Services, State
from imp.obs.metrics import Metrics
from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.sched.speculation import Speculation
from imp.text.decode import TextDecoder
from imp.types import Batch, Pool, Request, Row, RowResult, Runner, Sampling, TokenLogprob

EOS = 256


class PieceTokenizer:
    """Bytes 0-255, an end token, then whatever pieces a script needs. Encoding is bytes; nothing ever merges."""

    def __init__(self, pieces: Sequence[bytes]):
        self.table = [bytes([b]) for b in range(256)] + [b"<eos>", *pieces]
        self.vocab_size = len(self.table)
        self.bos_id = None
        self.eos_id = EOS
        self.eos_ids = frozenset({EOS})
        self.special_ids = frozenset({EOS})
        self.add_bos = False
        self.adds_space = False
        self.byte_table = self.table

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        hidden = self.special_ids if skip_special else frozenset()
        return b"".join(self.table[t] for t in ids if t not in hidden).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self.table[token]

    def token_text(self, token: int) -> str:
        return self.table[token].decode(errors="replace")

    def added_tokens(self) -> dict[int, AddedToken]:
        return {EOS: AddedToken("<eos>", rstrip=True, normalized=False, special=True)}


def logprob_of(token: int, position: int) -> float:
    """What the scripted model claims; different for every token and position, so that mix-ups show."""
    return -0.01 - (token % 7) * 0.1 - (position % 5) * 0.001


def vector_of(request: Request) -> tuple[float, ...]:
    """What the scripted model makes of a prompt that is not continued: sums over it, or a liking for the letter y."""
    prompt = request.prompt
    if request.pool is Pool.SCORE:
        likes = prompt.count(ord("y")) / 10
        return tuple(-1.0 + likes if token in b"yY" else -1.5 for token in request.sampling.logprob_tokens)
    return (float(len(prompt)), float(sum(prompt)), 0.5, -3.0)


@dataclass
class ScriptedRunner:
    """Says `script[i]` as the i-th token of every sequence, then the end token."""

    script: list[int]
    vocab: int
    step_s: float = 0.0
    vector_of: Callable[[Request], tuple[float, ...]] = vector_of
    fail_at: int | None = None  # this generated token raises
    held: threading.Event = field(default_factory=threading.Event)  # cleared: steps wait
    steps: int = 0
    prompt_positions: int = 0
    drawn: int = 0  # tokens

    def __post_init__(self) -> None:
        self.held.set()

    def step(self, batch: Batch) -> list[RowResult]:
        assert self.held.wait(30)
        time.sleep(self.step_s)
        self.steps += 1
        return [self._row(row) for row in batch.rows]

    def _row(self, row: Row) -> RowResult:
        seq, result = row.seq, RowResult([])
        prompt = seq.request.prompt
        self.prompt_positions += max(0, min(row.start + row.count, len(prompt)) - row.start)
        if row.wants_prompt_logprobs:
            following = range(row.start + 1, min(row.start + row.count, len(prompt) - 1) + 1)
            result.prompt_logprobs = [
                self._report(prompt[p], p, seq.request.sampling.prompt_logprobs) for p in following
            ]
        if row.reaches_end and seq.request.pool is not None:
            result.vector = self.vector_of(seq.request)
        elif row.reaches_end:
            for guess in [*seq.draft, None]:
                if self._say(row, result) != guess:
                    break
        return result

    def _say(self, row: Row, result: RowResult) -> int:
        """The next token of the script, into the result."""
        seq, sampling = row.seq, row.seq.request.sampling
        at = seq.generated + len(result.tokens)
        if at == self.fail_at:
            raise RuntimeError("a secret: /etc/passwd")
        token = self.script[at] if at < len(self.script) else EOS
        if sampling.logprobs is not None:
            position = len(seq.tokens) + len(result.tokens)
            result.logprobs.append(self._report(token, position, sampling.logprobs, sampling.logprob_tokens))
        result.tokens.append(token)
        self.drawn += seq.request.limits.max_tokens > 0  # a token nobody asked for is left unused
        return token

    def _report(self, token: int, position: int, count: int | None, named: Sequence[int] = ()) -> TokenLogprob:
        others = [(t, -5.0 - i) for i, t in enumerate(t for t in range(65, 90) if t != token)]
        own = logprob_of(token, position)
        asked = tuple((t, logprob_of(t, position)) for t in named)
        return TokenLogprob(token, own, tuple([(token, own), *others][: count or 0]), 1, asked)


@dataclass
class Harness:
    client: httpx.AsyncClient
    services: Services
    engine: Engine
    runner: ScriptedRunner
    server: Server
    url: str
    scheduler: Scheduler

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def sse(self, path: str, **body: Any) -> list[Any]:
        """The JSON of every event; [DONE] as the string. Comments are dropped."""
        import json

        async with self.client.stream("POST", path, json=body | {"stream": True}) as answer:
            text = (await answer.aread()).decode()
            assert answer.status_code == 200, text
            assert answer.headers["content-type"].startswith("text/event-stream")
        events = []
        for part in text.split("\n\n"):
            if part.startswith("data: "):
                data = part.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data))
            else:
                assert part == "" or part.startswith(":")
        return events

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            await asyncio.sleep(0.005)


def tokens_of(pieces: Sequence[str | bytes | int]) -> tuple[list[int], list[bytes]]:
    """A script of texts, bytes and ids as token ids, and the vocabulary it needs."""
    table: list[bytes] = []
    script = []
    for piece in pieces:
        if isinstance(piece, int):
            script.append(piece)
            continue
        raw = piece.encode() if isinstance(piece, str) else piece
        if raw not in table:
            table.append(raw)
        script.append(257 + table.index(raw))
    return script, table


@asynccontextmanager
async def serving(
    pieces: Sequence[str | bytes | int] = ("Hello", " there"),
    *,
    blocks: int = 256,
    rows: int = 8,
    context: int = 512,
    gate: GateSettings | None = None,
    template: str | None = BUILTIN["chatml"],
    shares_prompts: bool = True,
    max_input_tokens: int = 0,
    vectors: Vectors | None = None,
    fill: tuple[int, int, int] | None = None,
    tokenizer_info: bool = False,
    dev_mode: bool = False,
    queue_timeout_s: float = 0.0,
    constraints: ConstraintCompiler | None = None,
    speculation: Speculation | None = None,
    model: Callable[[PieceTokenizer, int], Runner] | None = None,
    defaults: Sampling | None = None,
    **options: Any,
) -> AsyncIterator[Harness]:
    """A server on a free port of 127.0.0.1 whose model says `pieces`. options: fields of Services or ScriptedRunner.

    model: runs in the place of that one, given the vocabulary and the number of blocks."""
    script, table = tokens_of(pieces)
    tokenizer = PieceTokenizer(table)
    runner_options = {k: options.pop(k) for k in ("step_s", "fail_at", "vector_of") if k in options}
    runner: Any = ScriptedRunner(script, tokenizer.vocab_size, **runner_options)
    if model is not None:
        runner = model(tokenizer, blocks)
    speculation = speculation or Speculation()
    facts = ModelFacts(
        no_guesses=speculation.off,
        no_predictions=speculation.no_predictions,
        tokenizer=tokenizer,
        template=ChatTemplate(template) if template else None,
        defaults=defaults or Sampling(),
        context=context,
        control_spellings=("<eos>",),
        dry_breakers=frozenset,
        max_input_tokens=max_input_tokens,
        vectors=vectors or Vectors(4),
        fill=fill,
        shares_prompts=shares_prompts,
        constraints=constraints,
    )
    scheduler = Scheduler(
        BlockPool(blocks, 16),
        context=context,
        max_rows=rows,
        max_tokens=128,
        max_logit_rows=64,
        new_decoder=lambda request: TextDecoder(
            tokenizer, request.limits.stop_strings, request.limits.include_stop, request.limits.skip_special
        ),
        eos_ids=tokenizer.eos_ids,
        speculation=speculation,
    )
    engine = Engine(scheduler, runner, asyncio.get_running_loop(), queue_timeout_s)
    card = SimpleNamespace(
        name="toy",
        architecture="toy",
        quantization="F32",
        parameters=1,
        size_bytes=4,
        trained_context=context,
        loaded_at=1,
    )
    loaded = SimpleNamespace(
        card=card,
        facts=facts,
        tokenizer=tokenizer,
        backend=SimpleNamespace(name="toy"),
        memory=SimpleNamespace(block_size=16, kv_tokens=blocks * 16, rows=rows),
        adapters=None,
        adapted=lambda name: None,
    )
    services = Services(
        pool=ThreadPoolExecutor(2), metrics=Metrics(), state=State.READY, loaded=loaded, engine=engine, **options
    )
    table = routes(services, tokenizer_info=tokenizer_info, dev_mode=dev_mode)
    server = Server(Application(Router(table), Gate(gate or GateSettings()), services.observe, services.keeps_bodies))
    await server.listen("127.0.0.1", 0)
    host, port = server.addresses[0]
    url = f"http://{host}:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            yield Harness(client, services, engine, runner, server, url, scheduler)
    finally:
        if isinstance(runner, ScriptedRunner):
            runner.held.set()
        await server.close()
        await engine.stop()
        assert await services.settled(5)
        services.pool.shutdown()
        services.compilers.shutdown()
