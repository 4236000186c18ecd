"""Where the metrics that are read at a scrape come from: the engine's last snapshot, the memory plan, the model's name.

Nothing here waits for the engine: a snapshot is one frozen value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from imp.adapters import Adapters
from imp.engine import Engine
from imp.memory import MemoryPlan
from imp.obs.metrics import Labels, Metrics
from imp.sched.stats import Stats, TierStats


class Usage(Protocol):
    """Of a device's own memory."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def own_bytes(self) -> int: ...
    @property
    def own_peak_bytes(self) -> int: ...


VRAM: dict[str, Callable[[Usage], int]] = {
    "imp_vram_budget_bytes": lambda usage: usage.budget_bytes,
    "imp_vram_own_bytes": lambda usage: usage.own_bytes,
    "imp_vram_own_peak_bytes": lambda usage: usage.own_peak_bytes,
}

ENGINE: dict[str, Callable[[Stats], float]] = {
    "imp_queue_depth": lambda s: s.waiting + s.running,
    "imp_queue_waiting": lambda s: s.waiting,
    "imp_queue_running": lambda s: s.running,
    "imp_decode_batch_steps_total": lambda s: s.decode_steps,
    "imp_decode_batch_rows_total": lambda s: s.decode_rows,
    "imp_decode_batch_max": lambda s: s.decode_max_rows,
    "imp_decode_batch_last_rows": lambda s: s.decode_last_rows,
    "imp_mixed_decode_steps_total": lambda s: s.mixed_steps,
    "imp_kv_blocks_total": lambda s: s.blocks_total,
    "imp_kv_blocks_used": lambda s: s.blocks_used,
    "imp_kv_blocks_cached": lambda s: s.blocks_cached,
    "imp_kv_blocks_reclaimable": lambda s: s.blocks_reclaimable,
    "imp_kv_blocks_pinned": lambda s: s.blocks_pinned,
    "imp_kv_blocks_live": lambda s: s.blocks_live,
    "imp_kv_blocks_reserved": lambda s: s.blocks_reserved,
    "imp_kv_pressure_rejections_total": lambda s: s.refused,
    "imp_kv_preemptions_total": lambda s: s.preemptions,
    "imp_prefix_cache_evictions_total": lambda s: s.evictions,
    "imp_prefix_cache_queries_total": lambda s: s.cache_queries,
    "imp_prefix_cache_hits_total": lambda s: s.cache_hits,
    "imp_spec_drafted_total": lambda s: s.drafted,
    "imp_spec_accepted_total": lambda s: s.accepted,
    "imp_spec_verify_steps_total": lambda s: s.verify_steps,
    "imp_spec_miss_steps_total": lambda s: s.miss_steps,
}
BY_TIER: dict[str, Callable[[TierStats], float]] = {
    "imp_prefix_cache_tier_blocks": lambda t: t.blocks,
    "imp_prefix_cache_tier_stored_total": lambda t: t.stored,
    "imp_prefix_cache_tier_restored_total": lambda t: t.restored,
    "imp_prefix_cache_tier_evicted_total": lambda t: t.evicted,
    "imp_prefix_cache_tier_rejected_total": lambda t: t.rejected,
    "imp_prefix_cache_tier_lost_total": lambda t: t.lost,
}
BY_MODEL: dict[str, Callable[[Stats], float]] = {
    "vllm:num_requests_running": lambda s: s.running,
    "vllm:num_requests_waiting": lambda s: s.waiting,
    "vllm:kv_cache_usage_perc": lambda s: s.blocks_used / s.blocks_total,
}


def connect(
    metrics: Metrics,
    engine: Engine,
    memory: MemoryPlan,
    model: str,
    adapters: Adapters | None = None,
) -> None:
    """Read everything about the loaded `model` from now on."""
    for name, source in ENGINE.items():
        metrics.read(name, partial(_value, engine, source))
    for name, of_tier in BY_TIER.items():
        metrics.read(name, partial(_by_tier, engine, of_tier))
    for name, source in BY_MODEL.items():
        metrics.read(name, partial(_by_model, engine, source, model))
    metrics.read("imp_model_loaded", lambda: {(model,): 1})
    metrics.read("vllm:lora_requests_info", partial(_adapters_in_use, engine, adapters))
    metrics.read("imp_memory_reserved_bytes", lambda: reserved(memory, engine.stats, _more(adapters)))
    metrics.read("imp_memory_live_bytes", lambda: live(memory, engine.stats, _more(adapters)))


def connect_device(metrics: Metrics, usage: Callable[[], Usage | None]) -> None:
    """Read what the device's own memory holds from now on; nothing where it has none."""
    for name, source in VRAM.items():
        metrics.read(name, partial(_of_device, usage, source))


def disconnect(metrics: Metrics) -> None:
    """The model is gone: its gauges are 0, its labelled ones have no series."""
    for name in VRAM:
        metrics.read(name, _zero)
    for name in (*ENGINE, "imp_memory_reserved_bytes", "imp_memory_live_bytes"):
        metrics.read(name, _none if name.startswith("imp_memory") else _zero)
    for name in (*BY_TIER, *BY_MODEL, "imp_model_loaded", "vllm:lora_requests_info"):
        metrics.read(name, _none)


def _zero() -> float:
    return 0


def _none() -> dict[Labels, float]:
    return {}


def reserved(memory: MemoryPlan, stats: Stats, more: int = 0) -> dict[Labels, float]:
    """Bytes by tier: what is taken from the start, `more` than planned, and what blocks below the cache may take."""
    own: dict[Labels, float] = {(memory.tier,): memory.weights_bytes + stats.blocks_total * memory.block_bytes + more}
    return own | {(tier.name,): tier.most_bytes for tier in stats.tiers}


def live(memory: MemoryPlan, stats: Stats, more: int = 0) -> dict[Labels, float]:
    """Of these, the part that holds something: the weights, and blocks in use or cached."""
    blocks = stats.blocks_total - stats.blocks_free
    own: dict[Labels, float] = {(memory.tier,): memory.weights_bytes + blocks * memory.block_bytes + more}
    return own | {(tier.name,): tier.used_bytes for tier in stats.tiers}


def _more(adapters: Adapters | None) -> int:
    """Bytes of adapters that came after the plan was made; negative where planned ones have left."""
    return 0 if adapters is None else adapters.size_bytes - adapters.planned_bytes


def _adapters_in_use(engine: Engine, adapters: Adapters | None) -> dict[Labels, float]:
    """Gateways take the series whose value, a time, is the latest. There is no fixed number of places for adapters:
    those that are loaded count."""
    known = {} if adapters is None else {each.slot: each.name for each in adapters}
    running, waiting = (",".join(sorted(known[slot] for slot in slots if slot in known)) for slots in engine.adapters)
    return {(str(len(known)), running, waiting): time.time()}


def _value(engine: Engine, source: Callable[[Stats], float]) -> float:
    return source(engine.stats)


def _by_tier(engine: Engine, source: Callable[[TierStats], float]) -> dict[Labels, float]:
    return {(tier.name,): source(tier) for tier in engine.stats.tiers}


def _of_device(usage: Callable[[], Usage | None], source: Callable[[Usage], int]) -> float:
    now = usage()
    return 0 if now is None else source(now)


def _by_model(engine: Engine, source: Callable[[Stats], float], model: str) -> dict[Labels, float]:
    return {(model,): source(engine.stats)}
