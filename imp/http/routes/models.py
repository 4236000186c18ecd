"""GET /v1/models and /v1/models/{id}: the loaded model, then the rest of the models dir."""

from __future__ import annotations

from typing import Any

from imp.http.errors import model_not_found
from imp.http.message import HttpRequest, Response, json_response
from imp.http.services import Loaded, Services


async def listing(services: Services, request: HttpRequest) -> Response:
    return json_response({"object": "list", "data": _all(services)})


async def one(services: Services, request: HttpRequest) -> Response:
    wanted = request.params["id"]
    for model in _all(services):
        if model["id"] == wanted:
            return json_response(model)
    raise model_not_found(wanted)


def _all(services: Services) -> list[dict[str, Any]]:
    loaded = services.loaded
    first = [] if loaded is None else [_card(loaded)]
    served = None if loaded is None else loaded.card.name
    rest = [
        {"id": name, "object": "model", "created": 0, "owned_by": "imp", "loaded": False}
        for name in services.other_models()
        if name != served
    ]
    return first + rest


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
