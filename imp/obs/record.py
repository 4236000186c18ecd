"""One record per request that asked for a generation: what it was, how it ended, how long each part took.

Made once, when the request has ended, whatever the end; every sink (metrics, request log, traces) reads the same value.
The words of the client and of the model are in it only while a request log wants them, and no key ever is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from imp.obs.trace import TraceContext
from imp.types import Failed, Finished, Marks, Reason, Usage


class Outcome(Enum):
    """How a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # by a fault of the server, also inside a stream
    REJECTED = "rejected"  # refused: any 4xx; no capacity or draining before anything was computed
    CANCELLED = "cancelled"  # the client left or aborted it
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times in seconds, counted from the request's arrival; None: has not happened. Tokens are sums over all
    sequences of the request."""

    endpoint: str  # the route: a small set of words, it becomes a label
    request_id: str
    status: int  # of the response; inside a stream, what it would have been; 499: its client left
    cancelled: bool = False
    timed_out: bool = False
    error_code: str | None = None
    client_request_id: str | None = None
    client_ip: str = ""
    response_id: str = ""  # "chatcmpl-..."
    model: str = ""
    streamed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_exhausted: bool = False  # no answer came after the reasoning
    finish_reasons: tuple[str, ...] = ()  # of the sequences that ended by themselves
    arrived_ns: int = 0  # unix time
    duration_s: float = 0.0  # to the end of the answer
    queue_s: float | None = None  # to the first computed row
    ttft_s: float | None = None  # to the first token
    last_token_s: float | None = None
    inter_token_s: float | None = None  # mean between two tokens of a sequence; None where no sequence had two
    constraint_compile_s: float | None = None  # spent on the request's grammar; None: it had none
    constraint_mask_s: float | None = None  # spent on masks, over all its steps
    trace: TraceContext | None = None
    request: bytes = b""  # the body, for the request log only
    response: Any = None  # the reply, as JSON in bytes or what becomes it, for the request log only

    @property
    def outcome(self) -> Outcome:
        if self.cancelled:
            return Outcome.CANCELLED
        if self.timed_out:
            return Outcome.TIMED_OUT
        if self.status < 400:
            return Outcome.SUCCEEDED
        begun = self.queue_s is not None
        return Outcome.REJECTED if self.status < 500 or (self.status == 503 and not begun) else Outcome.FAILED


def used(ends: Sequence[Finished | Failed]) -> Usage:
    """The sum over the sequences of some requests, each prompt counted once and only if any of it was computed."""
    leaders: dict[str, Usage] = {}
    for end in sorted(ends, key=_leader_first):
        if end.marks.scheduled:
            leaders.setdefault(end.request, end.usage)
    total = Usage.total(end.usage for end in ends)
    prompts = leaders.values()
    return replace(total, prompt=sum(u.prompt for u in prompts), cached=sum(u.cached for u in prompts))


def _leader_first(end: Finished | Failed) -> int:
    """The first sequence is the one that looked the prompt up in the cache for all."""
    return end.index if isinstance(end, Finished) else 0


def merged(ends: Sequence[Finished | Failed]) -> Marks:
    """The marks of all sequences as one: the earliest start and first token, the latest token; 0.0: never."""
    marks = [end.marks for end in ends]
    return Marks(
        scheduled=min((m.scheduled for m in marks if m.scheduled), default=0.0),
        first_token=min((m.first_token for m in marks if m.first_token), default=0.0),
        last_token=max((m.last_token for m in marks), default=0.0),
        masking_s=sum(m.masking_s for m in marks),
    )


def reasoning_exhausted(ends: Sequence[Finished | Failed]) -> bool:
    """Whether a sequence ran into its length while all it had said was reasoning."""
    cut = (end.usage for end in ends if isinstance(end, Finished) and end.reason is Reason.LENGTH)
    return any(0 < usage.generated == usage.reasoning for usage in cut)


def mean_gap_s(ends: Sequence[Finished | Failed]) -> float | None:
    """The mean time between two tokens of a sequence, over all sequences; None where none had two."""
    gaps = [
        (end.marks.last_token - end.marks.first_token, end.usage.generated - 1)
        for end in ends
        if isinstance(end, Finished) and end.usage.generated > 1
    ]
    return sum(seconds for seconds, _ in gaps) / sum(count for _, count in gaps) if gaps else None
