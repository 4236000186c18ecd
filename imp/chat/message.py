"""What a client asked, in our words, whatever the dialect. Frozen values; None means the client did not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Refused(Exception):
    """A request this model cannot serve, found after parsing. The client's mistake (400) unless `status` says else."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


@dataclass(frozen=True, slots=True)
class Options:
    """The generation fields every dialect shares (SURFACE.md section 3)."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs: int | None = None  # alternatives per generated token
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprob_token_ids: tuple[int, ...] = ()
    truncate_prompt: int | None = None  # tokens kept of a longer prompt; below 1: as many as are accepted
    truncate_left: bool = True
    uses_cache: bool = True
    speculates: bool | None = None  # whether the output may be guessed at
    prediction: str | None = None  # what it may be
    keeps_prompt: bool = False  # in the cache for later requests; a chat says more exactly what


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `content` is text, or None for an assistant turn that only calls tools."""

    role: str
    content: str | None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[
        Mapping[str, Any], ...
    ] = ()  # {"id", "type": "function", "function": {"name", "arguments": object}}
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Calling:
    """What a request says of calling its tools."""

    names: tuple[str, ...] | None = None  # only these may be called; None: all
    required: bool = False  # the answer must be a call
    named: bool = False  # of the one function in `names`, once
    parallel: bool = True  # several calls may come
    legacy: bool = False  # asked for in the words of `functions`
    paths: tuple[str, ...] = ()  # of the tools' schemas in the request, for errors


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a conversation is to be kept in the cache for later ones that begin like it."""

    messages: tuple[Message, ...]  # its beginning; the last one may be the beginning of a message
    tools: int | None = None  # of them; None: all


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    options: Options = Options()
    tools: tuple[Mapping[str, Any], ...] = ()  # functions in OpenAI's shape; none where none may be called
    calling: Calling = Calling()
    documents: tuple[Mapping[str, str], ...] = ()  # for templates that cite
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    think_share: float | None = None  # of max_tokens, that thinking may take
    think_tokens: int | None = None  # that thinking may take; wins
    shows_thinking: bool = True  # False: it is left out of the answer
    thinking: bool | None = None  # asked for, or not wanted
    reasoning_effort: str | None = None  # how much: a word the template may know
    structured: bool = False  # the answer must have a form
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Raw continuations: each prompt is text, or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    options: Options = Options()
    add_special_tokens: bool = True
    suffix: str | None = None  # what follows the text to be written
