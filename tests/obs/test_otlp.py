"""Spans at a collector: what it gets is read by hand-written expectations from the OTLP specification."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from imp.obs.otlp import MAX_WAITING, SpanExporter, spans
from imp.obs.trace import TraceContext
from tests.obs.collector import attributes, collecting
from tests.obs.records import TRACE, record


def exporter(url: str, **options: Any) -> SpanExporter:
    return SpanExporter(url, "my-service", "1.2.3", **options)


def test_a_request_becomes_a_server_span_with_three_children() -> None:
    with collecting() as collector:
        sender = exporter(collector.url, headers=(("x-team", "a b"),))
        sender.export(record(client_request_id="r", streamed=True))
        sender.close()
        assert (sender.spans_exported, sender.export_failures, sender.unsampled_requests) == (4, 0, 0)
        [(path, headers, body)] = collector.requests
    assert path == "/v1/traces" and headers["Content-Type"] == "application/json" and headers["x-team"] == "a b"
    [resource] = json.loads(body)["resourceSpans"]
    named = attributes(resource["resource"])
    assert named["service.name"] == ("stringValue", "my-service")
    assert named["service.version"] == ("stringValue", "1.2.3")
    [scope] = resource["scopeSpans"]
    assert scope["scope"] == {"name": "imp", "version": "1.2.3"}
    root, *children = scope["spans"]
    assert (root["name"], root["kind"], root["traceId"], root["spanId"]) == (
        "/v1/chat/completions",
        2,
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "00f067aa0ba902b7",
    )
    assert "parentSpanId" not in root and "status" not in root and "traceState" not in root
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == ("1000000000000", "1002000000000")
    assert attributes(root) == {
        "gen_ai.system": ("stringValue", "imp"),
        "gen_ai.request.model": ("stringValue", "toy"),
        "gen_ai.response.id": ("stringValue", "chatcmpl-1"),
        "gen_ai.usage.input_tokens": ("intValue", "7"),
        "gen_ai.usage.output_tokens": ("intValue", "5"),
        "gen_ai.response.finish_reasons": ("arrayValue", {"values": [{"stringValue": "stop"}]}),
        "http.response.status_code": ("intValue", "200"),
        "imp.request_id": ("stringValue", "r"),
        "imp.client_request_id": ("stringValue", "r"),
        "imp.cached_tokens": ("intValue", "3"),
        "imp.stream": ("boolValue", True),
        "imp.queue_ms": ("doubleValue", 250.0),
        "imp.ttft_ms": ("doubleValue", 500.0),
    }
    assert [(child["name"], child["startTimeUnixNano"], child["endTimeUnixNano"]) for child in children] == [
        ("queue", "1000000000000", "1000250000000"),
        ("prefill", "1000250000000", "1000500000000"),
        ("decode", "1000500000000", "1001750000000"),
    ]
    for child in children:
        assert child["kind"] == 1 and child["traceId"] == root["traceId"] and child["parentSpanId"] == root["spanId"]
    ids = [span["spanId"] for span in scope["spans"]]
    assert len(set(ids)) == 4 and all(re.fullmatch(r"[0-9a-f]{16}", span_id) for span_id in ids)


def test_a_callers_trace_goes_on() -> None:
    trace = TraceContext(TRACE.trace_id, TRACE.span_id, "b7ad6b7169203331", True, "rojo=1")
    root, *children = spans(record(trace=trace))
    assert root["parentSpanId"] == "b7ad6b7169203331" and root["traceState"] == "rojo=1"
    assert root["flags"] & 0xFF == 1 and root["flags"] & 0x300 == 0x300  # sampled; its parent is remote, and known so
    assert all(child["parentSpanId"] == root["spanId"] and child["traceState"] == "rojo=1" for child in children)
    assert all(child["flags"] & 0x300 == 0x100 for child in children)


@pytest.mark.parametrize(
    "changes, status, code",
    [
        ({"status": 500, "error_code": "engine_step_failed"}, {"code": 2, "message": "engine_step_failed"}, "500"),
        ({"status": 504, "error_code": "request_timeout", "timed_out": True}, {"code": 2, "message": "request_timeout"}, "504"),
        ({"status": 500, "streamed": True}, {"code": 2, "message": "failed"}, "200"),
        ({"status": 499, "cancelled": True}, None, "499"),
    ],
)
def test_failures_are_errors_and_leaving_is_none(changes: dict, status: Any, code: str) -> None:
    root = spans(record(**changes))[0]
    assert root.get("status") == status
    assert attributes(root)["http.response.status_code"] == ("intValue", code)


@pytest.mark.parametrize(
    "changes, phases",
    [
        ({"queue_s": None, "ttft_s": None, "last_token_s": None}, [("queue", 0, 2000)]),
        ({"ttft_s": None, "last_token_s": None}, [("queue", 0, 250), ("prefill", 250, 2000)]),
        ({"last_token_s": 2.5}, [("queue", 0, 250), ("prefill", 250, 500), ("decode", 500, 2000)]),
    ],
)
def test_a_phase_that_was_not_left_lasts_until_the_end_and_none_is_longer(changes: dict, phases: list) -> None:
    root, *children = spans(record(status=499, cancelled=True, **changes))
    begin = int(root["startTimeUnixNano"])
    found = [
        (c["name"], (int(c["startTimeUnixNano"]) - begin) / 1e6, (int(c["endTimeUnixNano"]) - begin) / 1e6)
        for c in children
    ]
    assert found == phases


def test_refused_requests_and_unsampled_traces_are_not_exported() -> None:
    with collecting() as collector:
        sender = exporter(collector.url)
        sender.export(record(status=429, queue_s=None, ttft_s=None))
        sender.export(record(status=503, queue_s=None, ttft_s=None))
        unsampled = TraceContext(TRACE.trace_id, TRACE.span_id, "b7ad6b7169203331", sampled=False)
        sender.export(record(trace=unsampled))
        sender.export(record(trace=unsampled, status=400, queue_s=None, ttft_s=None))
        sender.close()
        assert collector.requests == [] and sender.spans_exported == 0
        assert sender.unsampled_requests == 1


def test_many_requests_come_in_batches_of_at_most_256_spans() -> None:
    with collecting() as collector:
        sender = exporter(collector.url)
        for _ in range(200):
            sender.export(record())
        sender.close()
        sizes = [len(json.loads(b)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for _, _, b in collector.requests]
        assert sum(sizes) == 800 == sender.spans_exported
        assert sizes[0] == 256 and max(sizes) == 256


def test_a_few_requests_are_sent_within_moments_without_being_asked() -> None:
    with collecting() as collector:
        sender = exporter(collector.url)
        sender.export(record())
        deadline = time.monotonic() + 20
        while sender.spans_exported < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        sender.close()
        assert len(collector.spans()) == 4


@pytest.mark.parametrize("given", ["", "/", "/v1/traces", "/v1/traces/"])
def test_the_path_is_added_once(given: str) -> None:
    with collecting() as collector:
        sender = exporter(collector.url + given)
        sender.export(record())
        sender.close()
        assert collector.requests[0][0] == "/v1/traces"


def test_a_proxys_path_is_kept() -> None:
    with collecting() as collector:
        sender = exporter(collector.url + "/otlp")
        sender.export(record())
        sender.close()
        assert collector.requests[0][0] == "/otlp/v1/traces"


@pytest.mark.parametrize("url", ["", "host:4318", "ftp://host", "http://", "http://u:p@host", "http://host:port/"])
def test_what_is_no_collector_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        exporter(url)


def test_what_a_collector_rejects_is_not_counted_as_exported() -> None:
    with collecting() as collector:
        collector.answer = b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"full"}}'
        sender = exporter(collector.url)
        sender.export(record())
        sender.close()
        assert (sender.spans_exported, sender.export_failures) == (1, 0)


@pytest.mark.parametrize("answer", [b"", b"nonsense", b"[]", b"[" * 50_000, b'{"partialSuccess":7}', b"\xff\x00"])
def test_an_odd_answer_is_an_answer(answer: bytes) -> None:
    with collecting() as collector:
        collector.answer = answer
        sender = exporter(collector.url)
        sender.export(record())
        sender.close()
        assert (sender.spans_exported, sender.export_failures) == (4, 0)


def test_a_failing_collector_costs_spans_one_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.status = 503
        sender = exporter(collector.url)
        for round in range(1, 4):
            for _ in range(64):  # a whole batch each
                sender.export(record())
            deadline = time.monotonic() + 20
            while sender.export_failures < round:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        collector.status = 200
        sender.export(record())
        sender.close()
        assert sender.export_failures == 3 and sender.spans_exported == 4
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1 and "503" in warnings[0].getMessage()


@contextmanager
def silent() -> Iterator[str]:
    """A collector that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("collector", [silent, nobody])
def test_a_collector_that_hangs_or_is_gone_holds_nobody_up(collector: Any) -> None:
    with collector() as url:
        sender = exporter(url)
        for _ in range(MAX_WAITING + 500):  # none of these may wait: with a timeout each they would take hours
            sender.export(record())
        sender.close(timeout_s=0.2)  # returns, though a batch is under way
        assert sender.export_failures > 0 and sender.spans_exported == 0
