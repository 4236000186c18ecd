"""What clients of vLLM and llama.cpp send beside OpenAI's fields: enforced, refused, or without effect for a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imp.http.dialects.drafting import DRAFTING, drafting
from imp.http.dialects.shared import Pieces
from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, Parsed, Status

_TOKENS = Field("", Kind.INTEGER, 0)

LORA = Field(
    "lora", Kind.STRING, min_items=1, doc="The adapter to use, by its name, which may stand in model as well."
)
ENFORCED = (
    Field(
        "bad_words",
        Kind.ARRAY,
        max_items=1024,
        items=Field("", Kind.STRING, min_items=1, max_items=1000),
        doc=("Never written, as the tokenizer spells them alone or after a space."),
    ),
    Field(
        "allowed_token_ids",
        Kind.ARRAY,
        min_items=1,
        items=_TOKENS,
        doc=("The only tokens the output may have; without an end of text among them it ends by length."),
    ),
    Field(
        "logprob_token_ids",
        Kind.ARRAY,
        min_items=1,
        max_items=128,
        items=_TOKENS,
        doc=("Tokens reported with every output token, however unlikely; needs logprobs."),
    ),
    Field("return_token_ids", Kind.BOOLEAN, default=False, doc="Add the prompt's and the output's token ids."),
    Field("return_tokens_as_token_ids", Kind.BOOLEAN, default=False, doc='Tokens of logprobs as "token_id:N".'),
    Field(
        "truncate_prompt_tokens",
        Kind.INTEGER,
        -1,
        doc=("Keep so many tokens of a longer prompt; 0 or -1: as many as are accepted. Absent: it is refused."),
    ),
    Field("truncation_side", Kind.STRING, choices=("left", "right"), default="left", doc="Where such a prompt is cut."),
    Field("repeat_penalty", Kind.NUMBER, above=0, doc="llama.cpp's name of repetition_penalty, which wins."),
    Field("n_predict", Kind.INTEGER, -1, doc="llama.cpp's name of max_tokens, which wins; -1: what the context holds."),
    LORA,
    Field(
        "cache_prompt",
        Kind.BOOLEAN,
        doc="true: kept in the cache longer than others; false: nothing cached is used, and nothing kept.",
    ),
)

_WITHOUT_EFFECT = {
    "dry_sequence_breakers": "The breakers are line breaks, colons, quotes and stars.",
    "id_slot": "Any free place is as good.",
    "logits_processor_args": "There are no such processors.",
    "n_discard": "Nothing is dropped from a context.",
    "n_keep": "Nothing is dropped from a context, so all of it is kept.",
    "request_id": "A request is named by its X-Request-Id header.",
    "response_fields": "The whole answer is sent.",
    "return_progress": "No progress of the prompt is reported.",
    "spaces_between_special_tokens": "Texts are the bytes of their tokens.",
    "stream_interval": "Text is sent as it comes.",
    "timings_per_token": "`timings` tells the times.",
    "verbose": "Nothing more is told.",
}
_REFUSED = {
    "kv_transfer_params": "there is no other server to take a cache from.",
    "length_penalty": "there is no beam search.",
    "n_probs": "use the logprobs of the dialect.",
    "post_sampling_probs": "log-probabilities are the model's own.",
    "prompt_embeds": "prompts are text or tokens.",
    "repetition_detection": "use the penalties or DRY.",
    "samplers": "the order of the samplers is fixed.",
    "vllm_xargs": "there are no such extensions.",
    "web_search_options": "this server does not search.",
}
EXTENSIONS = (
    *ENFORCED,
    *DRAFTING,
    Field("use_beam_search", Kind.BOOLEAN, choices=(False,), doc="There is no beam search."),
    Field(
        "context_shift",
        Kind.BOOLEAN,
        choices=(False,),
        doc="Nothing is dropped from a context: an output ends where that does.",
    ),
    *(
        Field(name, status=Status.NO_OP, doc=f"Has no effect: {why[0].lower()}{why[1:]}")
        for name, why in _WITHOUT_EFFECT.items()
    ),
    *(Field(name, status=Status.REFUSED, doc=why) for name, why in _REFUSED.items()),
)
NO_MESSAGES = Field(
    "cache_prefix_messages", status=Status.REFUSED, doc="there are no messages; cache_prompt keeps the whole prompt."
)


@dataclass(frozen=True, slots=True)
class Extras:
    """What of the extensions shapes the answer."""

    token_ids: bool = False  # the prompt's and the output's
    ids_as_tokens: bool = False

    def named(self, pieces: Pieces) -> Pieces:
        """The vocabulary under the names this request wants."""
        return ById(pieces) if self.ids_as_tokens else pieces


class ById:
    """A vocabulary whose tokens are called by their ids; their bytes stay theirs."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces.token_bytes(token)

    def token_name(self, token: int) -> str:
        return f"token_id:{token}"


def extras(parsed: Parsed) -> Extras:
    return Extras(parsed["return_token_ids"], parsed["return_tokens_as_token_ids"])


def extended(parsed: Parsed, logprobs: int | None) -> dict[str, Any]:
    """The extensions' part of Options. ApiError for what the table cannot say."""
    if parsed["logprob_token_ids"] is not None and logprobs is None:
        raise bad_request("logprob_token_ids", '"logprob_token_ids" needs "logprobs".')
    given: dict[str, Any] = {
        "bad_words": tuple(parsed["bad_words"] or ()),
        "allowed_token_ids": None if parsed["allowed_token_ids"] is None else tuple(parsed["allowed_token_ids"]),
        "logprob_token_ids": tuple(parsed["logprob_token_ids"] or ()),
        "truncate_prompt": parsed["truncate_prompt_tokens"],
        "truncate_left": parsed["truncation_side"] == "left",
        "uses_cache": parsed["cache_prompt"] is not False,
        "keeps_prompt": parsed["cache_prompt"] is True,
    } | drafting(parsed)
    if parsed["repetition_penalty"] is None:
        given["repetition_penalty"] = parsed["repeat_penalty"]
    return given


def longest(parsed: Parsed, *names: str) -> int | None:
    """The first given of these limits, then llama.cpp's; None where it leaves it open."""
    limits = [parsed[name] for name in names if parsed[name] is not None]
    if limits or parsed["n_predict"] is None:
        return limits[0] if limits else None
    return parsed["n_predict"] if parsed["n_predict"] >= 0 else None
