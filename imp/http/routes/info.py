"""Health, readiness, version, metrics: answered from snapshots, never waiting for the engine."""

from __future__ import annotations

from typing import Any

from imp import __version__
from imp.http.errors import unavailable
from imp.http.message import Full, HttpRequest, Response, json_response
from imp.http.services import Services, State
from imp.obs.metrics import CONTENT_TYPE


async def health(services: Services, request: HttpRequest) -> Response:
    """GET /health: 200 as long as the event loop turns; 503 only for a faulted engine."""
    engine, loaded = services.engine, services.loaded
    body: dict[str, Any] = {
        "status": "loading" if services.state is State.LOADING else "ok",
        "model_loaded": loaded is not None,
        "queue_depth": 0,
        "suspended": services.state is State.SUSPENDED,
        "draining": services.state is State.DRAINING,
    }
    if loaded is not None and engine is not None:
        stats = engine.stats
        mode, why = stats.speculation
        body |= {
            "model": loaded.card.name,
            "queue_depth": stats.waiting,
            "kv_blocks_total": stats.blocks_total,
            "kv_blocks_used": stats.blocks_used,
            "kv_block_size": loaded.memory.block_size,
            "kv_capacity_tokens": stats.blocks_total * loaded.memory.block_size,
            "kv_ceiling_blocks": stats.blocks_most,
            "kv_below": {each.name: _place(each) for each in stats.tiers},
            "backend": loaded.backend.name,
            "speculation": {"mode": mode, "why": why},
        }
        if engine.faulted:
            return json_response(body | {"status": "unhealthy", "code": "engine_faulted"}, 503)
    return json_response(body)


def _place(tier: Any) -> dict[str, int]:
    return {"blocks": tier.blocks, "bytes": tier.used_bytes, "max_bytes": tier.most_bytes, "rejected": tier.rejected}


async def ready(services: Services, request: HttpRequest) -> Response:
    """GET /ready: 200, or 503 with the reason as its code."""
    if services.state is not State.READY or services.engine is None:
        raise unavailable(services.state.value, f"not ready: {services.state.value}")
    if services.engine.faulted or services.stalled:
        raise unavailable("engine_stalled", "The engine makes no progress.")
    return json_response({"status": "ready"})


async def ping(services: Services, request: HttpRequest) -> Response:
    """GET or POST /ping"""
    return Full(200)


async def version(services: Services, request: HttpRequest) -> Response:
    """GET /version"""
    return json_response({"version": __version__})


async def metrics(services: Services, request: HttpRequest) -> Response:
    """GET /metrics: Prometheus text format 0.0.4."""
    return Full(200, services.metrics.expose(), {"Content-Type": CONTENT_TYPE})
