"""The way of every request: id, gate, router, handler, headers. The thin action on the gate's decisions.

`admit` decides on the head alone, before a byte of body is read; the handler it returns runs with the body there.
A generating request refused here gets its record here; past this door the record is the handler's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from imp.http.errors import ApiError, Envelope, envelope, internal
from imp.http.gate import Gate, request_id
from imp.http.message import Full, HttpRequest, Response, error_response
from imp.http.rates import tighter
from imp.http.router import Access, Handler, Match, Router
from imp.http.websocket import wants_upgrade
from imp.obs import trace
from imp.obs.record import RequestRecord

log = logging.getLogger(__name__)


class Application:
    """What the server serves. Owned by the event loop."""

    def __init__(
        self,
        router: Router,
        gate: Gate,
        observe: Callable[[RequestRecord], None] = lambda record: None,
        keeps_bodies: bool = False,
    ) -> None:
        """observe: where the records of refused generating requests go (Services.observe), with what was asked if
        `keeps_bodies`."""
        self.router = router
        self.gate = gate
        self._observe = observe
        self._keeps_bodies = keeps_bodies

    def admit(self, request: HttpRequest) -> Full | Handler:
        """Name the request and decide whether its body is wanted: the handler to call with it, or the answer.

        Fills in `id`, `client_request_id`, `client_ip` and `params`.
        """
        self._name(request)
        try:
            if request.method == "OPTIONS":
                return self._preflight(request)
            match, rate_headers = self._let_in(request)
        except ApiError as error:
            return self.refuse(request, error)
        request.params = match.params

        async def respond(request: HttpRequest) -> Response:
            response = await self._respond(request, match)
            self._add_headers(request, response, rate_headers)
            return response

        return respond

    def refuse(self, request: HttpRequest, error: ApiError) -> Full:
        """The answer to a request the protocol refuses; of a broken head, `request` knows next to nothing."""
        if not request.id:
            self._name(request)
        response = error_response(error, request.path, request.id)
        self._add_headers(request, response, {})
        return response

    def _name(self, request: HttpRequest) -> None:
        request.id, request.client_request_id = request_id(request.headers)
        request.client_ip = self.gate.client_ip(request.peer_ip, request.headers)

    def _let_in(self, request: HttpRequest) -> tuple[Match, dict[str, str]]:
        try:
            match = self.router.find(request.method, request.path)
        except ApiError:
            # what exists is not told to those without a key
            self.gate.charge_address(request.client_ip)
            self.gate.authorize(Access.KEY, request.headers, request.client_ip)
            raise
        try:
            return match, self._pass(request, match)
        except ApiError as error:
            self._record_refusal(request, match, error)
            raise

    def _pass(self, request: HttpRequest, match: Match) -> dict[str, str]:
        gate, client_ip = self.gate, request.client_ip
        if wants_upgrade(request.headers):
            gate.check_origin(request.headers)
        if match.route.access is Access.OPEN:
            return {}
        gate.check_host(request.headers)
        by_address = gate.charge_address(client_ip)
        who = gate.authorize(match.route.access, request.headers, client_ip)
        request.owner = who if gate.has_keys else ""
        gate.refuse_while_draining()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ApiError(415, "unsupported_content_encoding", "A compressed body is not read here.")
        request.charge = lambda tokens: gate.charge_tokens(who, client_ip, tokens)
        return tighter(by_address, gate.charge_request(who))

    async def _respond(self, request: HttpRequest, match: Match) -> Response:
        try:
            self._enter(request, match)
        except ApiError as error:
            self._record_refusal(request, match, error)
            return error_response(error, request.path, request.id)
        try:
            return await match.route.handler(request)
        except ApiError as error:
            return error_response(error, request.path, request.id)
        except Exception:
            log.exception("%s %s failed, request %s", request.method, match.route.pattern, request.id)
            return error_response(internal(), request.path, request.id)

    def _enter(self, request: HttpRequest, match: Match) -> None:
        if match.route.access is not Access.OPEN:
            self.gate.refuse_while_draining()  # it may have begun while the body came
        if match.route.generates:
            self.gate.enter()
            request.at_end(self.gate.leave)

    def _record_refusal(self, request: HttpRequest, match: Match, error: ApiError) -> None:
        if not match.route.generates:
            return
        passed_s = time.monotonic() - request.arrived
        self._observe(
            RequestRecord(
                endpoint=match.route.pattern,
                request_id=request.id,
                client_request_id=request.client_request_id,
                client_ip=request.client_ip,
                status=error.status,
                error_code=error.code,
                arrived_ns=time.time_ns() - int(passed_s * 1e9),
                duration_s=passed_s,
                trace=trace.join(request.headers.all("traceparent"), request.headers.all("tracestate")),
                request=request.body if self._keeps_bodies else b"",
                response=envelope(error, request.envelope, request.id) if self._keeps_bodies else None,
            )
        )

    def _preflight(self, request: HttpRequest) -> Full:
        headers = self.gate.preflight_headers(request.headers)
        try:
            allow = self.router.allow(request.path)
        except ApiError:  # a path with a broken escape has no methods to tell
            allow = None
        response = Full(204, b"", headers | ({"Allow": allow} if allow else {}))
        self._add_headers(request, response, {})
        return response

    def _add_headers(self, request: HttpRequest, response: Response, more: Mapping[str, str]) -> None:
        """What every response carries; the handler's own fields win."""
        headers = {"X-Request-Id": request.id}
        if request.envelope is Envelope.ANTHROPIC:
            headers["Request-Id"] = request.id
        response.headers = headers | self.gate.cors_headers(request.headers) | dict(more) | response.headers
