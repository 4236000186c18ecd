"""Follows one request from its door to its end, whatever that is, and gives the sinks one record of it.

Owned by the event loop. What a request has used comes from the engine alone (`Generation.ends`), so that the records of
aborted, failed and timed-out requests are as exact as the others. That takes until the engine has ended them, at most
the step that is running; the answer never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from imp.http.dialects.shared import ABORTED, Conversation
from imp.http.errors import ApiError, envelope, internal
from imp.http.message import HttpRequest
from imp.http.services import EngineLike, Generation, Lease, Loaded, Services
from imp.obs import trace
from imp.obs.record import RequestRecord, mean_gap_s, merged, reasoning_exhausted, used
from imp.types import Reason, Request

CLIENT_LEFT = 499
QUEUE_HEADER = "X-Imp-Queue-Position"  # requests in front of this one when it came


class Recorder:
    """One for each generation. It closes with the exchange of `request`, or before that when `close` is called, as for
    one of several turns on a connection."""

    def __init__(self, services: Services, request: HttpRequest, endpoint: str) -> None:
        self.services, self.request, self.endpoint = services, request, endpoint
        self.body = request.body  # another one where it is not the exchange's
        self.began = time.monotonic()
        self.began_ns = time.time_ns()
        self.trace = trace.join(request.headers.all("traceparent"), request.headers.all("tracestate"))
        if self.trace is None and services.traces:
            self.trace = trace.begin()
        self.model = ""
        self.response_id = ""
        self.streamed = False
        self.complete = False
        self.timed_out = False
        self.constraint_compile_s: float | None = None
        self.conversation = Conversation([])
        self.reply: Callable[[], Any] = lambda: None  # the whole answer, as far as it has come; a value or its JSON
        self.error: ApiError | None = None
        self.ahead: int | None = None  # requests that were in front of it when it came to the engine
        self._opened = 0.0  # time.monotonic() when the engine got the request
        self._ended = 0.0
        self._generation: Generation | None = None
        self._timings: dict[str, Any] | None = None
        self._lease: Lease | None = None
        request.at_end(self.close)

    @property
    def headers(self) -> dict[str, str]:
        """What the response tells of the queue, and of the trace where there is a span to be found: our own."""
        place = {} if self.ahead is None else {QUEUE_HEADER: str(self.ahead)}
        return place | ({"traceparent": self.trace.traceparent} if self.trace and self.services.traces else {})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, an error is the end of the request."""
        try:
            yield
        except ApiError as error:
            self.error = error
            raise
        except Exception:
            self.error = internal()
            raise

    @contextmanager
    def compiling(self, constraint: object) -> Iterator[None]:
        """Inside, a grammar is made of `constraint`; None: there is none."""
        began = time.monotonic()
        try:
            yield
        finally:
            if constraint is not None:
                self.constraint_compile_s = time.monotonic() - began

    async def lease(self, model: str | None, lora: str | None = None) -> Loaded:
        """The model for this request, which stays until all its sequences have ended. ApiError 400, 404 or 503."""
        lease = await self.services.lease(model, lora)
        if self._ended:  # the client left while the model came
            self.services.release(lease)
        else:
            self._lease = lease
        return lease.loaded

    @property
    def engine(self) -> EngineLike:
        """That of the leased model."""
        assert self._lease is not None
        return self._lease.engine

    def open(self, requests: Sequence[Request]) -> Generation:
        """Send them to the engine. The moment is read before: it may have begun when it has been reached."""
        self._opened = time.monotonic()
        self._generation = self.engine.open(requests)
        return self._generation

    def close(self) -> None:
        """The exchange is over: the record follows as soon as the engine has ended all sequences. Once is enough."""
        if self._ended:
            return
        self._ended = time.monotonic()
        if self._generation is None:
            self._emit()
        else:
            self._generation.when_over(self._emit)

    def _emit(self) -> None:
        if self._lease is not None:
            self.services.release(self._lease)
        record = self.record()
        self.request.charge(record.prompt_tokens + record.completion_tokens)
        self.services.observe(record)

    def record(self) -> RequestRecord:
        """What is known now."""
        request, error = self.request, self.error
        ends = self._generation.ends if self._generation else []
        usage, marks = used(ends), merged(ends)
        return RequestRecord(
            endpoint=self.endpoint,
            request_id=request.id,
            status=error.status if error else 200 if self.complete else CLIENT_LEFT,
            cancelled=not self.complete and (error is None or error.code == ABORTED),
            timed_out=self.timed_out,
            error_code=error.code if error else None,
            client_request_id=request.client_request_id,
            client_ip=request.client_ip,
            response_id=self.response_id,
            model=self.model,
            streamed=self.streamed,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            completion_tokens=usage.generated,
            reasoning_exhausted=reasoning_exhausted(ends),
            finish_reasons=self._finish_reasons(),
            arrived_ns=self.began_ns,
            duration_s=self._ended - self.began,
            queue_s=self._since(marks.scheduled),
            ttft_s=self._since(marks.first_token),
            last_token_s=self._since(marks.last_token),
            inter_token_s=mean_gap_s(ends),
            constraint_compile_s=self.constraint_compile_s,
            constraint_mask_s=None if self.constraint_compile_s is None else marks.masking_s,
            trace=self.trace,
            request=self.body if self.services.keeps_bodies else b"",
            response=self._response() if self.services.keeps_bodies else None,
        )

    def _since(self, moment: float) -> float | None:
        return max(0.0, moment - self.began) if moment else None

    def _finish_reasons(self) -> tuple[str, ...]:
        choices = self.conversation.choices
        by_themselves = (c for c in choices if c.finished is not None and c.finished.reason is not Reason.ABORT)
        return tuple(choice.finish_reason for choice in by_themselves if choice.finish_reason)

    def _response(self) -> Any:
        if self.error is not None:
            return envelope(self.error, self.request.envelope, self.request.id)
        return self.reply()

    def timings(self) -> dict[str, Any]:
        """Where the time went, asked when every sequence has ended: parts that sum to the whole, in milliseconds, and
        llama.cpp's figures. Once told, they stay.

        prepare: reading, rendering, tokenising.  queue: until the first step with the request.  prefill: until its
        first token.  decode: until now.  constraint: compiling the grammar and filling its masks, which the others
        leave out. Of several sequences the earliest start and first token count.
        """
        if self._timings is None:
            self._timings = self._told(time.monotonic())
        return self._timings

    def _told(self, now: float) -> dict[str, Any]:
        ends = self._generation.ends if self._generation else []
        usage, marks = used(ends), merged(ends)
        opened = self._opened or now
        scheduled = marks.scheduled or now
        first = marks.first_token or now
        compiling = self.constraint_compile_s or 0.0
        decoding = max(0.0, now - first - marks.masking_s)  # the first mask belongs to the prefill
        parts = {
            "prepare_ms": opened - self.began - compiling,
            "queue_ms": scheduled - opened,
            "prefill_ms": now - scheduled - marks.masking_s - decoding,
            "decode_ms": decoding,
            "constraint_ms": compiling + marks.masking_s,
        }
        out: dict[str, Any] = {name: round(seconds * 1e3, 3) for name, seconds in parts.items()}
        out |= {"total_ms": round((now - self.began) * 1e3, 3)}
        out |= {"cached_tokens": usage.cached, "cache_n": usage.cached}
        prompt = _speed("prompt", usage.prompt - usage.cached, out["prefill_ms"])
        return out | prompt | _speed("predicted", usage.generated, out["decode_ms"])


def _speed(what: str, count: int, milliseconds: float) -> dict[str, Any]:
    """llama.cpp's four figures; null where nothing was counted or no time passed."""
    return {
        f"{what}_n": count,
        f"{what}_ms": milliseconds,
        f"{what}_per_token_ms": round(milliseconds / count, 3) if count else None,
        f"{what}_per_second": round(count / milliseconds * 1e3, 3) if milliseconds else None,
    }
