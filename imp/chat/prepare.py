"""From what a client asked to what the engine runs: tokenise, merge defaults, check against the model.

Pure functions of a request and the loaded model's facts; they run in the preparation pool, never on the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ..constrain.errors import ConstraintError
from ..text.spelled import BREAK
from ..types import CompiledGrammar, ConstraintSpec, Headers, Limits, Pool, Reasoning, Request, Sampling
from .guessing import LONGEST, drafting
from .keeping import kept_tokens
from .message import ChatRequest, CompletionRequest, Options, Refused
from .rendering import continued, render, shown
from .salt import salt
from .speech import TEXT_ONLY, Speech, Voice
from .template import ChatTemplate


class TokenizerLike(Protocol):
    """What preparing needs of text.Tokenizer."""

    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def token_text(self, token: int) -> str: ...


class ConstraintCompiler(Protocol):
    """What preparing needs of constrain.Compiler."""

    def cached(self, spec: ConstraintSpec) -> CompiledGrammar | None:
        """What was compiled before, at once; may be asked on any thread."""

    def compile(self, spec: ConstraintSpec, stop: Callable[[], bool], rest: Callable[[float], None]) -> CompiledGrammar:
        """May take seconds. Raises ConstraintError; soon after `stop` turns true, too."""

    def thinking(
        self,
        reasoning: Reasoning,
        budget: int,
        close_tokens: Sequence[int],
        inner: CompiledGrammar | None,
        headers: Headers | None = None,
        open_tokens: int = 0,
    ) -> CompiledGrammar | None:
        """`inner`, or anything, with reasoning that is ended at a budget in tokens."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """What the model's embeddings are: numbers in one, how a text becomes one, and lengths it may be cut to."""

    size: int = 0  # 0: there is no model behind this that could tell numbers
    pool: Pool = Pool.MEAN
    cuts: Container[int] = ()


@dataclass(frozen=True, slots=True)
class Adapted:
    """An adapter that is added to the model: where the runner keeps it, and a digest of what it is."""

    slot: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What preparing a request needs to know of the loaded model and the server's bounds."""

    tokenizer: TokenizerLike
    template: ChatTemplate | None
    defaults: Sampling  # the model's generation config over the server's defaults
    context: int  # tokens, prompt and output together
    control_spellings: tuple[str, ...]  # texts of the vocabulary's control tokens
    dry_breakers: Callable[[], frozenset[int]]  # tokens no repetition is followed across; found when first asked for
    max_tokens: int = 8192
    max_input_tokens: int = 0  # 0: what the context holds
    max_n: int = 8
    max_logit_bias: int = 1024
    vectors: Vectors = Vectors()
    fill: tuple[int, int, int] | None = None  # the tokens before prefix, suffix and middle; None: no filling in
    shares_prompts: bool = True  # False: no request reuses what another computed
    constraints: ConstraintCompiler | None = None  # None: output cannot be constrained
    enforces_all: bool = False  # calls that the model may choose, too, where no tool is strict
    voice: Voice = TEXT_ONLY
    visible_ids: frozenset[int] = frozenset()  # control tokens of the voice's markers
    think_share: float = 0.5  # of max_tokens, that thinking may take where a request does not say
    answer_reserve: int = 256  # tokens that are enough for an answer: thinking may take all others
    trace_prompt: Callable[[str], None] | None = None  # is shown every rendered chat prompt
    adapter: Adapted | None = None  # what is prepared is for the model with it
    no_guesses: str = ""  # why outputs are not guessed at; empty: they are
    no_predictions: str = ""  # why what clients expect of an output is no help; empty: it is


def default_sampling(generation: Mapping[str, Any]) -> Sampling:
    """Server defaults (SURFACE.md section 3) under the model's own generation config."""
    base = Sampling(temperature=0.7, top_p=0.95, top_k=40)
    own = {key: value for key, value in generation.items() if key in _SAMPLING_DEFAULTS and value is not None}
    return replace(base, **{key: _SAMPLING_DEFAULTS[key](value) for key, value in own.items()})


_SAMPLING_DEFAULTS: dict[str, Any] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
}


def prepare_chat(chat: ChatRequest, facts: ModelFacts, id: str, arrived: float) -> Request:
    """The engine's request for one chat turn. Raises Refused."""
    rendered = render(chat, facts)
    if facts.trace_prompt is not None:
        facts.trace_prompt(shown(rendered))
    prompt = encode_rendered(rendered, facts)
    request = _request(id, prompt, chat.options, facts, arrived)
    voice, begun = facts.voice, continued(rendered, chat)
    limits = replace(
        request.limits,
        reasoning=voice.reasoning(rendered, begun),
        headers=voice.headers,
        frame=voice.framed(rendered, begun),
        visible_ids=facts.visible_ids,
    )
    pin = request.pin
    if chat.kept is not None and _shares(chat.options, facts) and len(request.prompt) == len(prompt):
        pin = kept_tokens(chat, rendered, prompt, lambda part: render(part, facts), lambda t: encode_rendered(t, facts))
    return replace(request, limits=limits, pin=pin)


def speech(chat: ChatRequest, request: Request, facts: ModelFacts) -> Speech:
    """How the answers to a prepared chat turn are read."""
    calling = chat.calling
    heard = facts.voice.speech(chat.tools, request.limits, not calling.parallel or calling.named, calling.named)
    thinks = request.limits.reasoning is not None
    return replace(heard, silent=not chat.shows_thinking, budget=budget_of(chat, request, facts) if thinks else None)


def budget_of(chat: ChatRequest, request: Request, facts: ModelFacts) -> int:
    """Tokens that the request may think, markers included, so that there is room for an answer."""
    most = request.limits.max_tokens
    if chat.think_tokens is not None:
        return min(chat.think_tokens, most)
    share = facts.think_share if chat.think_share is None else chat.think_share
    return max(int(most * share), most - max(facts.answer_reserve, most // 4))


def prepare_completion(completion: CompletionRequest, facts: ModelFacts, id: str, arrived: float) -> list[Request]:
    """One engine request per prompt, ids `id-0`, `id-1`, ... Raises Refused."""
    requests = []
    for i, prompt in enumerate(completion.prompts):
        tokens = _completion_tokens(prompt, completion, facts)
        requests.append(_request(f"{id}-{i}", tokens, completion.options, facts, arrived))
    return requests


def _completion_tokens(prompt: str | Sequence[int], completion: CompletionRequest, facts: ModelFacts) -> list[int]:
    if completion.suffix is None:
        return encode_prompt(prompt, facts, completion.add_special_tokens)
    if facts.fill is None:
        raise Refused('"suffix": this model has no tokens for filling in the middle', "suffix", "unsupported_parameter")
    before, after, middle = facts.fill
    begin = facts.tokenizer.encode("", add_special=True) if completion.add_special_tokens else []
    prefix, suffix = (encode_prompt(text, facts, add_special=False) for text in (prompt, completion.suffix))
    return [*begin, before, *prefix, after, *suffix, middle]


def compile_constraint(
    spec: ConstraintSpec, facts: ModelFacts, stop: Callable[[], bool], rest: Callable[[float], None]
) -> CompiledGrammar:
    """The grammar of a constraint. Raises Refused naming the field and the place in it."""
    if facts.constraints is None:
        message = f'"{spec.param}": constrained output is not available with this model'
        raise Refused(message, spec.param, "unsupported_constraint")
    try:
        return facts.constraints.compile(spec, stop, rest)
    except ConstraintError as error:
        param = error.param or spec.param
        raise Refused(f'"{param}": {error.message}', param, error.code.value) from None


def encode_rendered(rendered: str, facts: ModelFacts) -> list[int]:
    """Token ids of a rendered prompt: the template's control tokens are control tokens, the marked ones stay text."""
    _check_bytes(rendered, facts)
    first, *rest = rendered.split(BREAK)
    ids = facts.tokenizer.encode(first, add_special=True, parse_special=True)
    for piece in rest:
        ids += facts.tokenizer.encode(piece, add_special=False, parse_special=True)
    return ids


def encode_prompt(prompt: str | Sequence[int], facts: ModelFacts, add_special: bool) -> list[int]:
    """Token ids of a raw prompt; control tokens written in text stay text."""
    if isinstance(prompt, str):
        _check_bytes(prompt, facts)
        return facts.tokenizer.encode(prompt, add_special=add_special)
    for token in prompt:
        if not 0 <= token < facts.tokenizer.vocab_size:
            raise Refused(f"token {token} is outside the vocabulary (0 to {facts.tokenizer.vocab_size - 1})", "prompt")
    return list(prompt)


def longest_prompt(facts: ModelFacts) -> int:
    """Prompt tokens at most; one position is left for the answer."""
    return min(facts.max_input_tokens or facts.context - 1, facts.context - 1)


def _check_bytes(text: str, facts: ModelFacts) -> None:
    """Refuse, before tokenising, what cannot fit."""
    limit = longest_prompt(facts) * LONGEST
    if len(text) > limit:
        raise Refused(
            f"the prompt has {len(text)} characters; {longest_prompt(facts)} tokens cannot hold them",
            code="context_length_exceeded",
        )


def _request(id: str, prompt: list[int], options: Options, facts: ModelFacts, arrived: float) -> Request:
    if not prompt:
        raise Refused("the prompt is empty", "prompt")
    prompt = _truncated(prompt, options, facts)
    if len(prompt) > longest_prompt(facts):
        raise Refused(
            f"the prompt has {len(prompt)} tokens; this server accepts at most {longest_prompt(facts)} "
            f"(context {facts.context})",
            code="context_length_exceeded",
        )
    n = 1 if options.n is None else options.n
    if n > facts.max_n:
        raise Refused(f'"n" must be at most {facts.max_n}, not {n}', "n")
    return Request(
        id=id,
        prompt=tuple(prompt),
        sampling=_sampling(options, facts),
        limits=_limits(options, facts, len(prompt)),
        n=n,
        priority=options.priority or 0,
        adapter=slot(facts),
        salt=prompt_salt(options.cache_salt, facts, options.uses_cache),
        shares=_shares(options, facts),
        pin=len(prompt) if options.keeps_prompt and _shares(options, facts) else 0,
        arrived=arrived,
        drafting=drafting(options, facts, _shares(options, facts)),
    )


def _truncated(prompt: list[int], options: Options, facts: ModelFacts) -> list[int]:
    if options.truncate_prompt is None:
        return prompt
    kept = options.truncate_prompt if options.truncate_prompt > 0 else longest_prompt(facts)
    return prompt[-kept:] if options.truncate_left else prompt[:kept]


def _shares(options: Options, facts: ModelFacts) -> bool:
    return facts.shares_prompts and options.uses_cache


def prompt_salt(wanted: str | None, facts: ModelFacts, shares: bool = True) -> bytes:
    """Requests of different salts never share blocks; the sequences of one request always do."""
    if not (facts.shares_prompts and shares):
        return secrets.token_bytes(16)
    return salt(wanted, None if facts.adapter is None else facts.adapter.digest)


def slot(facts: ModelFacts) -> int | None:
    """Request.adapter"""
    return None if facts.adapter is None else facts.adapter.slot


_SHARED = {f.name for f in fields(Sampling)} & {f.name for f in fields(Options)} - {"seed"}


def _sampling(options: Options, facts: ModelFacts) -> Sampling:
    vocab = facts.tokenizer.vocab_size
    if len(options.logit_bias) > facts.max_logit_bias:
        raise Refused(f'"logit_bias" must have at most {facts.max_logit_bias} entries', "logit_bias")
    for token, _ in options.logit_bias:
        if not 0 <= token < vocab:
            raise Refused(f'"logit_bias" names token {token}; the vocabulary is 0 to {vocab - 1}', "logit_bias")
    for name, tokens in (
        ("allowed_token_ids", options.allowed_token_ids),
        ("logprob_token_ids", options.logprob_token_ids),
    ):
        for token in tokens or ():
            if token >= vocab:
                raise Refused(f'"{name}" names token {token}; the vocabulary is 0 to {vocab - 1}', name)
    given = {name: getattr(options, name) for name in _SHARED if getattr(options, name) is not None}
    seed = secrets.randbits(63) if options.seed is None else options.seed
    breakers = facts.dry_breakers() if options.dry_multiplier else frozenset()
    return replace(
        facts.defaults,
        **given,
        seed=seed,
        bias=options.logit_bias,
        dry_breakers=breakers,
        banned=_spelled(options.bad_words, facts),
        allowed=options.allowed_token_ids,
        logprob_tokens=options.logprob_token_ids,
    )


def _spelled(words: Sequence[str], facts: ModelFacts) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokenizer spells it, at the start of a text and after a space."""
    texts = [space + word for word in words for space in ("", " ")]
    return tuple(dict.fromkeys(tuple(facts.tokenizer.encode(text, add_special=False)) for text in texts))


def _limits(options: Options, facts: ModelFacts, prompt: int) -> Limits:
    room = facts.context - prompt
    eos = frozenset() if options.ignore_eos else facts.tokenizer.eos_ids
    return Limits(
        max_tokens=min(facts.max_tokens if options.max_tokens is None else options.max_tokens, room),
        min_tokens=options.min_tokens or 0,
        stop_ids=eos | frozenset(options.stop_token_ids),
        stop_strings=tuple(stop for stop in options.stop if stop),
        include_stop=bool(options.include_stop),
        skip_special=options.skip_special_tokens is not False,
    )
