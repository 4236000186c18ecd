"""Between text and tokens: the tokenize family, in vLLM's and llama.cpp's shapes."""

from __future__ import annotations

from typing import Any

from imp.chat.message import ChatRequest
from imp.chat.prepare import encode_rendered
from imp.chat.rendering import render, shown
from imp.http.dialects import openai_chat
from imp.http.dialects.openai_chat import messages, template_kwargs
from imp.http.dialects.shared import token_string
from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, parse
from imp.http.generate import ignored_headers
from imp.http.message import HttpRequest, Response, dumps_long, json_bytes, json_response
from imp.http.services import Loaded, Services

MAX_TOKENS = 1_000_000

TOKENIZE = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("prompt", Kind.STRING, doc="Text to tokenise."),
    Field("content", Kind.STRING, doc="llama.cpp's name for prompt."),
    Field("messages", Kind.ARRAY, min_items=1, max_items=10000, items=Field("", Kind.OBJECT), doc="A chat instead."),
    Field("add_special_tokens", Kind.BOOLEAN, doc="Default: true for text, false for messages."),
    Field("add_special", Kind.BOOLEAN, doc="llama.cpp's name for it; default false with content."),
    Field("parse_special", Kind.BOOLEAN, default=False, doc="Read control tokens written in the text."),
    Field("with_pieces", Kind.BOOLEAN, default=False, doc="llama.cpp: tokens as {id, piece}."),
    Field("return_token_strs", Kind.BOOLEAN, default=False, doc="Adds token_strs."),
    Field("add_generation_prompt", Kind.BOOLEAN, doc="For messages; default true."),
    Field("continue_final_message", Kind.BOOLEAN, default=False, doc="For messages."),
    Field("chat_template_kwargs", Kind.OBJECT, doc="For messages."),
)
DETOKENIZE = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("tokens", Kind.ARRAY, required=True, max_items=MAX_TOKENS, items=Field("", Kind.INTEGER)),
)


_MESSAGES = Field("messages", Kind.ARRAY, required=True, min_items=1, max_items=10000, items=Field("", Kind.OBJECT))
APPLY_TEMPLATE = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    _MESSAGES,
    Field("tools", Kind.ARRAY, max_items=1000, items=Field("", Kind.OBJECT), doc="Shown to the template as they are."),
    Field("add_generation_prompt", Kind.BOOLEAN, doc="Default: true, unless the final message is continued."),
    Field("continue_final_message", Kind.BOOLEAN, default=False, doc="Go on with the last message."),
    Field("chat_template_kwargs", Kind.OBJECT, doc="Variables for the chat template."),
)


async def tokenize(services: Services, request: HttpRequest) -> Response:
    parsed = await services.read(request, lambda body: parse(body, TOKENIZE))
    loaded = services.serving(parsed["model"])
    given = [name for name in ("prompt", "content", "messages") if parsed[name] is not None]
    if len(given) != 1:
        raise bad_request("prompt", 'exactly one of "prompt", "content" and "messages" is needed.')
    return json_bytes(await services.prepare(lambda: _tokenized(parsed.values, given[0], loaded)))


def _tokenized(values: dict[str, Any], given: str, loaded: Loaded) -> bytes:
    ids = _chat_ids(values, loaded) if given == "messages" else _text_ids(values, given, loaded)
    pieces = [token_string(loaded.tokenizer, token) for token in ids] if values["return_token_strs"] else None
    tokens: list[Any] = ids
    if values["with_pieces"]:
        tokens = [{"id": token, "piece": _piece(loaded, token)} for token in ids]
    answer = {"count": len(ids), "max_model_len": loaded.facts.context, "tokens": tokens, "token_strs": pieces}
    return dumps_long(answer)


def _text_ids(values: dict[str, Any], name: str, loaded: Loaded) -> list[int]:
    if not values[name]:
        raise bad_request(name, f'"{name}" must not be empty.')
    special = values["add_special_tokens"] if values["add_special"] is None else values["add_special"]
    if special is None:
        special = name == "prompt"
    return loaded.tokenizer.encode(values[name], add_special=special, parse_special=values["parse_special"])


def _chat_ids(values: dict[str, Any], loaded: Loaded) -> list[int]:
    return encode_rendered(render(_chat(values), loaded.facts), loaded.facts)


def _chat(values: dict[str, Any]) -> ChatRequest:
    generation, continues = values["add_generation_prompt"], values["continue_final_message"]
    if generation and continues:
        message = '"add_generation_prompt" and "continue_final_message" exclude each other.'
        raise bad_request("continue_final_message", message)
    return ChatRequest(
        messages(values["messages"]),
        tools=tuple(values.get("tools") or ()),
        template_kwargs=template_kwargs(values["chat_template_kwargs"]),
        add_generation_prompt=not continues if generation is None else generation,
        continue_final_message=continues,
    )


def _piece(loaded: Loaded, token: int) -> str | list[int]:
    raw = loaded.tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(services: Services, request: HttpRequest) -> Response:
    parsed = await services.read(request, lambda body: parse(body, DETOKENIZE))
    loaded = services.serving(parsed["model"])
    return json_bytes(await services.prepare(lambda: _detokenized(parsed["tokens"], loaded)))


def _detokenized(tokens: list[int], loaded: Loaded) -> bytes:
    size = loaded.tokenizer.vocab_size
    for i, token in enumerate(tokens):
        if not 0 <= token < size:
            raise bad_request(f"tokens[{i}]", f'"tokens[{i}]" is {token}; the vocabulary is 0 to {size - 1}.')
    text = loaded.tokenizer.decode(tokens)
    return dumps_long({"prompt": text, "content": text})


async def apply_template(services: Services, request: HttpRequest) -> Response:
    """POST /apply-template: the prompt a chat would become, as text."""
    parsed = await services.read(request, lambda body: parse(body, APPLY_TEMPLATE))
    facts, chat = services.serving(parsed["model"]).facts, _chat(parsed.values)
    body = await services.prepare(lambda: dumps_long({"prompt": shown(render(chat, facts))}))
    return json_bytes(body, headers=ignored_headers(services, parsed.ignored))


async def input_tokens(services: Services, request: HttpRequest) -> Response:
    """POST /v1/chat/completions/input_tokens: the prompt tokens of a chat, which may be more than the context holds."""
    ask = await services.read(request, openai_chat.read)
    facts = services.serving(ask.model).facts
    ids = await services.prepare(lambda: encode_rendered(render(ask.chat, facts), facts))
    return json_response({"input_tokens": len(ids)}, headers=ignored_headers(services, ask.ignored))


async def tokenizer_info(services: Services, request: HttpRequest) -> Response:
    """GET /tokenizer_info, under the names of Hugging Face's tokenizer_config.json; what is not there is left out."""
    loaded = services.serving(None)
    tokenizer, template = loaded.tokenizer, loaded.facts.template
    known = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "chat_template": None if template is None else template.source,
    }
    added = {
        str(token): {
            "content": entry.content,
            "special": entry.special,
            "lstrip": entry.lstrip,
            "rstrip": entry.rstrip,
            "normalized": entry.normalized,
            "single_word": entry.single_word,
        }
        for token, entry in sorted(tokenizer.added_tokens().items())
    }
    answer: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # the class that wraps any tokenizer
        "model_max_length": loaded.facts.context,
        "vocab_size": tokenizer.vocab_size,
    }
    answer |= {name: value for name, value in known.items() if value is not None}
    return json_response(answer | {"added_tokens_decoder": added})
