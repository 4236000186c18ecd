"""The Responses API over HTTP: create, read, cancel, delete, count and compact. Sockets: responses_socket.py."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from imp.chat.prepare import encode_rendered
from imp.chat.rendering import render
from imp.http import sse
from imp.http.dialects import responses, responses_compact
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.responses_items import REASONING, Item, check_calls, new_id, read_items, references
from imp.http.dialects.responses_writer import Writer
from imp.http.dialects.shared import Conversation
from imp.http.errors import ApiError, bad_request, internal, not_found
from imp.http.generate import answer, ignored_headers
from imp.http.message import HttpRequest, Response, Stream, json_response
from imp.http.recorder import Recorder
from imp.http.services import Loaded, Services
from imp.http.store import EventLog, Latest, Stored
from imp.http.turn import bound
from imp.types import Event, Request

log = logging.getLogger(__name__)

CANCEL_S = 10.0  # a step may take long; past this a cancelled response is shown as it is


@dataclass(frozen=True, slots=True)
class _Context:
    """What was said before, and what is said now."""

    history: tuple[Item, ...]
    items: tuple[Item, ...]
    history_bytes: int

    @property
    def conversation(self) -> tuple[Item, ...]:
        return self.history + self.items


def _context(services: Services, request: HttpRequest, ask: responses.Ask) -> Callable[[], _Context]:
    """Previous responses and references looked up: on the connection first, then in the store. ApiError 400.

    Returns what reads the items, which may be thousands: for the pool, a pure function. It raises ApiError 400, too."""
    latest: Latest = request.local or Latest()
    previous = None
    if ask.previous is not None:
        previous = latest.get(ask.previous) or services.responses.get(ask.previous, request.owner)
        if previous is None:
            raise responses.previous_not_found(ask.previous)
        if not previous.over.is_set():
            raise bad_request("previous_response_id", "The previous response is not over yet.", "response_not_over")
    history = previous.conversation if previous else ()
    named = {id: latest.item(id) or services.responses.item(id, request.owner) for id in references(ask.input)}

    def read() -> _Context:
        items = read_items(ask.input, named.get)
        check_calls(history, items, services.seal)
        return _Context(history, items, previous.conversation_bytes if previous else 0)

    return read


async def create(services: Services, request: HttpRequest) -> Response:
    """POST /v1/responses"""
    recorder = Recorder(services, request, "/v1/responses")
    with recorder.watching():
        ask = await services.read(request, lambda body: responses.read(body, over_socket=request.local is not None))
        if ask.background and not services.responses.keeps:
            raise bad_request("background", '"background" needs a store, and this server keeps no responses.')
        loaded, context_of = await recorder.lease(ask.model), _context(services, request, ask)
        header = _header(services, loaded)

        def work() -> tuple[_Context, Request]:
            context = context_of()
            return context, _prepared(services, ask, context, loaded, header.id, recorder.began)

        context, prepared = await services.prepare(work, ask.options.priority)
        prepared, heard = await bound(services, recorder, ask.words, ask.constraint, prepared, loaded.facts)
        conversation = Conversation([(prepared.id, prepared.n)], recorder.timings if ask.timings else None, heard)
        seal = partial(services.seal.seal, REASONING) if ask.seals else None
        writer = Writer(ask, header, conversation, loaded.tokenizer, prepared.sampling, seal)
        turn = _turn(services, request, ask, context, writer)
        if ask.background:
            return await _in_background(services, request, recorder, ask, turn, prepared)
    response = await answer(services, [prepared], turn, recorder, ask.stream, ask.ignored)
    if not ask.stream:
        turn.finish()
    return response


def _header(services: Services, loaded: Loaded) -> Header:
    return Header(new_id("resp_"), int(time.time()), loaded.card.name, services.fingerprint)


def _prepared(
    services: Services, ask: responses.Ask, context: _Context, loaded: Loaded, id: str, arrived: float
) -> Request:
    turns = responses.chat(ask, context.conversation, services.seal)
    return responses.prepare(ask, turns, loaded.facts, id, arrived)


class _Turn:
    """A writer whose response is kept: its events as they come, itself when it is over."""

    def __init__(self, writer: Writer, stored: Stored, on_end: Callable[[Stored], None]) -> None:
        self.writer, self.stored = writer, stored
        self.header, self.conversation, self.reply = writer.header, writer.conversation, writer.reply
        self._on_end = on_end

    def queued(self) -> bytes:
        return self._log(self.writer.queued())

    def frame(self, event: Event) -> bytes:
        frames = self._log(self.writer.frame(event))
        if self.stored.response.get("status") != self.writer.status:
            self.stored.response = self.reply()
        return frames

    def end(self) -> bytes:
        frames = self._log(self.writer.end())
        self.finish()
        return frames

    def error(self, error: ApiError) -> bytes:
        frames = self._log(self.writer.error(error))
        self.finish()
        return frames

    def finish(self) -> None:
        """The response is over. It is kept before its last event goes out, so that a client can go on from it."""
        stored = self.stored
        stored.response = self.reply()
        if stored.log is not None:
            stored.log.close()
        stored.over.set()
        self._on_end(stored)

    def _log(self, frames: bytes) -> bytes:
        return self.stored.log.add(frames) if frames and self.stored.log is not None else frames


def _turn(
    services: Services,
    request: HttpRequest,
    ask: responses.Ask,
    context: _Context,
    writer: Writer,
) -> _Turn:
    keeps = ask.store and services.responses.keeps
    stored = Stored(
        writer.header.id,
        request.owner,
        {},
        context.items,
        context.history,
        context.history_bytes,
        EventLog() if keeps and (ask.stream or ask.background) else None,
    )
    latest: Latest | None = request.local

    def on_end(stored: Stored) -> None:
        if keeps:
            services.responses.put(stored)
        if latest is not None and stored.response["status"] != "failed":
            latest.stored = stored

    return _Turn(writer, stored, on_end)


# -- in the background ----------------------------------------------------------------------------


async def _in_background(
    services: Services,
    request: HttpRequest,
    recorder: Recorder,
    ask: responses.Ask,
    turn: _Turn,
    prepared: Request,
) -> Response:
    """A stream that nobody reads; what it leaves in the log is there for whoever comes. The place among the generating
    requests, and the record, are the work's and not the exchange's."""
    work = await answer(services, [prepared], turn, recorder, True, ask.ignored)
    assert isinstance(work, Stream) and turn.stored.log is not None
    turn.queued()
    turn.stored.response = turn.reply()
    services.responses.put(turn.stored)
    task = asyncio.create_task(_work(work, turn, request.outlive()))
    services.background.add(task)
    task.add_done_callback(services.background.discard)
    if ask.stream:
        return _events(services, turn.stored.log, 0, work.headers)
    headers = recorder.headers | ignored_headers(services, ask.ignored)
    return json_response(turn.stored.response, headers=headers)


async def _work(work: Stream, turn: _Turn, ending: Callable[[], None]) -> None:
    try:
        while True:
            await anext(work.chunks)
    except StopAsyncIteration:
        pass
    except Exception:
        log.exception("background response %s failed", turn.header.id)
        turn.error(internal())
    finally:
        await work.chunks.aclose()
        ending()


def _events(services: Services, log: EventLog, number: int, headers: dict[str, str] | None = None) -> Response:
    return sse.response(log.follow(number), services.ping_s, headers=headers)


# -- kept responses -------------------------------------------------------------------------------


def _stored(services: Services, request: HttpRequest) -> Stored:
    id = request.params["id"]
    stored = services.responses.get(id, request.owner)
    if stored is None:
        raise _unknown(id)
    return stored


def _unknown(id: str) -> ApiError:
    return not_found(f'Response with id "{id[:100]}" not found.', "response_not_found")


async def retrieve(services: Services, request: HttpRequest) -> Response:
    """GET /v1/responses/{id}; with `stream=true` its events, those after `starting_after`, and those to come."""
    stored = _stored(services, request)
    streams = _flag(request, "stream")
    after = _integer(request, "starting_after", 0, None)
    if not streams:
        if after is not None:
            raise bad_request("starting_after", '"starting_after" needs "stream" to be true.')
        return json_response(stored.response)
    if stored.log is None:
        message = "This response was neither streamed nor made in the background: it has no events."
        raise bad_request("stream", message)
    return _events(services, stored.log, 0 if after is None else after + 1)


async def delete(services: Services, request: HttpRequest) -> Response:
    """DELETE /v1/responses/{id}; what still runs is cancelled."""
    stored = services.responses.remove(request.params["id"], request.owner)
    if stored is None:
        raise _unknown(request.params["id"])
    await _end(services, stored)
    return json_response({"id": stored.id, "object": "response", "deleted": True})


async def cancel(services: Services, request: HttpRequest) -> Response:
    """POST /v1/responses/{id}/cancel: end a background response; one that is over is answered as it is."""
    stored = _stored(services, request)
    if not stored.response["background"]:
        raise bad_request("background", "Only a response created with background: true can be cancelled.")
    await _end(services, stored)
    return json_response(stored.response)


async def _end(services: Services, stored: Stored) -> None:
    """Abort a running response and wait until it says so; it may be on its way to the engine only."""
    deadline = time.monotonic() + CANCEL_S
    while not stored.over.is_set() and services.engine is not None and time.monotonic() < deadline:
        await services.engine.abort([stored.id])
        with suppress(TimeoutError):
            await asyncio.wait_for(stored.over.wait(), 0.05)


async def input_items(services: Services, request: HttpRequest) -> Response:
    """GET /v1/responses/{id}/input_items: what the response was made from, earlier turns included; newest first."""
    stored = _stored(services, request)
    limit = _integer(request, "limit", 1, 100) or 20
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("order", '"order" must be "asc" or "desc".')
    items = list(stored.history + stored.input)
    if order == "desc":
        items.reverse()
    after = request.query.get("after")
    if after is not None:
        at = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise bad_request("after", f'"after": the response has no item "{after[:100]}".')
        del items[: at + 1]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_response({"object": "list", "data": page} | ends | {"has_more": len(items) > limit})


def _flag(request: HttpRequest, name: str) -> bool:
    value = request.query.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise bad_request(name, f'"{name}" must be true or false.')
    return value in ("true", "1")


def _integer(request: HttpRequest, name: str, low: int, high: int | None) -> int | None:
    value = request.query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10 and low <= int(value) <= (high or int(value))):
        bounds = f"between {low} and {high}" if high else f"of at least {low}"
        raise bad_request(name, f'"{name}" must be an integer {bounds}.')
    return int(value)


# -- counting and compacting ----------------------------------------------------------------------


async def input_tokens(services: Services, request: HttpRequest) -> Response:
    """POST /v1/responses/input_tokens: the prompt of the same request to /v1/responses, in tokens."""
    ask = await services.read(request, responses.read)
    facts, context_of = services.serving(ask.model).facts, _context(services, request, ask)

    def count() -> int:
        turns = responses.chat(ask, context_of().conversation, services.seal)
        return len(encode_rendered(render(turns, facts), facts))

    tokens = await services.prepare(count)
    body = {"object": "response.input_tokens", "input_tokens": tokens}
    return json_response(body, headers=ignored_headers(services, ask.ignored))


async def compact(services: Services, request: HttpRequest) -> Response:
    """POST /v1/responses/compact: the conversation as one item, which is the model's own summary of it."""
    recorder = Recorder(services, request, "/v1/responses/compact")
    with recorder.watching():
        ask = await services.read(request, responses.read_compact)
        loaded, context_of = await recorder.lease(ask.model), _context(services, request, ask)
        header = _header(services, loaded)

        def work() -> tuple[Request, responses_compact.Kept]:
            """The request, and what is kept as it is."""
            conversation = context_of().conversation
            turns = responses.chat(ask, conversation, services.seal)
            chat = responses_compact.summarising(turns, loaded.facts.context)
            prepared = responses.prepare(ask, chat, loaded.facts, header.id, recorder.began)
            return prepared, responses_compact.unanswered(conversation, services.seal)

        prepared, kept = await services.prepare(work)
    conversation = Conversation([(prepared.id, prepared.n)])
    inner = Writer(ask, header, conversation, loaded.tokenizer, prepared.sampling)
    writer = responses_compact.Writer(inner, kept, services.seal)
    return await answer(services, [prepared], writer, recorder, False, ask.ignored)
