"""GET /openapi.json: the description of these very routes, written when first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from imp.http import openapi
from imp.http.message import HttpRequest, Response, dumps, json_bytes
from imp.http.router import Handler, Route


def of(routes: Sequence[Route]) -> Handler:
    """The handler; what it describes is `routes`, with those that are added before the first request."""

    @cache
    def body() -> bytes:
        return dumps(openapi.document(routes))

    async def respond(request: HttpRequest) -> Response:
        return json_bytes(body())

    return respond
