"""The Responses API over a WebSocket (WIRE.md 4.7): every `response.create` is let in as a POST of its own.

So a turn has the key, the rates, the limits and the record of any other request; only its events go out as messages.
Turns are answered one after the other, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from imp.http.errors import ApiError, bad_request
from imp.http.message import Full, Headers, HttpRequest, Response, Stream, Switch, dumps
from imp.http.router import Handler
from imp.http.services import Services
from imp.http.store import Latest
from imp.http.websocket import NORMAL, WebSocket, accept

Admit = Callable[[HttpRequest], Full | Handler]

# what a turn inherits of the opening; its own X-Request-Id, among others, it does not
_INHERITED = {"host", "authorization", "x-api-key", "x-forwarded-for", "forwarded", "traceparent", "tracestate"}
_DATA = b"\ndata: "


async def opened(services: Services, request: HttpRequest) -> Response:
    """GET /v1/responses"""
    headers = accept(request)

    async def session(socket: WebSocket, admit: Admit) -> None:
        await _Session(services, request, socket, admit).run()

    return Switch(headers, session, services.ping_s)


class _Session:
    """One client's turns."""

    def __init__(self, services: Services, request: HttpRequest, socket: WebSocket, admit: Admit) -> None:
        self._services, self._request, self._socket, self._admit = services, request, socket, admit
        self._latest = Latest()

    async def run(self) -> None:
        """Until the client leaves, the server goes down, or an hour has passed between two turns."""
        deadline = time.monotonic() + self._services.socket_limit_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    message = await self._socket.receive()
            except TimeoutError:
                break
            await self._turn(message)
        minutes = self._services.socket_limit_s / 60
        text = f"A connection lives {minutes:g} minutes; open a new one."
        await self._tell(ApiError(400, "websocket_connection_limit_reached", text), None)
        self._socket.close(NORMAL, "The connection has reached its time limit.")

    async def _turn(self, message: str) -> None:
        turn = self._posted(message.encode())
        try:
            body = await self._services.read(turn, lambda body: body)
        except ApiError as error:
            await self._tell(error, None)
            return
        lane = body.get("stream_id") if isinstance(body.get("stream_id"), str) else None
        if body.get("type") != "response.create":
            text = '"type" must be "response.create"; no other message is understood here.'
            await self._tell(bad_request("type", text), lane)
            return
        try:
            admitted = self._admit(turn)
            response = admitted if isinstance(admitted, Full) else await admitted(turn)
            succeeded = await self._relay(response, lane)
        finally:
            turn.end()
        if not succeeded:
            self._latest.forget(body.get("previous_response_id"))

    def _posted(self, body: bytes) -> HttpRequest:
        opening = self._request
        fields = [(name, value) for name, value in opening.headers if name in _INHERITED]
        return HttpRequest(
            "POST",
            opening.path,
            headers=Headers([*fields, ("Content-Type", "application/json")]),
            body=body,
            peer_ip=opening.peer_ip,
            arrived=time.monotonic(),
            local=self._latest,
        )

    async def _relay(self, response: Response, lane: str | None) -> bool:
        """The events of a turn as messages; False where it failed."""
        if isinstance(response, Full):
            error = json.loads(response.body)["error"]
            if wait := response.headers.get("Retry-After"):
                error["headers"] = {"retry-after": wait}
            await self._send(response.status, error, lane)
            return False
        assert isinstance(response, Stream)
        failed = False
        try:
            async for chunk in _iterated(response):
                for frame in chunk.split(b"\n\n"):
                    name, is_event, data = frame.partition(_DATA)
                    if is_event:
                        failed |= name == b"event: response.failed"
                        await self._socket.send(_in_lane(data, lane).decode())
        finally:
            await response.chunks.aclose()
        return not failed

    async def _tell(self, error: ApiError, lane: str | None) -> None:
        inner = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        await self._send(error.status, inner, lane)

    async def _send(self, status: int, error: dict[str, Any], lane: str | None) -> None:
        """An error in the two forms clients look for in one: its parts beside `error`, and in it."""
        parts = {name: error[name] for name in ("code", "message", "param")}
        event = {"type": "error", "sequence_number": 0, "status": status} | parts | {"error": error}
        await self._socket.send(_in_lane(dumps(event), lane).decode())


async def _iterated(response: Stream) -> Any:
    while True:
        try:
            chunk = await anext(response.chunks)
        except StopAsyncIteration:
            return
        yield chunk


def _in_lane(event: bytes, lane: str | None) -> bytes:
    """The event with the `stream_id` the client gave its turn."""
    return event if lane is None else event[:-1] + b',"stream_id":' + dumps(lane) + b"}"
