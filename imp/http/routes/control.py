"""Routes that reach into what runs: cancelling requests, forgetting the prefix cache.

A request that is cancelled here ends as an error, because what it has is not the answer that was asked for: unstreamed
with status 499 (its client closed it; 409, which would say as much, makes OpenAI's SDKs send the request again), in a
stream with the dialect's error event and its usual end. The code is `request_aborted` in both.
"""

from __future__ import annotations

from collections.abc import Callable

from imp.http.errors import ApiError, not_found, unavailable
from imp.http.message import HttpRequest, Response, json_response
from imp.http.services import EngineLike, Generating, ResidentLike, Services


async def cancel(services: Services, request: HttpRequest) -> Response:
    """DELETE /v1/requests/{id}: end the request whose response has this id, or all that were sent with it as their
    X-Request-Id. 404 where none of that name runs."""
    wanted = request.params["id"]
    aborted = await _abort(services, lambda one: wanted in (one.response_id, one.request_id))
    if not aborted:
        raise not_found("No request of this id is running.", "request_not_found")
    return json_response({"id": wanted, "status": "aborted", "aborted": aborted})


async def end_thinking(services: Services, request: HttpRequest) -> Response:
    """POST /v1/requests/{id}/end_thinking: the answer begins now. `ended`: the sequences that were thinking.

    404 where no request of that name (as in `cancel`) runs, 400 where none of them may think."""
    wanted = request.params["id"]
    chosen = [one for one in services.generating if wanted in (one.response_id, one.request_id)]
    if not chosen:
        raise not_found("No request of this id is running.", "request_not_found")
    thinking = [each for one in chosen for each in one.thinking]
    if not thinking:
        raise ApiError(400, "not_thinking", "This request does not think.")
    return json_response({"id": wanted, "ended": sum(each.end() for each in thinking)})


async def abort_requests(services: Services, request: HttpRequest) -> Response:
    """POST /abort_requests, vLLM's: `request_ids` are names as in `cancel`; an empty list, or none, means everybody.
    Names nobody has are left alone."""
    malformed = json_response({"detail": "Invalid JSON format"}, 400)
    try:
        names = (await services.read(request, dict)).get("request_ids")
    except ApiError as error:
        if error.status != 400:
            raise
        return malformed
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return malformed
    known = frozenset(names or ())
    aborted = await _abort(services, lambda one: not known or one.response_id in known or one.request_id in known)
    return json_response({"status": "aborted", "aborted": aborted})


async def _abort(services: Services, wanted: Callable[[Generating], bool]) -> int:
    """How many HTTP requests were ended; those that ended by themselves in the meantime do not count."""
    chosen = [one for one in services.generating if wanted(one)]
    if not chosen:
        return 0
    live = frozenset(await _engine(services).abort([each for one in chosen for each in one.engine_ids]))
    return sum(not live.isdisjoint(one.engine_ids) for one in chosen)


async def reset_prefix_cache(services: Services, request: HttpRequest) -> Response:
    """POST /reset_prefix_cache: forget every cached prompt. `success` is false, and nothing is done, while one runs."""
    return json_response({"success": await _engine(services).reset_prefix_cache()})


async def suspend(services: Services, request: HttpRequest) -> Response:
    """POST /admin/suspend: give the model's memory back once nothing runs; requests get a 503 until `resume`."""
    return json_response(await resident(services).suspend())


async def resume(services: Services, request: HttpRequest) -> Response:
    """POST /admin/resume: load the suspended model again."""
    return json_response(await resident(services).resume())


def resident(services: Services) -> ResidentLike:
    """What changes the model. ApiError 409 where nothing does."""
    if services.resident is None:
        raise ApiError(409, "no_model", "There is no model here that could be changed.")
    return services.resident


def _engine(services: Services) -> EngineLike:
    services.serving(None)
    assert services.engine is not None
    if services.engine.faulted:
        raise unavailable("engine_faulted", "The engine is faulted: its last steps failed.")
    return services.engine
