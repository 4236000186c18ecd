"""Traces: spans of finished requests, sent as OTLP/HTTP JSON by a thread of its own.

The format is OTLP 1.x's JSON encoding (opentelemetry-proto): ids in hexadecimal, 64-bit integers as decimal strings,
enumerations as numbers. The event loop only puts records into a bounded queue; a collector that is slow, broken or gone
costs spans, which is counted and warned about once, and never a request.
"""

from __future__ import annotations

import http.client
import json
import logging
import secrets
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Condition, Thread
from typing import Any
from urllib.parse import urlsplit

from imp.obs.record import Outcome, RequestRecord

PATH = "/v1/traces"
BATCH_SPANS = 256
BATCH_S = 1.0
MAX_WAITING = 4096  # records
TIMEOUT_S = 5.0  # for each wait on the collector
MAX_ANSWER_BYTES = 64 * 1024

INTERNAL, SERVER = 1, 2  # SpanKind
ERROR = 2  # StatusCode
# SpanFlags: the trace flags of W3C, whether the next bit means anything, and whether the parent is somebody else's
SAMPLED, KNOWS_REMOTE, IS_REMOTE = 0x1, 0x100, 0x200

log = logging.getLogger(__name__)


class ExportError(Exception):
    """The collector did not take a batch."""


class SpanExporter:
    """The counters may be read anywhere; each has one writer."""

    def __init__(self, endpoint: str, service: str, version: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """endpoint: URL of the collector; `/v1/traces` is added where its path does not end so. Raises ValueError."""
        self._collector = Collector(endpoint, headers)
        self._service, self._version = service, version
        self.spans_exported = 0
        self.unsampled_requests = 0
        self._lost_batches = 0  # the thread's
        self._lost_requests = 0  # the loop's
        self._waiting: deque[RequestRecord] = deque()
        self._stopping = False
        self._ready = Condition()
        self._warned = False
        self._thread = Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    @property
    def export_failures(self) -> int:
        return self._lost_batches + self._lost_requests

    def export(self, record: RequestRecord) -> None:
        """Queue the spans of a request; never waits. Refused requests have none, nor do unsampled traces."""
        if record.trace is None or record.outcome is Outcome.REJECTED:
            return
        if not record.trace.sampled:
            self.unsampled_requests += 1
            return
        with self._ready:
            full = len(self._waiting) >= MAX_WAITING
            if not full:
                self._waiting.append(record)
                self._ready.notify()
        if full:
            self._lost_requests += 1
            self._warn("requests end faster than their spans are taken")

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued, for at most this long, and end."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        self._thread.join(timeout_s)

    # -- the exporting thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                rejected = self._collector.send(payload(batch, self._service, self._version))
            except Exception as error:  # whatever it is, the next batch may fare better
                self._lost_batches += 1
                self._warn(f"{type(error).__name__}: {error}")
                if self._stopping:
                    return
            else:
                self.spans_exported += len(batch) - rejected

    def _next_batch(self) -> list[dict[str, Any]]:
        """Spans of the next requests, at most a second after the first of them came; empty at the end."""
        with self._ready:
            self._ready.wait_for(lambda: self._waiting or self._stopping)
            due = time.monotonic() + BATCH_S
            while len(self._waiting) * 4 < BATCH_SPANS and not self._stopping:
                left = due - time.monotonic()
                if left <= 0:
                    break
                self._ready.wait(left)
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SPANS // 4))]
        return [span for record in taken for span in spans(record)]

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("traces are lost (see imp_otlp_export_failures_total): %s", why)


class Collector:
    """Where spans are sent: one request a batch, on a connection of its own. Redirections are not followed."""

    def __init__(self, endpoint: str, headers: Sequence[tuple[str, str]]) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError("the OTLP endpoint must be a URL like http://host:4318, without user or query")
        path = parts.path.rstrip("/")
        self._path = path if path.endswith(PATH) else path + PATH
        self._host, self._port = parts.hostname, parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = dict(headers) | {"Content-Type": "application/json"}

    def send(self, body: bytes) -> int:
        """The number of spans it rejected. Raises ExportError, OSError or http.client.HTTPException."""
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._tls)
        try:
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise ExportError(f"the collector answered with status {answer.status}")
        return _rejected(content)


def _rejected(content: bytes) -> int:
    """`rejectedSpans` of an ExportTraceServiceResponse; 0 where the collector says nothing."""
    try:
        return int(json.loads(content)["partialSuccess"]["rejectedSpans"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def payload(batch: Sequence[dict[str, Any]], service: str, version: str) -> bytes:
    """An ExportTraceServiceRequest."""
    resource = {"service.name": service, "service.version": version, "telemetry.sdk.language": "python"}
    scope = {"scope": {"name": "imp", "version": version}, "spans": list(batch)}
    resource_spans = {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}
    return json.dumps({"resourceSpans": [resource_spans]}, separators=(",", ":")).encode()


def spans(record: RequestRecord) -> list[dict[str, Any]]:
    """The server span of a request and its children: queue, prefill, decode, as far as it got."""
    assert record.trace is not None
    trace = record.trace
    root = _span(record, record.endpoint, SERVER, 0.0, record.duration_s) | {"spanId": trace.span_id}
    root["flags"] = SAMPLED | KNOWS_REMOTE | (IS_REMOTE if trace.parent_id else 0)
    if trace.parent_id:
        root["parentSpanId"] = trace.parent_id
    root["attributes"] = _attributes(_request_attributes(record))
    if record.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        root["status"] = {"code": ERROR, "message": record.error_code or record.outcome.value}
    return [root, *_phases(record)]


def _request_attributes(record: RequestRecord) -> dict[str, Any]:
    status = 200 if record.streamed else record.status  # what the client saw: a stream's head had gone out
    out = {
        "gen_ai.system": "imp",
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.response_id,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.response.finish_reasons": list(record.finish_reasons),
        "http.response.status_code": status,
        "imp.request_id": record.request_id,
        "imp.client_request_id": record.client_request_id,
        "imp.cached_tokens": record.cached_tokens,
        "imp.stream": record.streamed,
        "imp.queue_ms": None if record.queue_s is None else record.queue_s * 1e3,
        "imp.ttft_ms": None if record.ttft_s is None else record.ttft_s * 1e3,
        "error.type": record.error_code,
    }
    return {key: value for key, value in out.items() if value is not None}


def _phases(record: RequestRecord) -> list[dict[str, Any]]:
    """A phase that was not left any more lasts until the end."""
    end = record.duration_s
    moments = (0.0, record.queue_s, record.ttft_s)
    ends = (record.queue_s, record.ttft_s, record.last_token_s)
    out = []
    for name, begins, finishes in zip(("queue", "prefill", "decode"), moments, ends, strict=True):
        if begins is None:
            break
        child = _span(record, name, INTERNAL, min(begins, end), min(end if finishes is None else finishes, end))
        assert record.trace is not None
        child |= {"spanId": secrets.token_hex(8), "parentSpanId": record.trace.span_id, "flags": SAMPLED | KNOWS_REMOTE}
        out.append(child)
    return out


def _span(record: RequestRecord, name: str, kind: int, begins_s: float, ends_s: float) -> dict[str, Any]:
    assert record.trace is not None
    span = {
        "traceId": record.trace.trace_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(record.arrived_ns + round(begins_s * 1e9)),
        "endTimeUnixNano": str(record.arrived_ns + round(ends_s * 1e9)),
    }
    return span | ({"traceState": record.trace.state} if record.trace.state else {})


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """An AnyValue."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
