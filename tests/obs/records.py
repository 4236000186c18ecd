"""A finished request as the tests of the sinks take it."""

from __future__ import annotations

from typing import Any

from imp.obs.record import RequestRecord
from imp.obs.trace import TraceContext

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def record(**changes: Any) -> RequestRecord:
    """Arrived at 1000 s; queued 0.25 s, first token after 0.5 s, last after 1.75 s, over after 2 s."""
    fields: dict[str, Any] = {
        "endpoint": "/v1/chat/completions",
        "request_id": "r",
        "status": 200,
        "model": "toy",
        "client_ip": "192.0.2.7",
        "response_id": "chatcmpl-1",
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "completion_tokens": 5,
        "finish_reasons": ("stop",),
        "arrived_ns": 1_000_000_000_000,
        "duration_s": 2.0,
        "queue_s": 0.25,
        "ttft_s": 0.5,
        "last_token_s": 1.75,
        "inter_token_s": 0.3125,
        "trace": TRACE,
    }
    return RequestRecord(**(fields | changes))
