"""Every route of the server, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from imp.http import generate
from imp.http.message import HttpRequest, Response, json_response
from imp.http.router import Access, Handler, Route, with_aliases
from imp.http.routes import (
    adapters,
    control,
    description,
    info,
    models,
    probes,
    responses,
    responses_socket,
    tokens,
    ui,
)
from imp.http.services import Services

Bound = Callable[[Services, HttpRequest], Awaitable[Response]]


def routes(
    services: Services,
    *,
    metrics_need_key: bool = False,
    tokenizer_info: bool = False,
    dev_mode: bool = False,
    script_log: Callable[[], list[dict[str, Any]]] | None = None,
) -> list[Route]:
    """The table, with the handlers bound to `services`. What a flag does not switch on is not in it."""

    def on(handler: Bound) -> Handler:
        async def bound(request: HttpRequest) -> Response:
            return await handler(services, request)

        return bound

    key, free, admin = Access.KEY, Access.OPEN, Access.ADMIN
    table = [
        Route(("POST",), "/v1/chat/completions", on(generate.chat_completions), key, generates=True),
        Route(("POST",), "/v1/completions", on(generate.completions), key, generates=True),
        Route(("POST",), "/v1/messages", on(generate.messages), key, generates=True),
        Route(("POST",), "/v1/messages/count_tokens", on(generate.count_tokens), key),
        Route(("POST",), "/v1/embeddings", on(generate.embed), key, generates=True),
        Route(("POST",), "/v1/rerank", on(generate.rank), key, generates=True),
        Route(("POST",), "/v2/rerank", on(generate.rank), key, generates=True),
        Route(("POST",), "/v1/score", on(generate.score), key, generates=True),
        Route(("POST",), "/v1/responses", on(responses.create), key, generates=True),
        Route(("GET",), "/v1/responses", on(responses_socket.opened), key),
        Route(("POST",), "/v1/responses/input_tokens", on(responses.input_tokens), key),
        Route(("POST",), "/v1/responses/compact", on(responses.compact), key, generates=True),
        Route(("GET",), "/v1/responses/{id}", on(responses.retrieve), key),
        Route(("DELETE",), "/v1/responses/{id}", on(responses.delete), key),
        Route(("POST",), "/v1/responses/{id}/cancel", on(responses.cancel), key),
        Route(("GET",), "/v1/responses/{id}/input_items", on(responses.input_items), key),
        Route(("GET",), "/v1/models", on(models.listing), key),
        Route(("GET",), "/v1/models/{id}", on(models.one), key),
        Route(("POST",), "/tokenize", on(tokens.tokenize), key),
        Route(("POST",), "/detokenize", on(tokens.detokenize), key),
        Route(("POST",), "/apply-template", on(tokens.apply_template), key),
        Route(("POST",), "/v1/chat/completions/input_tokens", on(tokens.input_tokens), key),
        Route(("POST",), "/infill", on(generate.infill), key, generates=True),
        Route(("GET",), "/slots", on(probes.slots), key),
        Route(("GET",), "/props", on(probes.props), key),
        Route(("GET",), "/info", on(probes.info), key),
        Route(("GET",), "/server_info", on(probes.server_info), key),
        Route(("GET",), "/load", on(probes.load), key),
        Route(("DELETE",), "/v1/requests/{id}", on(control.cancel), key),
        Route(("POST",), "/admin/suspend", on(control.suspend), admin),
        Route(("POST",), "/admin/resume", on(control.resume), admin),
        Route(("POST",), "/admin/lora/load", on(adapters.load), admin),
        Route(("POST",), "/admin/lora/unload", on(adapters.unload), admin),
        Route(("POST",), "/v1/requests/{id}/end_thinking", on(control.end_thinking), key),
        Route(("POST",), "/reset_prefix_cache", on(control.reset_prefix_cache), admin),
        Route(("GET",), "/health", on(info.health), free),
        Route(("GET",), "/ready", on(info.ready), free),
        Route(("GET", "POST"), "/ping", on(info.ping), free),
        Route(("GET",), "/version", on(info.version), free),
        Route(("GET",), "/metrics", on(info.metrics), key if metrics_need_key else free),
        Route(("GET",), "/", on(ui.page), free),
    ]
    if tokenizer_info:
        table.append(Route(("GET",), "/tokenizer_info", on(tokens.tokenizer_info), key))
    if dev_mode:
        table.append(Route(("POST",), "/abort_requests", on(control.abort_requests), admin))
    if script_log is not None:

        async def log(request: HttpRequest) -> Response:
            return json_response({"object": "list", "data": script_log()})

        table.append(Route(("GET",), "/script/log", log, key))
    table = with_aliases(table)
    table.append(Route(("GET",), "/openapi.json", description.of(table), free))
    return table
