"""POST /admin/lora/load and /admin/lora/unload: adapters of the model that come and go while it runs."""

from __future__ import annotations

from imp.http.fields import Field, Kind, parse
from imp.http.message import HttpRequest, Response, json_response
from imp.http.routes.control import resident
from imp.http.services import Services

_NAME = Field("name", Kind.STRING, required=True, min_items=1, max_items=200, doc="What requests call it.")
LOAD = (_NAME, Field("path", Kind.STRING, required=True, min_items=1, max_items=4096, doc="A PEFT directory here."))
UNLOAD = (_NAME,)


async def load(services: Services, request: HttpRequest) -> Response:
    """ApiError 400 for an adapter that cannot be used or a name that is taken, 404 where there is none, 507."""
    given = await services.read(request, lambda body: parse(body, LOAD))
    adapter = await resident(services).load_adapter(given["name"], given["path"])
    told = {"rank": adapter.rank, "parameters": adapter.parameters, "size_bytes": adapter.size_bytes}
    return json_response({"loaded": True, "name": adapter.name} | told)


async def unload(services: Services, request: HttpRequest) -> Response:
    """Answers when no request has it any more. ApiError 404, and 503 where that takes too long."""
    given = await services.read(request, lambda body: parse(body, UNLOAD))
    await resident(services).unload_adapter(given["name"])
    return json_response({"loaded": False, "name": given["name"]})
