"""What the server answers, as JSON Schema: the components of /openapi.json. Answers may have more keys than these."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}


def constant(value: Any) -> Schema:
    return {"const": value}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema, **keywords: Any) -> Schema:
    return {"type": "array", "items": items, **keywords}


def one_of(*words: Any) -> Schema:
    return {"enum": list(words)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(*optional: str, **properties: Schema) -> Schema:
    """An object with these properties, all required but those named `optional`."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


_STOP = {"anyOf": [STRING, INTEGER, {"type": "null"}]}
_LOGPROB = an_object(token=STRING, logprob=NUMBER, bytes=array(COUNT))
_TOKEN_LOGPROB = an_object(token=STRING, logprob=NUMBER, bytes=array(COUNT), top_logprobs=array(_LOGPROB))
_CHAT_LOGPROBS = or_null(an_object(content=array(_TOKEN_LOGPROB), refusal={"type": "null"}))
_LOGPROB_LISTS = or_null(
    an_object(
        tokens=array(STRING),
        token_logprobs=array(or_null(NUMBER)),
        top_logprobs=array(or_null({"type": "object", "additionalProperties": NUMBER})),
        text_offset=array(COUNT),
    )
)
_TOOL_CALL = an_object(
    "invalid_arguments",
    id=STRING,
    type=constant("function"),
    function=an_object(name=STRING, arguments=STRING),
    invalid_arguments=STRING,
)
_DETAIL = {"imp_finish_detail": one_of("reasoning_budget_exhausted", "reasoning_not_closed")}
_VALIDATION = {"tool_call_validation_error": STRING}
_TOKEN_USAGE = an_object(prompt_tokens=COUNT, total_tokens=COUNT)
_HEAD = {"id": STRING, "created": COUNT, "model": STRING}

ERRORS: dict[str, Schema] = {
    "Error": an_object(error=an_object(message=STRING, type=STRING, param=or_null(STRING), code=or_null(STRING))),
    "AnthropicError": an_object(
        type=constant("error"),
        error=an_object(
            type=one_of(
                *("invalid_request_error", "authentication_error", "billing_error", "permission_error"),
                *("not_found_error", "request_too_large", "rate_limit_error", "api_error", "overloaded_error"),
                "timeout_error",
            ),
            message=STRING,
        ),
        request_id=STRING,
    ),
}

SPECULATION = dict.fromkeys(
    ("imp_spec_drafted", "imp_spec_accepted", "imp_spec_emitted", "imp_spec_verify_steps"), COUNT
)
GENERATION: dict[str, Schema] = {
    "Usage": an_object(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=an_object(cached_tokens=COUNT),
        completion_tokens_details=an_object(
            *(*SPECULATION, "imp_spec_declined", "imp_spec_declined_detail"),
            reasoning_tokens=COUNT,
            accepted_prediction_tokens=COUNT,
            rejected_prediction_tokens=COUNT,
            **SPECULATION,
            imp_spec_declined=STRING,
            imp_spec_declined_detail=STRING,
        ),
    ),
    "ChatCompletion": an_object(
        **_HEAD,
        object=constant("chat.completion"),
        system_fingerprint=or_null(STRING),
        choices=array(
            an_object(
                *_DETAIL,
                index=COUNT,
                message=an_object(
                    "reasoning_content",
                    "tool_calls",
                    *_VALIDATION,
                    role=constant("assistant"),
                    content=or_null(STRING),
                    refusal={"type": "null"},
                    reasoning_content=STRING,
                    tool_calls=array(_TOOL_CALL, minItems=1),
                    **_VALIDATION,
                ),
                logprobs=_CHAT_LOGPROBS,
                finish_reason=one_of("stop", "length", "tool_calls"),
                stop_reason=_STOP,
                **_DETAIL,
            ),
            minItems=1,
        ),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": an_object(
        "usage",
        **_HEAD,
        object=constant("chat.completion.chunk"),
        system_fingerprint=or_null(STRING),
        choices=array(
            an_object(
                *("stop_reason", *_DETAIL),
                index=COUNT,
                delta=an_object(*_VALIDATION, **_VALIDATION),
                logprobs=_CHAT_LOGPROBS,
                finish_reason=one_of("stop", "length", "tool_calls", None),
                stop_reason=_STOP,
                **_DETAIL,
            )
        ),
        usage=or_null(ref("Usage")),
    ),
    "Completion": an_object(
        "usage",
        **_HEAD,
        object=constant("text_completion"),
        system_fingerprint=or_null(STRING),
        choices=array(
            an_object(
                "stop_reason",
                index=COUNT,
                text=STRING,
                logprobs=_LOGPROB_LISTS,
                finish_reason=one_of("stop", "length", None),
                stop_reason=_STOP,
            )
        ),
        usage=or_null(ref("Usage")),
    ),
    "Message": an_object(
        *(*_DETAIL, *_VALIDATION),
        id=STRING,
        type=constant("message"),
        role=constant("assistant"),
        model=STRING,
        content=array(an_object("text", "invalid_arguments", type=STRING, text=STRING, invalid_arguments=STRING)),
        stop_reason=one_of("end_turn", "max_tokens", "stop_sequence", "tool_use", None),
        stop_sequence=or_null(STRING),
        usage=an_object(
            *SPECULATION,
            input_tokens=COUNT,
            output_tokens=COUNT,
            cache_creation_input_tokens=COUNT,
            cache_read_input_tokens=COUNT,
            **SPECULATION,
        ),
        **_DETAIL,
        **_VALIDATION,
    ),
    "Infill": an_object(
        *("id", "model", "stop_type", "stopping_word", "truncated", "tokens_cached"),
        index=COUNT,
        content=STRING,
        tokens=array(COUNT),
        stop=BOOLEAN,
        tokens_predicted=COUNT,
        tokens_evaluated=COUNT,
        id=STRING,
        model=STRING,
        stop_type=one_of("eos", "limit", "word"),
        stopping_word=STRING,
        truncated=BOOLEAN,
        tokens_cached=COUNT,
    ),
    "Slots": array(an_object(id=COUNT, n_ctx=COUNT, is_processing=BOOLEAN)),
    "InputTokens": an_object(input_tokens=COUNT),
    "Response": an_object(
        *(*_DETAIL, *_VALIDATION),
        id=STRING,
        object=constant("response"),
        created_at=COUNT,
        status=one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        model=STRING,
        output=array(an_object("invalid_arguments", type=STRING, invalid_arguments=STRING)),
        error=or_null(ANY_OBJECT),
        incomplete_details=or_null(ANY_OBJECT),
        usage=or_null(an_object(input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT)),
        **_DETAIL,
        **_VALIDATION,
    ),
    "ResponseInputTokens": an_object(object=constant("response.input_tokens"), input_tokens=COUNT),
    "Deleted": an_object(id=STRING, object=constant("response"), deleted=constant(True)),
}

MEASURES: dict[str, Schema] = {
    "Embeddings": an_object(
        **_HEAD,
        object=constant("list"),
        data=array(an_object(object=constant("embedding"), index=COUNT, embedding={"anyOf": [array(NUMBER), STRING]})),
        usage=_TOKEN_USAGE,
    ),
    "Rerank": an_object(
        **_HEAD,
        object=constant("rerank"),
        results=array(
            an_object("document", index=COUNT, relevance_score=NUMBER, document=an_object(text=STRING)),
        ),
        usage=_TOKEN_USAGE,
        meta=ANY_OBJECT,
    ),
    "TeiRerank": array(an_object("text", index=COUNT, score=NUMBER, text=STRING)),
    "Scores": an_object(
        **_HEAD,
        object=constant("list"),
        data=array(an_object(object=constant("score"), index=COUNT, score=NUMBER)),
        usage=_TOKEN_USAGE,
    ),
}

_MODEL = an_object(
    *("root", "parent", "capabilities", "max_model_len", "meta", "sampling_defaults"),
    id=STRING,
    object=constant("model"),
    created=COUNT,
    owned_by=STRING,
    loaded=BOOLEAN,
    root=STRING,
    parent=or_null(STRING),
    capabilities=array(STRING),
    max_model_len=COUNT,
    meta=ANY_OBJECT,
    sampling_defaults=ANY_OBJECT,
)
_ANTHROPIC_MODEL = an_object(type=constant("model"), id=STRING, display_name=STRING, created_at=STRING)

UTILITIES: dict[str, Schema] = {
    "Model": {"anyOf": [_MODEL, _ANTHROPIC_MODEL]},
    "Models": {
        "anyOf": [
            an_object(object=constant("list"), data=array(_MODEL)),
            an_object(
                data=array(_ANTHROPIC_MODEL), has_more=BOOLEAN, first_id=or_null(STRING), last_id=or_null(STRING)
            ),
        ]
    },
    "Tokens": an_object(
        count=COUNT,
        max_model_len=COUNT,
        tokens=array({"anyOf": [COUNT, an_object(id=COUNT, piece={"anyOf": [STRING, array(COUNT)]})]}),
        token_strs=or_null(array(STRING)),
    ),
    "Text": an_object(prompt=STRING, content=STRING),
    "Prompt": an_object(prompt=STRING),
    "TokenizerInfo": an_object(
        *("bos_token_id", "eos_token_id", "chat_template"),
        tokenizer_class=STRING,
        model_max_length=COUNT,
        vocab_size=COUNT,
        bos_token_id=COUNT,
        eos_token_id=COUNT,
        chat_template=STRING,
        added_tokens_decoder=ANY_OBJECT,
    ),
    "Props": an_object(
        default_generation_settings=ANY_OBJECT,
        n_ctx=COUNT,
        total_slots=COUNT,
        model_path=STRING,
        chat_template=STRING,
        bos_token=STRING,
        eos_token=STRING,
        modalities=ANY_OBJECT,
        build_info=STRING,
    ),
    "Info": an_object(model_id=STRING, max_total_tokens=COUNT, max_input_tokens=COUNT, version=STRING),
    "ServerInfo": an_object(vllm_config={"anyOf": [STRING, ANY_OBJECT]}, vllm_env=ANY_OBJECT, system_env=ANY_OBJECT),
    "Load": an_object(server_load=COUNT),
    "Health": an_object(
        *("code", "model", "kv_blocks_total", "kv_blocks_used", "kv_block_size", "kv_capacity_tokens"),
        *("kv_ceiling_blocks", "kv_below", "backend", "speculation"),
        status=one_of("ok", "loading", "unhealthy"),
        code=STRING,
        model_loaded=BOOLEAN,
        model=STRING,
        queue_depth=COUNT,
        suspended=BOOLEAN,
        draining=BOOLEAN,
        kv_blocks_total=COUNT,
        kv_blocks_used=COUNT,
        kv_block_size=COUNT,
        kv_capacity_tokens=COUNT,
        kv_ceiling_blocks=COUNT,
        kv_below=ANY_OBJECT,
        backend=STRING,
        speculation=ANY_OBJECT,
    ),
    "Ready": an_object(status=constant("ready")),
    "Version": an_object(version=STRING),
    "Cancelled": an_object(id=STRING, status=constant("aborted"), aborted=COUNT),
    "EndedThinking": an_object(id=STRING, ended=COUNT),
    "Suspended": an_object(
        "note",
        "vram_free_after",
        suspended=constant(True),
        model=STRING,
        snapshot_bytes=COUNT,
        vram_free_before=or_null(COUNT),
        vram_free_after=COUNT,
        device_reset=BOOLEAN,
        note=STRING,
    ),
    "Resumed": an_object(
        "note", "warm_hits", suspended=constant(False), model=STRING, resume_ms=COUNT, warm_hits=COUNT, note=STRING
    ),
    "AdapterLoaded": an_object(loaded=constant(True), name=STRING, rank=COUNT, parameters=COUNT, size_bytes=COUNT),
    "AdapterUnloaded": an_object(loaded=constant(False), name=STRING),
    "Aborted": an_object(status=constant("aborted"), aborted=COUNT),
    "Detail": an_object(detail=STRING),
    "Success": an_object(success=BOOLEAN),
    "List": an_object(object=constant("list"), data=array(ANY_OBJECT)),
}

COMPONENTS: dict[str, Schema] = ERRORS | GENERATION | MEASURES | UTILITIES
