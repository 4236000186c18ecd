"""One record per request that asked for a generation: what it was, how it ended, how long each part took.

Made once, when the request has ended, whatever the end; every sink (metrics, request log) reads the same value. It
holds no prompt, no answer and no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # by a fault of the server, also inside a stream
    REJECTED = "rejected"  # refused: any 4xx, no capacity, draining
    CANCELLED = "cancelled"  # the client left or aborted it
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times in seconds, counted from the request's arrival; None: has not happened. Tokens are sums over all
    sequences of the request."""

    endpoint: str  # the route: a small set of words, it becomes a label
    request_id: str
    status: int  # of the response; inside a stream, what it would have been
    cancelled: bool = False
    timed_out: bool = False
    client_request_id: str | None = None
    client_ip: str = ""
    model: str = ""
    streamed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_exhausted: bool = False  # no answer came after the reasoning
    finish_reason: str | None = None
    duration_s: float = 0.0  # to the end of the answer
    queue_s: float | None = None  # to the first computed row
    ttft_s: float | None = None  # to the first token
    inter_token_s: float | None = None  # mean between two tokens of a sequence; None where no sequence had two

    @property
    def outcome(self) -> Outcome:
        if self.cancelled:
            return Outcome.CANCELLED
        if self.timed_out:
            return Outcome.TIMED_OUT
        if self.status < 400:
            return Outcome.SUCCEEDED
        return Outcome.REJECTED if self.status < 500 or self.status == 503 else Outcome.FAILED
