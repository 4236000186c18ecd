"""GET /v1/models and /v1/models/{id}: the loaded model, then the rest of the models dir.

OpenAI's shape, or Anthropic's where the request has an `anthropic-version` header.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from imp.chat.prepare import ModelFacts
from imp.http.errors import model_not_found
from imp.http.message import HttpRequest, Response, json_response
from imp.http.services import Loaded, Services


async def listing(services: Services, request: HttpRequest) -> Response:
    found = _all(services)
    if not _for_anthropic(request):
        return json_response({"object": "list", "data": found})
    data = [_anthropic(model) for model in found]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return json_response({"data": data, "has_more": False} | ends)


async def one(services: Services, request: HttpRequest) -> Response:
    wanted = request.params["id"]
    for model in _all(services):
        if model["id"] == wanted:
            return json_response(_anthropic(model) if _for_anthropic(request) else model)
    raise model_not_found(wanted)


def _for_anthropic(request: HttpRequest) -> bool:
    return "anthropic-version" in request.headers


def _anthropic(model: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(model["created"], UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    shown = {"id": model["id"], "display_name": model["id"], "created_at": created}
    return {"type": "model", **shown, "lifecycle": "active"}


def _all(services: Services) -> list[dict[str, Any]]:
    loaded = services.loaded
    first = [] if loaded is None else [_card(loaded), *_adapters(loaded)]
    served = None if loaded is None else loaded.card.name
    rest = [
        {"id": name, "object": "model", "created": 0, "owned_by": "imp", "loaded": False}
        for name in services.other_models()
        if name != served
    ]
    return first + rest


def _adapters(loaded: Loaded) -> list[dict[str, Any]]:
    base = _card(loaded)
    return [
        base
        | {"id": each.name, "created": each.loaded_at, "parent": loaded.card.name}
        | {"meta": base["meta"] | {"n_params": each.parameters, "size": each.size_bytes, "lora_rank": each.rank}}
        for each in loaded.adapters or ()
    ]


def _capabilities(facts: ModelFacts) -> list[str]:
    """What requests the model can serve."""
    can = {
        "completion": True,
        "chat": facts.template is not None,
        "infill": facts.fill is not None,
        "embeddings": facts.vectors.size > 0,
        "rerank": facts.vectors.size > 0,
    }
    return [name for name, true in can.items() if true]


def _card(loaded: Loaded) -> dict[str, Any]:
    card, facts = loaded.card, loaded.facts
    defaults = facts.defaults
    return {
        "id": card.name,
        "object": "model",
        "created": card.loaded_at,
        "owned_by": "imp",
        "root": card.name,
        "parent": None,
        "loaded": True,
        "capabilities": _capabilities(facts),
        "max_model_len": facts.context,
        "meta": {
            "n_ctx_train": card.trained_context,
            "n_ctx": facts.context,
            "n_vocab": facts.tokenizer.vocab_size,
            "n_params": card.parameters,
            "size": card.size_bytes,
            "arch": card.architecture,
            "quant": card.quantization,
        },
        "sampling_defaults": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "typical_p": defaults.typical_p,
            "repetition_penalty": defaults.repetition_penalty,
        },
    }
