"""The exposition text, read back by the official parser, and what a finished request counts."""

from __future__ import annotations

import math

import pytest

from imp.obs.metrics import READ, TABLE, Kind, Metric, Metrics
from imp.obs.record import Outcome, RequestRecord

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is the judge here")


def families(metrics: Metrics) -> dict:
    return {family.name: family for family in parser.text_string_to_metric_families(metrics.expose().decode())}


def value(metrics: Metrics, sample: str, **labels: str) -> float:
    for family in families(metrics).values():
        for each in family.samples:
            if each.name == sample and each.labels == labels:
                return each.value
    raise AssertionError(f"no {sample} {labels}")


def test_every_metric_of_the_table_can_be_read_back() -> None:
    metrics = Metrics()
    for metric in READ:
        labels = tuple(f"v{i}" for i in range(len(metric.labels)))
        metrics.read(metric.name, (lambda labels=labels: {labels: 3.5}) if labels else (lambda: 3.5))
    metrics.observe(record())
    found = families(metrics)
    for metric in TABLE:
        family = found[metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name]
        assert family.type == metric.kind.value
        assert family.documentation == metric.help
        assert {name for each in family.samples for name in each.labels} - {"le"} == set(metric.labels)


def test_names_of_the_contract_are_there() -> None:
    names = {metric.name for metric in TABLE}
    for group in (
        "imp_uptime_seconds imp_model_loaded imp_model_loads_total imp_requests_total imp_requests_failed_total",
        "imp_requests_rejected_total imp_requests_cancelled_total imp_requests_timed_out_total",
        "imp_requests_reasoning_exhausted_total imp_tokens_prompt_total imp_tokens_completion_total",
        "imp_tokens_cached_total imp_request_duration_seconds imp_ttft_seconds imp_inter_token_seconds",
        "imp_queue_time_seconds imp_endpoint_request_duration_seconds imp_endpoint_ttft_seconds",
        "imp_endpoint_inter_token_seconds imp_endpoint_queue_time_seconds imp_queue_depth imp_queue_waiting",
        "imp_queue_running imp_decode_batch_steps_total imp_decode_batch_rows_total imp_decode_batch_max",
        "imp_decode_batch_last_rows imp_mixed_decode_steps_total imp_kv_blocks_total imp_kv_blocks_used",
        "imp_kv_blocks_cached imp_kv_blocks_reclaimable imp_kv_blocks_pinned imp_kv_blocks_live",
        "imp_kv_blocks_reserved imp_kv_pressure_rejections_total imp_kv_preemptions_total",
        "imp_prefix_cache_evictions_total imp_prefix_cache_queries_total imp_prefix_cache_hits_total",
        "imp_spec_drafted_total imp_spec_accepted_total imp_spec_verify_steps_total imp_spec_miss_steps_total",
        "imp_constraint_compile_seconds imp_constraint_mask_seconds imp_memory_reserved_bytes imp_memory_live_bytes",
        "imp_vram_budget_bytes imp_vram_own_bytes imp_vram_own_peak_bytes imp_otlp_spans_exported_total",
        "imp_otlp_export_failures_total imp_otlp_unsampled_requests_total",
        "vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:lora_requests_info",
    ):
        assert set(group.split()) <= names


def record(**changes) -> RequestRecord:
    fields = {
        "endpoint": "/v1/chat/completions",
        "request_id": "r",
        "status": 200,
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "completion_tokens": 5,
        "duration_s": 2.0,
        "queue_s": 0.25,
        "ttft_s": 0.5,
        "inter_token_s": 0.3,
    }
    return RequestRecord(**(fields | changes))


def test_a_request_is_in_every_histogram_once() -> None:
    metrics = Metrics()
    metrics.observe(record())
    metrics.observe(record(endpoint="/v1/messages", inter_token_s=None))
    for name, total in (("request_duration", 4.0), ("ttft", 1.0), ("inter_token", 0.3), ("queue_time", 0.5)):
        assert value(metrics, f"imp_{name}_seconds_count") == 2
        assert value(metrics, f"imp_{name}_seconds_sum") == pytest.approx(total)
        for endpoint in ("/v1/chat/completions", "/v1/messages"):
            assert value(metrics, f"imp_endpoint_{name}_seconds_count", endpoint=endpoint) == 1
    assert value(metrics, "imp_tokens_prompt_total") == 14
    assert value(metrics, "imp_tokens_completion_total") == 10
    assert value(metrics, "imp_tokens_cached_total") == 6
    assert value(metrics, "imp_requests_total") == 2


@pytest.mark.parametrize(
    ("changes", "outcome", "counter"),
    [
        ({}, Outcome.SUCCEEDED, None),
        ({"status": 429}, Outcome.REJECTED, "imp_requests_rejected_total"),
        ({"status": 503, "queue_s": None}, Outcome.REJECTED, "imp_requests_rejected_total"),
        ({"status": 503}, Outcome.FAILED, "imp_requests_failed_total"),  # cut short by the server's end
        ({"status": 500}, Outcome.FAILED, "imp_requests_failed_total"),
        ({"cancelled": True}, Outcome.CANCELLED, "imp_requests_cancelled_total"),
        ({"timed_out": True, "status": 504}, Outcome.TIMED_OUT, "imp_requests_timed_out_total"),
    ],
)
def test_each_end_has_its_counter(changes: dict, outcome: Outcome, counter: str | None) -> None:
    metrics = Metrics()
    ended = record(ttft_s=None, **changes)
    assert ended.outcome is outcome
    metrics.observe(ended)
    assert value(metrics, "imp_requests_total") == 1
    for name in ("rejected", "failed", "cancelled", "timed_out"):
        assert value(metrics, f"imp_requests_{name}_total") == (f"imp_requests_{name}_total" == counter)
    assert value(metrics, "imp_ttft_seconds_count") == 0


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
    metrics = Metrics((Metric("h", Kind.HISTOGRAM, "H.", ("a",), (0.1, 1.0)),))
    for sample in (0.05, 0.1, 0.5, 1.0, 1.5, 100.0):
        metrics.sample("h", sample, ("x",))
    counts = {each: value(metrics, "h_bucket", a="x", le=each) for each in ("0.1", "1", "+Inf")}
    assert counts == {"0.1": 2, "1": 4, "+Inf": 6}
    assert value(metrics, "h_sum", a="x") == pytest.approx(103.15) and value(metrics, "h_count", a="x") == 6


def test_label_values_and_help_are_escaped() -> None:
    metrics = Metrics((Metric("g", Kind.GAUGE, 'Back\\slash and\nline and "quote".', ("a", "b")),))
    odd = ('x"y\\z\n', "é,}={")
    metrics.read("g", lambda: {odd: 1.0})
    family = families(metrics)["g"]
    assert family.documentation == 'Back\\slash and\nline and "quote".'
    assert family.samples[0].labels == {"a": odd[0], "b": odd[1]}


@pytest.mark.parametrize("number", [0, 1, 0.1, 1e-9, 1e300, 2**53, 2**60, math.inf, -math.inf, 12345678.9])
def test_numbers_survive(number: float) -> None:
    metrics = Metrics((Metric("g", Kind.GAUGE, "G."),))
    metrics.read("g", lambda: number)
    assert value(metrics, "g") == number


def test_every_name_is_there_before_anything_happened() -> None:
    metrics = Metrics()
    found = families(metrics)
    for metric in TABLE:
        family = found[metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name]
        assert family.type == metric.kind.value and family.documentation == metric.help
        assert bool(family.samples) == (not metric.labels), metric.name
    assert value(metrics, "imp_kv_blocks_total") == value(metrics, "imp_vram_budget_bytes") == 0
    assert value(metrics, "imp_uptime_seconds") >= 0


def test_a_grammar_is_in_its_histograms_once_whatever_became_of_the_request() -> None:
    metrics = Metrics()
    metrics.observe(record(constraint_compile_s=0.02, ttft_s=None, status=504, timed_out=True))
    metrics.observe(record(constraint_compile_s=0.01, constraint_mask_s=0.004))
    metrics.observe(record())
    assert value(metrics, "imp_constraint_compile_seconds_count") == 2
    assert value(metrics, "imp_constraint_compile_seconds_sum") == pytest.approx(0.03)
    assert value(metrics, "imp_constraint_mask_seconds_count") == 1


def test_mistakes_raise() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.add("imp_unheard_of_total")
    with pytest.raises(AssertionError):
        metrics.add("imp_ttft_seconds")
    with pytest.raises(AssertionError):
        metrics.sample("imp_endpoint_ttft_seconds", 1.0)
