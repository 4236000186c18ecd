"""What clients of other servers ask to learn what is served here: llama.cpp, TGI and vLLM, each in its own shape."""

from __future__ import annotations

import platform
from typing import Any

from imp import __version__
from imp.http.errors import bad_request, unavailable
from imp.http.message import HttpRequest, Response, json_response
from imp.http.services import Loaded, Services

MAX_STOPS = 16  # strings in `stop`


async def props(services: Services, request: HttpRequest) -> Response:
    """GET /props, llama.cpp's shape. `model_path` is the model's name: where files lie is nobody's business."""
    loaded = services.serving(None)
    facts, tokenizer = loaded.facts, loaded.tokenizer
    tool_use = None if facts.template is None else facts.template.tool_use
    return json_response(
        {
            "default_generation_settings": {"n_ctx": facts.context, "params": _defaults(loaded)},
            "n_ctx": facts.context,
            "total_slots": loaded.memory.rows,
            "model_path": loaded.card.name,
            "chat_template": "" if facts.template is None else facts.template.source,
            "bos_token": _text(tokenizer, tokenizer.bos_id),
            "eos_token": _text(tokenizer, tokenizer.eos_id),
            "modalities": {"vision": False, "audio": False},
            "build_info": services.fingerprint,
            **({} if tool_use is None else {"chat_template_tool_use": tool_use}),
        }
    )


async def slots(services: Services, request: HttpRequest) -> Response:
    """GET /slots, llama.cpp's shape: the places of a step, the first ones busy. With `fail_on_no_slot` 503 where none
    is free. What is asked and answered in them is nobody else's business."""
    loaded, engine = services.serving(None), services.engine
    assert engine is not None
    rows, busy = loaded.memory.rows, engine.stats.running
    if busy >= rows and request.query.get("fail_on_no_slot") in ("1", "true"):
        raise unavailable("no_slot_available", "Every place is taken.")
    context = loaded.facts.context
    return json_response([{"id": i, "n_ctx": context, "is_processing": i < busy} for i in range(rows)])


def _text(tokenizer: Any, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _defaults(loaded: Loaded) -> dict[str, Any]:
    """What a request gets that asks for nothing, under llama.cpp's names. Seed -1: another one for each request."""
    own, longest = loaded.facts.defaults, loaded.facts.max_tokens
    return {
        "seed": -1,
        "temperature": own.temperature,
        "top_k": own.top_k,
        "top_p": own.top_p,
        "min_p": own.min_p,
        "typical_p": own.typical_p,
        "xtc_probability": own.xtc_probability,
        "xtc_threshold": own.xtc_threshold,
        "repeat_last_n": own.repeat_last_n,
        "repeat_penalty": own.repetition_penalty,
        "presence_penalty": own.presence_penalty,
        "frequency_penalty": own.frequency_penalty,
        "dry_multiplier": own.dry_multiplier,
        "dry_base": own.dry_base,
        "dry_allowed_length": own.dry_allowed_length,
        "dry_penalty_last_n": own.dry_penalty_last_n,
        "mirostat": own.mirostat,
        "mirostat_tau": own.mirostat_tau,
        "mirostat_eta": own.mirostat_eta,
        "max_tokens": longest,
        "n_predict": longest,
        "stop": [],
        "ignore_eos": False,
        "stream": False,
    }


async def info(services: Services, request: HttpRequest) -> Response:
    """GET /info, TGI's shape."""
    loaded = services.serving(None)
    facts = loaded.facts
    return json_response(
        {
            "model_id": loaded.card.name,
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": services.max_concurrent,
            "max_best_of": facts.max_n,
            "max_stop_sequences": MAX_STOPS,
            "max_input_tokens": min(facts.max_input_tokens or facts.context - 1, facts.context - 1),
            "max_total_tokens": facts.context,
            "validation_workers": services.prepare_threads,
            "max_client_batch_size": services.max_batch_items,
            "router": "imp-server",
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }
    )


async def server_info(services: Services, request: HttpRequest) -> Response:
    """GET /server_info, vLLM's shape; `config_format` is text (default) or json. Settings are told by name, one by one,
    so that no key, path or prompt gets in; without a model there are none to tell."""
    shape = request.query.get("config_format", "text")
    if shape not in ("text", "json"):
        raise bad_request("config_format", '"config_format" must be one of "text", "json".')
    loaded = services.loaded
    config: dict[str, Any] = {}
    system: dict[str, Any] = {"imp_version": __version__, "python_version": platform.python_version()}
    system |= {"os": platform.system(), "machine": platform.machine()}
    if loaded is not None:
        config = {"served_model_name": loaded.card.name, "max_model_len": loaded.facts.context}
        config |= {"max_num_seqs": loaded.memory.rows, "block_size": loaded.memory.block_size}
        system["backend"] = loaded.backend.name
    text = ", ".join(f"{name}={value}" for name, value in config.items())
    return json_response({"vllm_config": text if shape == "text" else config, "vllm_env": {}, "system_env": system})


async def load(services: Services, request: HttpRequest) -> Response:
    """GET /load: HTTP requests that are generating or wait for it."""
    return json_response({"server_load": len(services.generating)})
