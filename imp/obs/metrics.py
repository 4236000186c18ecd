"""The metric table and its Prometheus text (exposition format 0.0.4). The names are a contract.

Counters and histograms are fed by finished request records; everything the engine or the scheduler counts is read at
the scrape from callables. Owned by the event loop; a scrape never waits for the engine.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from imp.obs.record import Outcome, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]  # values, in the order of Metric.labels
Reading = float | Mapping[Labels, float]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `buckets`: inclusive upper bounds, ascending, without +Inf."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)

_TIMES = (
    ("request_duration_seconds", "From arrival to the end of the answer.", SECONDS),
    ("ttft_seconds", "From arrival to the first token.", SECONDS),
    ("inter_token_seconds", "Mean time between the tokens of a request; 0 where it has one token.", TOKEN_SECONDS),
    ("queue_time_seconds", "From arrival to the first step with the request in it.", SECONDS),
)

COUNTED = (  # fed by records
    Metric("imp_requests_total", Kind.COUNTER, "Generation requests that ended, however they ended."),
    Metric("imp_requests_failed_total", Kind.COUNTER, "Requests that ended by a fault of the server."),
    Metric("imp_requests_rejected_total", Kind.COUNTER, "Requests refused before anything was generated."),
    Metric("imp_requests_cancelled_total", Kind.COUNTER, "Requests whose client left or aborted them."),
    Metric("imp_requests_timed_out_total", Kind.COUNTER, "Requests that ran into the request timeout."),
    Metric("imp_requests_reasoning_exhausted_total", Kind.COUNTER, "Requests cut at their length before any answer."),
    Metric("imp_tokens_prompt_total", Kind.COUNTER, "Prompt tokens of ended requests, once a prompt was begun."),
    Metric("imp_tokens_completion_total", Kind.COUNTER, "Generated tokens of ended requests, however they ended."),
    Metric("imp_tokens_cached_total", Kind.COUNTER, "Prompt tokens taken from the prefix cache."),
    *(Metric(f"imp_{name}", Kind.HISTOGRAM, text, (), buckets) for name, text, buckets in _TIMES),
    *(Metric(f"imp_endpoint_{name}", Kind.HISTOGRAM, text, ("endpoint",), buckets) for name, text, buckets in _TIMES),
    Metric("imp_constraint_compile_seconds", Kind.HISTOGRAM, "Compiling the grammar of a request.", (), SECONDS),
    Metric("imp_constraint_mask_seconds", Kind.HISTOGRAM, "All token masks of a request.", (), SECONDS),
)
READ = (  # read at the scrape
    Metric("imp_uptime_seconds", Kind.GAUGE, "Since the server started."),
    Metric("imp_model_loaded", Kind.GAUGE, "1 for the model that is being served.", ("model",)),
    Metric("imp_model_loads_total", Kind.COUNTER, "Models loaded since the start."),
    Metric("imp_queue_depth", Kind.GAUGE, "Sequences waiting or running."),
    Metric("imp_queue_waiting", Kind.GAUGE, "Sequences waiting to run."),
    Metric("imp_queue_running", Kind.GAUGE, "Sequences running."),
    Metric("imp_decode_batch_steps_total", Kind.COUNTER, "Steps with at least one decoding row."),
    Metric("imp_decode_batch_rows_total", Kind.COUNTER, "Decoding rows over all steps."),
    Metric("imp_decode_batch_max", Kind.GAUGE, "Most decoding rows in one step so far."),
    Metric("imp_decode_batch_last_rows", Kind.GAUGE, "Decoding rows of the last step."),
    Metric("imp_mixed_decode_steps_total", Kind.COUNTER, "Steps with decoding rows and prompt chunks."),
    Metric("imp_kv_blocks_total", Kind.GAUGE, "KV blocks there are."),
    Metric("imp_kv_blocks_used", Kind.GAUGE, "KV blocks that are not free."),
    Metric("imp_kv_blocks_cached", Kind.GAUGE, "KV blocks known to the prefix cache."),
    Metric("imp_kv_blocks_reclaimable", Kind.GAUGE, "Cached KV blocks nobody uses."),
    Metric("imp_kv_blocks_pinned", Kind.GAUGE, "KV blocks held by pins."),
    Metric("imp_kv_blocks_live", Kind.GAUGE, "KV blocks of running sequences."),
    Metric("imp_kv_blocks_reserved", Kind.GAUGE, "KV blocks kept back for what running sequences may say yet."),
    Metric("imp_kv_pressure_rejections_total", Kind.COUNTER, "Requests refused because they can never fit."),
    Metric("imp_kv_preemptions_total", Kind.COUNTER, "Sequences that gave up their blocks to another."),
    Metric("imp_prefix_cache_evictions_total", Kind.COUNTER, "Cached blocks taken for other content."),
    Metric("imp_prefix_cache_queries_total", Kind.COUNTER, "Prompt tokens looked up in the prefix cache."),
    Metric("imp_prefix_cache_hits_total", Kind.COUNTER, "Prompt tokens found in the prefix cache."),
    Metric("imp_prefix_cache_tier_blocks", Kind.GAUGE, "KV blocks kept below the cache.", ("tier",)),
    Metric("imp_prefix_cache_tier_stored_total", Kind.COUNTER, "KV blocks that went there.", ("tier",)),
    Metric("imp_prefix_cache_tier_restored_total", Kind.COUNTER, "KV blocks that came back from there.", ("tier",)),
    Metric("imp_prefix_cache_tier_evicted_total", Kind.COUNTER, "KV blocks that went for others there.", ("tier",)),
    Metric("imp_prefix_cache_tier_rejected_total", Kind.COUNTER, "Files that are not what they should be.", ("tier",)),
    Metric("imp_prefix_cache_tier_lost_total", Kind.COUNTER, "KV blocks that could not be kept there.", ("tier",)),
    Metric("imp_spec_drafted_total", Kind.COUNTER, "Tokens drafted by speculation."),
    Metric("imp_spec_accepted_total", Kind.COUNTER, "Drafted tokens that were accepted."),
    Metric("imp_spec_verify_steps_total", Kind.COUNTER, "Row steps that verified a draft."),
    Metric("imp_spec_miss_steps_total", Kind.COUNTER, "Row steps in which no drafted token was accepted."),
    Metric("imp_memory_reserved_bytes", Kind.GAUGE, "Weights and KV cache as planned at the load.", ("tier",)),
    Metric("imp_memory_live_bytes", Kind.GAUGE, "Weights and the KV blocks that hold something.", ("tier",)),
    Metric("imp_vram_budget_bytes", Kind.GAUGE, "Device memory this server may use; 0 without a device."),
    Metric("imp_vram_own_bytes", Kind.GAUGE, "Device memory this server uses; 0 without a device."),
    Metric("imp_vram_own_peak_bytes", Kind.GAUGE, "Most of it so far; 0 without a device."),
    Metric("imp_step_phase_seconds_total", Kind.COUNTER, "Parts of steps; only with step_timing.", ("phase",)),
    Metric("imp_steps_timed_total", Kind.COUNTER, "Steps whose parts were measured; only with step_timing."),
    Metric("imp_request_log_lines_total", Kind.COUNTER, "Lines written by --log-requests."),
    Metric("imp_request_log_dropped_total", Kind.COUNTER, "Lines --log-requests could not write."),
    Metric("imp_otlp_spans_exported_total", Kind.COUNTER, "Spans the collector took."),
    Metric("imp_otlp_export_failures_total", Kind.COUNTER, "Batches of spans that were lost."),
    Metric("imp_otlp_unsampled_requests_total", Kind.COUNTER, "Requests whose caller's trace is not sampled."),
    Metric("vllm:num_requests_running", Kind.GAUGE, "imp_queue_running, for inference gateways.", ("model_name",)),
    Metric("vllm:num_requests_waiting", Kind.GAUGE, "imp_queue_waiting, for inference gateways.", ("model_name",)),
    Metric("vllm:kv_cache_usage_perc", Kind.GAUGE, "Used KV blocks, 0 to 1, for inference gateways.", ("model_name",)),
    Metric(
        "vllm:lora_requests_info",
        Kind.GAUGE,
        "Adapters in use, for inference gateways; the value is the time of the scrape.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
)
TABLE = COUNTED + READ


_OUTCOMES = {
    Outcome.FAILED: "imp_requests_failed_total",
    Outcome.REJECTED: "imp_requests_rejected_total",
    Outcome.CANCELLED: "imp_requests_cancelled_total",
    Outcome.TIMED_OUT: "imp_requests_timed_out_total",
}


@dataclass(slots=True)
class _Histogram:
    counts: list[int]  # per bucket, not cumulative; the last is +Inf
    sum: float = 0.0


@dataclass(slots=True)
class _Family:
    metric: Metric
    counts: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, _Histogram] = field(default_factory=dict)
    read: Callable[[], Reading] | None = None


class Metrics:
    """The values of a table. Unknown names and wrong kinds are mistakes of ours and raise."""

    def __init__(self, table: Sequence[Metric] = TABLE) -> None:
        self._families = {metric.name: _Family(metric) for metric in table}
        assert len(self._families) == len(table), "two metrics of one name"
        for family in self._families.values():
            if family.metric.labels:
                continue
            if family.metric.kind is Kind.HISTOGRAM:
                family.histograms[()] = _empty(family.metric)
            else:
                family.counts[()] = 0.0
        if "imp_uptime_seconds" in self._families:
            started = time.monotonic()
            self.read("imp_uptime_seconds", lambda: time.monotonic() - started)

    def add(self, name: str, amount: float = 1, labels: Labels = ()) -> None:
        """Count up."""
        family = self._family(name, Kind.COUNTER, labels)
        assert amount >= 0
        family.counts[labels] = family.counts.get(labels, 0.0) + amount

    def sample(self, name: str, value: float, labels: Labels = ()) -> None:
        """Put one value into a histogram."""
        family = self._family(name, Kind.HISTOGRAM, labels)
        histogram = family.histograms.setdefault(labels, _empty(family.metric))
        histogram.counts[bisect_left(family.metric.buckets, value)] += 1
        histogram.sum += value

    def observe(self, record: RequestRecord) -> None:
        """Count one ended request, once. One that produced a token is in every time's histogram once (without a second
        token, with 0 s between tokens); one that produced none is in none of them: its times would mean nothing. One
        that had a grammar is in those of constraints once."""
        self.add("imp_requests_total")
        if record.outcome in _OUTCOMES:
            self.add(_OUTCOMES[record.outcome])
        if record.reasoning_exhausted:
            self.add("imp_requests_reasoning_exhausted_total")
        self.add("imp_tokens_prompt_total", record.prompt_tokens)
        self.add("imp_tokens_completion_total", record.completion_tokens)
        self.add("imp_tokens_cached_total", record.cached_tokens)
        if record.constraint_compile_s is not None:
            self.sample("imp_constraint_compile_seconds", record.constraint_compile_s)
        if record.constraint_mask_s is not None:
            self.sample("imp_constraint_mask_seconds", record.constraint_mask_s)
        if record.ttft_s is None:
            return
        values = (record.duration_s, record.ttft_s, record.inter_token_s or 0.0, record.queue_s or 0.0)
        for (name, _, _), value in zip(_TIMES, values, strict=True):
            self.sample(f"imp_{name}", value)
            self.sample(f"imp_endpoint_{name}", value, (record.endpoint,))

    def read(self, name: str, source: Callable[[], Reading]) -> None:
        """Where the value of a gauge or counter comes from at each scrape; a mapping of label values for labelled
        ones. `source` must not block. Without a source the value is 0, and with labels there is none."""
        assert self._families[name].metric.kind is not Kind.HISTOGRAM
        self._families[name].read = source

    def expose(self) -> bytes:
        """The whole table in the text format."""
        lines: list[str] = []
        for family in self._families.values():
            metric = family.metric
            lines.append(f"# HELP {metric.name} {_escape_help(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind.value}")
            lines += _samples(family)
        return ("\n".join(lines) + "\n").encode()

    def _family(self, name: str, kind: Kind, labels: Labels) -> _Family:
        family = self._families[name]
        assert family.metric.kind is kind and len(family.metric.labels) == len(labels)
        return family


def _empty(metric: Metric) -> _Histogram:
    return _Histogram([0] * (len(metric.buckets) + 1))


def _samples(family: _Family) -> Iterable[str]:
    metric = family.metric
    if metric.kind is Kind.HISTOGRAM:
        for values, histogram in family.histograms.items():
            yield from _histogram_lines(metric, values, histogram)
        return
    readings: Mapping[Labels, float] = family.counts
    if family.read is not None:
        reading = family.read()
        readings = reading if isinstance(reading, Mapping) else {(): reading}
    for values, value in readings.items():
        yield f"{metric.name}{_labels(metric.labels, values)} {_number(value)}"


def _histogram_lines(metric: Metric, values: Labels, histogram: _Histogram) -> Iterable[str]:
    bounds = [_number(bound) for bound in metric.buckets] + ["+Inf"]
    cumulative = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, cumulative, strict=True):
        yield f"{metric.name}_bucket{_labels((*metric.labels, 'le'), (*values, bound))} {count}"
    labels = _labels(metric.labels, values)
    yield f"{metric.name}_sum{labels} {_number(histogram.sum)}"
    yield f"{metric.name}_count{labels} {cumulative[-1]}"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = [f'{name}="{_escape_label(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def table() -> str:
    """The metrics as a Markdown table."""
    lines = ["| metric | type | labels | what it says |", "|---|---|---|---|"]
    for metric in TABLE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
