"""The one path of every generating endpoint: read, prepare, run, write. Streamed or not, the same events are folded."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from imp.chat.guessing import declined
from imp.chat.message import ChatRequest, Refused
from imp.chat.pooling import answer_tokens, prepare_embeddings, prepare_relevance
from imp.chat.prepare import ModelFacts, encode_rendered, prepare_chat, prepare_completion
from imp.chat.rendering import render
from imp.http import sse
from imp.http.dialects import (
    anthropic,
    anthropic_messages,
    anthropic_writer,
    embeddings,
    openai_chat,
    openai_completions,
    rerank,
)
from imp.http.dialects import infill as infilling
from imp.http.dialects.shared import Conversation
from imp.http.errors import ApiError
from imp.http.fields import CUT_HEADER, IGNORED_HEADER, named
from imp.http.message import HttpRequest, Response, dumps_long, json_bytes, json_response
from imp.http.recorder import Recorder
from imp.http.services import Generation, Services
from imp.http.turn import bound
from imp.types import Event, Request

log = logging.getLogger(__name__)

LONG_REPLY = 50  # tokens with their log-probabilities: with 20 alternatives each, written in a millisecond


class Reply(Protocol):
    """A dialect's way out for what is never streamed."""

    header: openai_chat.Header
    conversation: Conversation

    def reply(self) -> Any: ...


class Writer(Reply, Protocol):
    """A dialect's way out."""

    def frame(self, event: Event) -> bytes: ...
    def end(self) -> bytes: ...
    def error(self, error: ApiError) -> bytes: ...


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _header(services: Services, prefix: str, name: str) -> openai_chat.Header:
    return openai_chat.Header(new_id(prefix), int(time.time()), name, services.fingerprint)


async def chat_completions(services: Services, request: HttpRequest) -> Response:
    """POST /v1/chat/completions"""
    recorder = Recorder(services, request, "/v1/chat/completions")
    with recorder.watching():
        ask = await services.read(request, openai_chat.read)
        loaded = await recorder.lease(ask.model, ask.lora)
        header = _header(services, "chatcmpl-", loaded.card.name)
        prepared = await services.prepare(
            lambda: prepare_chat(ask.chat, loaded.facts, header.id, recorder.began), ask.chat.options.priority
        )
        prepared, heard = await bound(services, recorder, ask.chat, ask.constraint, prepared, loaded.facts)
    conversation = Conversation([(prepared.id, prepared.n)], recorder.timings if ask.timings else None, heard)
    conversation.declined = declined(ask.chat.options, loaded.facts)
    writer = openai_chat.Writer(ask, header, conversation, loaded.tokenizer, prepared.prompt)
    return await answer(services, [prepared], writer, recorder, ask.stream, ask.ignored)


async def completions(services: Services, request: HttpRequest) -> Response:
    """POST /v1/completions"""
    recorder = Recorder(services, request, "/v1/completions")
    with recorder.watching():
        ask = await services.read(request, lambda body: openai_completions.read(body, services.max_batch_items))
        loaded = await recorder.lease(ask.model, ask.lora)
        header = _header(services, "cmpl-", loaded.card.name)
        wanted = ask.completion
        cut = wanted.options.truncate_prompt is not None

        def work() -> tuple[list[Request], list[str]]:
            """The requests, and the texts of their prompts."""
            made = prepare_completion(wanted, loaded.facts, header.id, recorder.began)
            pairs = zip(wanted.prompts, made, strict=True)
            decode = loaded.tokenizer.decode
            return made, [p if isinstance(p, str) and not cut else decode(each.prompt) for p, each in pairs]

        prepared, texts = await services.prepare(work, wanted.options.priority)
        with recorder.compiling(ask.constraint):
            prepared = await services.constrained(prepared, ask.constraint, loaded.facts)
    conversation = Conversation([(each.id, each.n) for each in prepared], recorder.timings if ask.timings else None)
    conversation.declined = declined(wanted.options, loaded.facts)
    writer = openai_completions.Writer(ask, header, conversation, loaded.tokenizer, texts, [p.prompt for p in prepared])
    return await answer(services, prepared, writer, recorder, ask.stream, ask.ignored)


async def infill(services: Services, request: HttpRequest) -> Response:
    """POST /infill"""
    recorder = Recorder(services, request, "/infill")
    with recorder.watching():
        ask = await services.read(request, infilling.read)
        loaded = await recorder.lease(ask.model, ask.lora)
        header = _header(services, "infill-", loaded.card.name)
        prepared = await services.prepare(
            lambda: prepare_completion(ask.completion, loaded.facts, header.id, recorder.began),
            ask.completion.options.priority,
        )
    conversation = Conversation([(prepared[0].id, 1)], recorder.timings if ask.timings else None)
    return await answer(services, prepared, infilling.Writer(header, conversation), recorder, ask.stream, ask.ignored)


async def messages(services: Services, request: HttpRequest) -> Response:
    """POST /v1/messages"""
    recorder = Recorder(services, request, "/v1/messages")
    with recorder.watching():
        ask = await _read_messages(services, request)
        loaded = await recorder.lease(ask.model)
        header = _header(services, "msg_", loaded.card.name)
        prepared = await services.prepare(
            lambda: _reworded(lambda: prepare_chat(ask.chat, loaded.facts, header.id, recorder.began)),
            ask.chat.options.priority,
        )
        prepared, heard = await bound(services, recorder, ask.chat, ask.constraint, prepared, loaded.facts)
    timings = recorder.timings if ask.timings else None
    sign = partial(services.seal.sign, anthropic_messages.THINKING, shown=not ask.omits)
    conversation = Conversation([(prepared.id, prepared.n)], timings, heard, "toolu_")
    writer = anthropic_writer.Writer(header, conversation, request.id, sign, ask.omits, prepared.pin)
    headers = _echoed(services, request)
    return await answer(services, [prepared], writer, recorder, ask.stream, ask.ignored, headers, anthropic_writer.PING)


async def _read_messages(services: Services, request: HttpRequest) -> anthropic.Ask:
    interleaved = any("interleaved-thinking" in value for value in request.headers.all("anthropic-beta"))

    def read(body: Mapping[str, Any]) -> tuple[anthropic.Ask, bool]:
        short = anthropic_messages.without_billing(body, services.agent_scan_limit)
        return anthropic.read(short, services.seal, interleaved), short is not body

    ask, shortened = await services.read(request, read)
    if shortened and services.said.first(anthropic_messages.BILLING):
        log.info("the line %s ... of system prompts is left out (server.agent_scan_limit)", anthropic_messages.BILLING)
    return ask


async def count_tokens(services: Services, request: HttpRequest) -> Response:
    """POST /v1/messages/count_tokens: the prompt of the same request to /v1/messages, in tokens."""
    ask = await _read_messages(services, request)
    facts = services.serving(ask.model).facts
    count = await services.prepare(lambda: _reworded(lambda: _count(ask.chat, facts)))
    headers = _echoed(services, request) | ignored_headers(services, ask.ignored)
    return json_response({"input_tokens": count}, headers=headers)


async def embed(services: Services, request: HttpRequest) -> Response:
    """POST /v1/embeddings"""
    recorder = Recorder(services, request, "/v1/embeddings")
    with recorder.watching():
        ask = await services.read(request, lambda body: embeddings.read(body, services.max_batch_items))
        loaded = await recorder.lease(ask.model)
        header = _header(services, "embd-", loaded.card.name)
        cut: list[str] = []
        prepared = await services.prepare(
            lambda: prepare_embeddings(ask.wanted, loaded.facts, header.id, recorder.began, cut.append)
        )
    writer = embeddings.Writer(ask, header, Conversation([(each.id, each.n) for each in prepared]))
    headers = {CUT_HEADER: named(cut)} if cut else {}
    return await _measure(services, prepared, writer, recorder, ask.ignored, headers)


async def rank(services: Services, request: HttpRequest) -> Response:
    """POST /v1/rerank, /v2/rerank and /rerank: Cohere's, Jina's and vLLM's shapes, and TEI's."""
    return await _score(services, request, "/v1/rerank", rerank.read_rerank)


async def score(services: Services, request: HttpRequest) -> Response:
    """POST /v1/score and /score: vLLM's shape."""
    return await _score(services, request, "/v1/score", rerank.read_score)


async def _score(
    services: Services, request: HttpRequest, endpoint: str, read: Callable[[Mapping[str, Any], str, int], rerank.Ask]
) -> Response:
    recorder = Recorder(services, request, endpoint)
    with recorder.watching():
        ask = await services.read(request, lambda body: read(body, request.path, services.max_batch_items))
        loaded = await recorder.lease(ask.model)
        header = _header(services, "score-" if ask.shape is rerank.Shape.SCORE else "rerank-", loaded.card.name)
        prepared = await services.prepare(
            lambda: prepare_relevance(ask.wanted, loaded.facts, header.id, recorder.began)
        )
    yes, _ = answer_tokens(loaded.facts)
    writer = rerank.Writer(ask, header, Conversation([(each.id, each.n) for each in prepared]), len(yes))
    return await _measure(services, prepared, writer, recorder, ask.ignored)


async def _measure(
    services: Services,
    prepared: Sequence[Request],
    writer: Reply,
    recorder: Recorder,
    ignored: Sequence[str],
    extra: Mapping[str, str] | None = None,
) -> Response:
    """Numbers about prompts: run like an answer that is not streamed; long bodies are written in the pool."""
    _enter(services, prepared, writer, recorder, False)
    await _collect(services, prepared, writer, recorder)
    headers = dict(extra or {}) | recorder.headers | ignored_headers(services, ignored)
    return await _written(services, writer, recorder, headers)


async def _written(services: Services, writer: Reply, recorder: Recorder, headers: Mapping[str, str]) -> Response:
    """The whole answer, written in the pool."""
    body = await services.prepare(lambda: dumps_long(writer.reply()))
    recorder.reply = lambda: body
    return json_bytes(body, headers=headers)


def _count(chat: ChatRequest, facts: ModelFacts) -> int:
    return len(encode_rendered(render(chat, facts), facts))


def _reworded[T](work: Callable[[], T]) -> T:
    """What `work` returns; what it refuses, in Anthropic's words."""
    try:
        return work()
    except Refused as error:
        raise anthropic.reworded(error) from None


async def answer(
    services: Services,
    prepared: Sequence[Request],
    writer: Writer,
    recorder: Recorder,
    stream: bool,
    ignored: Sequence[str],
    extra: Mapping[str, str] | None = None,
    ping: bytes = sse.KEEPALIVE,
) -> Response:
    """extra: more response headers.  ping: what a stream sends while nothing comes."""
    _enter(services, prepared, writer, recorder, stream)
    headers = dict(extra or {}) | recorder.headers | ignored_headers(services, ignored)
    if stream:
        chunks = _chunks(services, prepared, writer, recorder)
        return sse.response(chunks, services.ping_s, ping, headers)
    await _collect(services, prepared, writer, recorder)
    if sum(len(each.logprobs) + len(each.prompt_logprobs or ()) for each in writer.conversation.choices) > LONG_REPLY:
        return await _written(services, writer, recorder, headers)
    response = json_response(writer.reply(), headers=headers)
    recorder.reply = lambda: response.body
    return response


def _enter(services: Services, prepared: Sequence[Request], writer: Reply, recorder: Recorder, stream: bool) -> None:
    """The last look before the engine gets the requests; ApiError 429."""
    recorder.conversation, recorder.model, recorder.streamed = writer.conversation, writer.header.model, stream
    recorder.response_id, recorder.reply = writer.header.id, writer.reply
    with recorder.watching():
        services.make_room(prepared)
    recorder.ahead = recorder.engine.ahead(min(request.priority for request in prepared))


async def _collect(services: Services, prepared: Sequence[Request], writer: Reply, recorder: Recorder) -> None:
    """Run the requests to their end, folding every event into the conversation. Raises ApiError."""
    async with _events(services, prepared, recorder) as batches:
        async for events in batches:
            for event in events:
                writer.conversation.take(event)


async def _chunks(
    services: Services, prepared: Sequence[Request], writer: Writer, recorder: Recorder
) -> AsyncGenerator[bytes]:
    """The frames of an answer. A failure is told in the stream and ends it; leaving early aborts the requests."""
    try:
        async with _events(services, prepared, recorder) as batches:
            async for events in batches:
                frames: list[bytes] = []
                try:
                    for event in events:
                        frames.append(writer.frame(event))
                except ApiError:
                    yield b"".join(frames)  # what came before the failure is not lost with it
                    raise
                yield b"".join(frames)
        yield writer.end()
    except ApiError as error:
        yield writer.error(error)


@asynccontextmanager
async def _events(services: Services, prepared: Sequence[Request], recorder: Recorder) -> AsyncGenerator[Generation]:
    """What the engine says, for as long as a request may take; the recorder learns how it ended. Raises ApiError."""
    with recorder.watching():
        try:
            owned = [replace(each, owner=recorder.request.owner) for each in prepared]
            async with aclosing(recorder.open(owned)) as generation:
                generation.expire_after(services.request_timeout_s)
                with services.entered(recorder.response_id, recorder.request.id, prepared):
                    yield generation
        except TimeoutError:
            recorder.timed_out = True
            message = f"The request took longer than {services.request_timeout_s:g} seconds."
            raise ApiError(504, "request_timeout", message) from None
    recorder.complete = True


def ignored_headers(services: Services, names: Sequence[str]) -> dict[str, str]:
    """Unknown fields are let through, named in a header, and logged once per name."""
    for name in names:
        if services.said.first(name):
            log.info("unknown request field %s is ignored", ascii(name[:100]))
    return {IGNORED_HEADER: named(names)} if names else {}


def _echoed(services: Services, request: HttpRequest) -> dict[str, str]:
    """Anthropic's version and beta headers, said back. No beta changes anything here; each is logged once."""
    betas = [name.strip() for value in request.headers.all("anthropic-beta") for name in value.split(",")]
    for name in betas:
        if name and services.said.first(f"beta {name[:100]}"):
            log.info("anthropic-beta %s has no effect", ascii(name[:100]))
    given = {"Anthropic-Version": request.headers.get("anthropic-version", ""), "Anthropic-Beta": ",".join(betas)}
    return {name: value for name, value in given.items() if value and value.isascii() and value.isprintable()}
