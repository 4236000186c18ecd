"""The sinks of records beside the metrics: the request log and the trace exporter, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from imp.obs.metrics import Metrics
from imp.obs.otlp import SpanExporter
from imp.obs.record import RequestRecord
from imp.obs.requestlog import RequestLog

CLOSE_S = 2.0  # what is still queued at the end has so long


class Sinks:
    """None of the two where neither is asked for. Owned by the event loop."""

    def __init__(self, log: RequestLog | None = None, exporter: SpanExporter | None = None) -> None:
        self.log, self.exporter = log, exporter

    @property
    def observers(self) -> tuple[Callable[[RequestRecord], None], ...]:
        """Where records go; none of them waits."""
        log = (self.log.write,) if self.log else ()
        return log + ((self.exporter.export,) if self.exporter else ())

    def connect(self, metrics: Metrics) -> None:
        """Let the counters be read at a scrape."""
        log, exporter = self.log, self.exporter
        if log is not None:
            metrics.read("imp_request_log_lines_total", lambda: log.lines)
            metrics.read("imp_request_log_dropped_total", lambda: log.dropped)
        if exporter is not None:
            metrics.read("imp_otlp_spans_exported_total", lambda: exporter.spans_exported)
            metrics.read("imp_otlp_export_failures_total", lambda: exporter.export_failures)
            metrics.read("imp_otlp_unsampled_requests_total", lambda: exporter.unsampled_requests)

    def reopen(self) -> None:
        """The request log's file was moved away."""
        if self.log is not None:
            self.log.reopen()

    async def close(self) -> None:
        """Write and send what is queued, both at once, for at most `CLOSE_S`."""
        closing = [each.close for each in (self.log, self.exporter) if each is not None]
        await asyncio.gather(*(asyncio.to_thread(close, CLOSE_S) for close in closing))


def open_sinks(
    request_log: str | None,
    otlp_endpoint: str,
    service: str,
    version: str,
    otlp_headers: Sequence[tuple[str, str]] = (),
) -> Sinks:
    """request_log: None for no log.  otlp_endpoint: "" for no traces.  Raises OSError for a file that cannot be
    opened and ValueError for an endpoint that is none."""
    exporter = SpanExporter(otlp_endpoint, service, version, otlp_headers) if otlp_endpoint else None
    return Sinks(RequestLog(request_log) if request_log else None, exporter)
