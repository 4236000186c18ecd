"""Every route of the server, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from imp.http import generate
from imp.http.message import HttpRequest, Response
from imp.http.router import Access, Handler, Route, with_aliases
from imp.http.routes import info, models, tokens, ui
from imp.http.services import Services

Bound = Callable[[Services, HttpRequest], Awaitable[Response]]


def routes(services: Services, *, metrics_need_key: bool = False) -> list[Route]:
    """The table, with the handlers bound to `services`."""

    def on(handler: Bound) -> Handler:
        async def bound(request: HttpRequest) -> Response:
            return await handler(services, request)

        return bound

    key, free = Access.KEY, Access.OPEN
    table = [
        Route(("POST",), "/v1/chat/completions", on(generate.chat_completions), key, generates=True),
        Route(("POST",), "/v1/completions", on(generate.completions), key, generates=True),
        Route(("GET",), "/v1/models", on(models.listing), key),
        Route(("GET",), "/v1/models/{id}", on(models.one), key),
        Route(("POST",), "/tokenize", on(tokens.tokenize), key),
        Route(("POST",), "/detokenize", on(tokens.detokenize), key),
        Route(("GET",), "/health", on(info.health), free),
        Route(("GET",), "/ready", on(info.ready), free),
        Route(("GET", "POST"), "/ping", on(info.ping), free),
        Route(("GET",), "/version", on(info.version), free),
        Route(("GET",), "/metrics", on(info.metrics), key if metrics_need_key else free),
        Route(("GET",), "/", on(ui.page), free),
    ]
    return with_aliases(table)
