"""The one exception a client can see, and the two JSON shapes it is shown in. Knows no sockets.

Everything else that is raised ends its request with a 500 that says nothing but the request id.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Envelope(Enum):
    """The JSON shape of an error; the path decides."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "internal_error",
    501: "not_supported_error",
    503: "server_error",
}  # any other 4xx: invalid_request_error, any other 5xx: server_error
ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}  # any other 4xx: invalid_request_error, any other 5xx: api_error
ANTHROPIC_TYPES_BY_CODE = {"queue_full": "overloaded_error", "request_timeout": "timeout_error"}


class ApiError(Exception):
    """A mistake of the client, or a refusal, in words the client may read.

    status: HTTP status.  code: a stable word for programs, None where the status says it all.  param: path of the
    field at fault ("messages[0].content").  type: OpenAI error type; None takes the status' own.  headers: added to
    the response (Retry-After, Allow, ...).  extra: further keys of the OpenAI error object.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        param: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.type = type or openai_type(status)
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def openai_type(status: int) -> str:
    """The OpenAI error type of a status that names none."""
    return OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def anthropic_type(error: ApiError) -> str:
    """The Anthropic error type; their SDK knows ten words and no others."""
    if error.code in ANTHROPIC_TYPES_BY_CODE:
        return ANTHROPIC_TYPES_BY_CODE[error.code]
    return ANTHROPIC_TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")


def envelope_of(path: str) -> Envelope:
    """Which shape errors of this path have: `/v1/messages` and all below it are Anthropic's."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Envelope.ANTHROPIC
    return Envelope.OPENAI


def envelope(error: ApiError, shape: Envelope, request_id: str) -> dict[str, Any]:
    """The JSON body of an error, also used inside streams."""
    if shape is Envelope.ANTHROPIC:
        inner = {"type": anthropic_type(error), "message": error.message}
        return {"type": "error", "error": inner, "request_id": request_id}
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body | error.extra}


def bad_request(param: str | None, message: str, code: str | None = "invalid_value") -> ApiError:
    """400: the request is wrong in a way that `message` names."""
    return ApiError(400, code, message, param)


def not_found(message: str, code: str | None = "not_found") -> ApiError:
    return ApiError(404, code, message)


def model_not_found(model: str) -> ApiError:
    """404 for a model name that is not served; `model` is the client's own word, shortened."""
    shown = model if len(model) <= 100 else model[:100] + "..."
    return ApiError(404, "model_not_found", f'The model "{shown}" does not exist.', "model")


def too_many(code: str, message: str, retry_after_s: int) -> ApiError:
    """429 with Retry-After. Code `queue_full` becomes Anthropic's overloaded_error."""
    return ApiError(429, code, message, headers={"Retry-After": str(max(1, retry_after_s))})


def unavailable(code: str, message: str, retry_after_s: int = 1) -> ApiError:
    """503 with Retry-After: nothing is wrong with the request, it may work later."""
    return ApiError(503, code, message, headers={"Retry-After": str(max(1, retry_after_s))})


def internal() -> ApiError:
    """500 that tells nothing of the inside."""
    return ApiError(500, "internal_error", "The server met an unexpected error; its log has more under the request id.")
