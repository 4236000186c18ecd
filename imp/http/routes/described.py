"""What each route of the table takes and gives, for /openapi.json and docs/API.md: one entry a pattern, or a method and
a pattern.

An alias without `/v1` has its original's entry. Tests run every example against a server and hold its answer against
the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imp.http.answers import ANY_OBJECT, STRING, Schema, ref
from imp.http.dialects import anthropic, embeddings, infill, openai_chat, openai_completions, rerank, responses
from imp.http.fields import Field, Kind
from imp.http.router import ALIASED
from imp.http.routes import adapters, tokens


@dataclass(frozen=True, slots=True)
class Described:
    """One route.

    summary: one sentence.  table: the fields of its body.  query: parameters.
    answer: schema of a 200 body, of type `media`.  chunk: what the data of its stream are.
    errors: schemas of errors that do not have the envelope.  example: a body that a test sends.
    path: the values of its path's parameters in the example.
    socket: a WebSocket is opened.  needs_model: 404 for a model name that is not served, 503 without a model.
    """

    summary: str
    table: Sequence[Field] | None = None
    answer: Schema | None = None
    example: Mapping[str, Any] | None = None
    chunk: str | None = None
    media: str = "application/json"
    query: Sequence[Field] = ()
    errors: Mapping[int, Schema] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)
    needs_model: bool = False
    socket: bool = False


_HELLO = [{"role": "user", "content": "Hello!"}]
_RERANK = {"query": "Who wrote it?", "documents": ["Written by Ada.", "It rained."], "top_n": 1}
_NO_MODEL = {409: ref("Error")}
_STORED = {"id": "RESPONSE_ID"}
_EVENTS = (
    Field("stream", Kind.STRING, choices=("true", "false"), nullable=False, doc="Its events, those to come too."),
    Field("starting_after", Kind.INTEGER, 0, 999_999_999, nullable=False, doc="Number of an event; with stream."),
)
_PAGE = (
    Field("limit", Kind.INTEGER, 1, 100, nullable=False, doc="Default: 20."),
    Field("order", Kind.STRING, choices=("asc", "desc"), nullable=False, doc="Default: desc."),
    Field("after", Kind.STRING, nullable=False, doc="The id of the item before the first one wanted."),
)
_RANKED = Described("Documents by their relevance to a query.", rerank.RERANK, ref("Rerank"), _RERANK, needs_model=True)

ROUTES: dict[str, Described] = {
    "/v1/chat/completions": Described(
        "The next message of a chat, in OpenAI's dialect.",
        openai_chat.FIELDS,
        ref("ChatCompletion"),
        {"messages": _HELLO, "max_tokens": 16},
        "ChatCompletionChunk objects, then [DONE]",
        needs_model=True,
    ),
    "/v1/completions": Described(
        "The continuation of raw text or tokens.",
        openai_completions.FIELDS,
        ref("Completion"),
        {"prompt": "Once upon a time", "max_tokens": 16},
        "Completion objects, then [DONE]",
        needs_model=True,
    ),
    "/v1/messages": Described(
        "The next message of a chat, in Anthropic's dialect.",
        anthropic.FIELDS,
        ref("Message"),
        {"messages": _HELLO, "max_tokens": 16},
        "message_start, content_block_start, content_block_delta, content_block_stop, message_delta, message_stop",
        needs_model=True,
    ),
    "/v1/messages/count_tokens": Described(
        "How many tokens the prompt of such a request has.",
        anthropic.FIELDS,
        ref("InputTokens"),
        {"messages": _HELLO},
        needs_model=True,
    ),
    "/v1/embeddings": Described(
        "One vector of length 1 for each input.",
        embeddings.FIELDS,
        ref("Embeddings"),
        {"input": ["A first text.", "A second one."], "encoding_format": "float"},
        needs_model=True,
    ),
    "/v1/rerank": _RANKED,
    "/v2/rerank": _RANKED,
    "/rerank": Described(
        "Documents by their relevance to a query; with texts in TEI's language.",
        rerank.RERANK,
        {"anyOf": [ref("Rerank"), ref("TeiRerank")]},
        {"query": "Who wrote it?", "texts": ["Written by Ada.", "It rained."]},
        needs_model=True,
    ),
    "/v1/score": Described(
        "How relevant each document is to its query.",
        rerank.SCORE,
        ref("Scores"),
        {"text_1": "Who wrote it?", "text_2": ["Written by Ada.", "It rained."]},
        needs_model=True,
    ),
    "POST /v1/responses": Described(
        "The next response of a conversation, in OpenAI's newer dialect.",
        responses.FIELDS,
        ref("Response"),
        {"input": "Hello!", "max_output_tokens": 16},
        "response.created, response.in_progress, ..., response.completed",
        needs_model=True,
    ),
    "GET /v1/responses": Described("The same over a WebSocket, turn by turn.", socket=True, errors={426: ref("Error")}),
    "/v1/responses/input_tokens": Described(
        "How many tokens the prompt of such a request has.",
        responses.FIELDS,
        ref("ResponseInputTokens"),
        {"input": "Hello!"},
        needs_model=True,
    ),
    "/v1/responses/compact": Described(
        "A conversation as one item: the model's own summary of it.",
        responses.COMPACT,
        ANY_OBJECT,
        {"model": "MODEL", "input": "Hello!"},
        needs_model=True,
    ),
    "GET /v1/responses/{id}": Described(
        "A response that was stored.", answer=ref("Response"), path=_STORED, query=_EVENTS, chunk="its events"
    ),
    "DELETE /v1/responses/{id}": Described("Forgets a response.", answer=ref("Deleted"), path=_STORED),
    "/v1/responses/{id}/cancel": Described("Ends a response in the background.", answer=ref("Response"), path=_STORED),
    "/v1/responses/{id}/input_items": Described(
        "What a response was made from.", answer=ref("List"), path=_STORED, query=_PAGE
    ),
    "/v1/models": Described("The loaded model, then the rest of the models dir.", answer=ref("Models")),
    "/v1/models/{id}": Described("One of them.", answer=ref("Model"), path={"id": "MODEL"}),
    "/tokenize": Described(
        "The tokens of a text, or of a chat's prompt.",
        tokens.TOKENIZE,
        ref("Tokens"),
        {"prompt": "Hello!", "return_token_strs": True},
        needs_model=True,
    ),
    "/detokenize": Described(
        "The text of tokens.", tokens.DETOKENIZE, ref("Text"), {"tokens": [72, 105]}, needs_model=True
    ),
    "/apply-template": Described(
        "The prompt a chat would become.",
        tokens.APPLY_TEMPLATE,
        ref("Prompt"),
        {"messages": _HELLO},
        needs_model=True,
    ),
    "/v1/chat/completions/input_tokens": Described(
        "How many tokens the prompt of such a request has.",
        openai_chat.FIELDS,
        ref("InputTokens"),
        {"messages": _HELLO},
        needs_model=True,
    ),
    "/tokenizer_info": Described(
        "The tokenizer's configuration; with --enable-tokenizer-info-endpoint.",
        answer=ref("TokenizerInfo"),
        needs_model=True,
    ),
    "/infill": Described(
        "The middle between a prefix and a suffix, in llama.cpp's shape, for models with tokens for it.",
        infill.FIELDS,
        ref("Infill"),
        {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16},
        "Infill objects; the last one has stop: true",
        needs_model=True,
    ),
    "/slots": Described(
        "The places of a step, in llama.cpp's shape.",
        answer=ref("Slots"),
        query=(Field("fail_on_no_slot", Kind.STRING, nullable=False, doc="1: 503 where every place is taken."),),
        needs_model=True,
    ),
    "/props": Described("What is served, in llama.cpp's shape.", answer=ref("Props"), needs_model=True),
    "/info": Described("What is served, in TGI's shape.", answer=ref("Info"), needs_model=True),
    "/server_info": Described(
        "What is served, in vLLM's shape.",
        answer=ref("ServerInfo"),
        query=(Field("config_format", Kind.STRING, nullable=False, choices=("text", "json"), doc="Default: text."),),
    ),
    "/load": Described("Requests that generate or wait for it.", answer=ref("Load")),
    "/v1/requests/{id}": Described(
        "Ends a request by the id of its response, or by its X-Request-Id.",
        answer=ref("Cancelled"),
        path={"id": "chatcmpl-0123456789abcdef"},
        needs_model=True,
    ),
    "/v1/requests/{id}/end_thinking": Described(
        "Ends the reasoning of a request that runs: its answer begins.",
        answer=ref("EndedThinking"),
        path={"id": "chatcmpl-0123456789abcdef"},
        needs_model=True,
    ),
    "/admin/suspend": Described(
        "Gives the model's memory back once nothing runs.", answer=ref("Suspended"), errors=_NO_MODEL
    ),
    "/admin/resume": Described("Loads the suspended model again.", answer=ref("Resumed"), errors=_NO_MODEL),
    "/admin/lora/load": Described(
        "Loads an adapter of the model; requests name it in model, or in lora.",
        adapters.LOAD,
        ref("AdapterLoaded"),
        {"name": "poet", "path": "adapters/poet"},
        errors=_NO_MODEL | {507: ref("Error")},
        needs_model=True,
    ),
    "/admin/lora/unload": Described(
        "Gives an adapter up once no request has it any more.",
        adapters.UNLOAD,
        ref("AdapterUnloaded"),
        {"name": "poet"},
        errors=_NO_MODEL,
        needs_model=True,
    ),
    "/reset_prefix_cache": Described("Forgets every cached prompt.", answer=ref("Success"), needs_model=True),
    "/abort_requests": Described(
        "Ends requests by their ids, or all; with --enable-server-dev-mode.",
        (Field("request_ids", Kind.ARRAY, items=Field("", Kind.STRING), doc="Absent or empty: everybody."),),
        ref("Aborted"),
        {"request_ids": []},
        errors={400: ref("Detail")},
        needs_model=True,
    ),
    "/health": Described("200 as long as the server lives.", answer=ref("Health"), errors={503: ref("Health")}),
    "/ready": Described("200 when requests can be served.", answer=ref("Ready"), errors={503: ref("Error")}),
    "/ping": Described("An empty 200."),
    "/version": Described("The server's version.", answer=ref("Version")),
    "/metrics": Described("Counters for Prometheus.", answer=STRING, media="text/plain"),
    "/": Described("The chat page.", answer=STRING, media="text/html"),
    "/openapi.json": Described("This description.", answer=ANY_OBJECT),
    "/script/log": Described("What was asked of a script, as seen by it; with --script.", answer=ref("List")),
}


def described(method: str, pattern: str) -> Described:
    """The entry of a route, or of the one it is an alias of. KeyError where nobody describes it."""
    names = [pattern] if pattern.split("/")[1] not in ALIASED else [pattern, "/v1" + pattern]
    for name in names:
        for key in (f"{method} {name}", name):
            if key in ROUTES:
                return ROUTES[key]
    raise KeyError(f"{method} {pattern}")


def is_alias(pattern: str) -> bool:
    """The route has its entry under another name."""
    return not any(key.rpartition(" ")[2] == pattern for key in ROUTES)
