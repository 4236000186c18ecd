"""POST /v1/completions: OpenAI's legacy dialect (WIRE.md section 3): raw prompts, echo, the old logprobs shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from imp.chat.message import CompletionRequest
from imp.http import sse
from imp.http.dialects.constraints import CONSTRAINTS, RESPONSE_FORMAT, constraint
from imp.http.dialects.extensions import EXTENSIONS, NO_MESSAGES, Extras, extended, extras, longest
from imp.http.dialects.generation import (
    LIMITS,
    NO_OPS,
    SAMPLING,
    STREAMING,
    check_stream_options,
    options,
    prompts,
)
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import (
    Choice,
    Conversation,
    Named,
    Pieces,
    TokenTexts,
    clamp,
    prompt_logprobs_json,
    token_string,
    usage_json,
)
from imp.http.errors import ApiError, Envelope, bad_request, envelope
from imp.http.fields import Field, Kind, parse, wrong
from imp.types import ConstraintSpec, Delta, Event, Finished, PromptLogprobs, Started, TokenLogprob

DEFAULT_MAX_TOKENS = 16

FIELDS = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("prompt", (Kind.STRING, Kind.ARRAY), required=True, doc="Text, token ids, or an array of either."),
    *SAMPLING,
    *(replace(each, low=0, doc="0 only with echo.") if each.name == "max_tokens" else each for each in LIMITS),
    Field("best_of", Kind.INTEGER, 1, doc="Sequences to choose the n likeliest of; not with stream."),
    Field("echo", Kind.BOOLEAN, default=False, doc="Begin the text with the prompt."),
    Field("logprobs", Kind.INTEGER, 0, 20, doc="Alternatives per token."),
    Field("prompt_logprobs", Kind.INTEGER, 0, 20, doc="The same for the prompt; not with stream."),
    Field("add_special_tokens", Kind.BOOLEAN, default=True, doc="Begin with the model's begin-of-text token."),
    *STREAMING,
    Field("suffix", Kind.STRING, doc="Text behind the one to be written, for models that fill in; not with echo."),
    RESPONSE_FORMAT,
    *CONSTRAINTS,
    NO_MESSAGES,
    *EXTENSIONS,
    *NO_OPS,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    completion: CompletionRequest
    constraint: ConstraintSpec | None
    model: str | None
    lora: str | None
    n: int
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    timings: bool
    ignored: tuple[str, ...]
    extras: Extras


def read(body: Mapping[str, Any], max_items: int) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, FIELDS)
    include_usage, continuous = check_stream_options(parsed)
    n, best_of = parsed["n"] or 1, parsed["best_of"]
    if parsed["prompt_logprobs"] is not None and parsed["stream"]:
        raise bad_request("prompt_logprobs", '"prompt_logprobs" cannot be streamed.')
    if parsed["max_tokens"] == 0 and not parsed["echo"]:
        raise wrong("max_tokens", 'an integer of at least 1 (0 only with "echo")', 0)
    if best_of is not None and best_of < n:
        raise bad_request("best_of", f'"best_of" must be at least "n" ({n}), not {best_of}.')
    if best_of is not None and best_of > n and parsed["stream"]:
        raise bad_request("best_of", '"best_of" above "n" cannot be streamed.')
    if parsed["suffix"] is not None and parsed["echo"]:
        raise bad_request("suffix", '"suffix" and "echo" exclude each other.')
    silent = parsed["max_tokens"] is None and parsed["n_predict"] is None
    chosen = options(
        parsed,
        max_tokens=DEFAULT_MAX_TOKENS if silent else longest(parsed, "max_tokens"),
        logprobs=parsed["logprobs"],
        prompt_logprobs=_prompt_logprobs(parsed["prompt_logprobs"], parsed["logprobs"], parsed["echo"]),
        more=extended(parsed, parsed["logprobs"]),
    )
    if best_of is not None and best_of > n:
        chosen = replace(chosen, n=best_of, logprobs=parsed["logprobs"] or 0)
    given = prompts(parsed["prompt"], "prompt", max_items)
    completion = CompletionRequest(given, chosen, parsed["add_special_tokens"], parsed["suffix"])
    return Ask(
        completion,
        constraint(parsed),
        parsed["model"],
        parsed["lora"],
        n,
        parsed["echo"],
        parsed["logprobs"],
        parsed["stream"],
        include_usage,
        continuous,
        parsed["timings"],
        parsed.ignored,
        extras(parsed),
    )


def _prompt_logprobs(asked: int | None, logprobs: int | None, echo: bool) -> int | None:
    """Echoed prompts report the same alternatives as the output does."""
    return max(asked or 0, logprobs) if echo and logprobs is not None else asked


class Writer:
    """Engine events as text_completion objects: one per chunk, or one for the whole."""

    def __init__(
        self,
        ask: Ask,
        header: Header,
        conversation: Conversation,
        pieces: Pieces,
        prompt_texts: list[str],
        prompt_tokens: list[tuple[int, ...]],
    ):
        """prompt_texts, prompt_tokens: of each prompt, in order."""
        self.ask, self.header, self.conversation = ask, header, conversation
        self.pieces = ask.extras.named(pieces)
        self.told = {choice.index: 0 for choice in conversation.choices}  # tokens of the output sent so far
        self.prompt_texts, self.prompt_tokens = prompt_texts, prompt_tokens
        self.each = len(conversation.choices) // len(prompt_texts)
        self.streams = {choice.index: _Logprobs(self.pieces, ask.logprobs) for choice in conversation.choices}
        self.opened: set[int] = set()

    def end(self) -> bytes:
        """After the last event."""
        if not self.ask.include_usage:
            return sse.DONE
        return sse.frame(self._body([], usage_json(self.conversation.usage(), self.conversation.declined))) + sse.DONE

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent."""
        return sse.frame(envelope(error, Envelope.OPENAI, self.header.id)) + sse.DONE

    def frame(self, event: Event) -> bytes:
        choice = self.conversation.take(event)
        if isinstance(event, Started):
            wanted = self.ask.echo and self.ask.logprobs is None
            return self._send(choice, self._prompt_text(choice), None) if wanted else b""
        if isinstance(event, PromptLogprobs):
            return (
                self._send(choice, self._prompt_text(choice), self._prompt_part(choice, self.streams[choice.index]))
                if self.ask.echo
                else b""
            )
        if isinstance(event, Delta):
            logprobs = self.streams[choice.index]
            logprobs.add(event.logprobs)
            if not event.text:
                return b""
            return self._send(choice, event.text, logprobs.take() if self.ask.logprobs is not None else None)
        if isinstance(event, Finished):
            rest = self.streams[choice.index].take()
            return self._send(choice, "", rest if rest["tokens"] else None)
        return b""

    def _send(self, choice: Choice, text: str, logprobs: dict[str, Any] | None) -> bytes:
        body: dict[str, Any] = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if choice.finished:
            body["finish_reason"] = choice.finish_reason
            body["stop_reason"] = choice.finished.stop
        if self.ask.extras.token_ids:
            body |= self._ids(choice, self.told[choice.index])
            self.told[choice.index] = len(choice.tokens)
        usage = usage_json(self.conversation.usage(), self.conversation.declined) if self.ask.continuous_usage else None
        return sse.frame(self._body([body], usage))

    def _body(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        body = {
            "id": self.header.id,
            "object": "text_completion",
            "created": self.header.created,
            "model": self.header.model,
            "system_fingerprint": self.header.fingerprint,
            "choices": choices,
        }
        if not self.ask.stream or self.ask.include_usage or self.ask.continuous_usage:
            body["usage"] = usage
        return body | self.conversation.timings()

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken; with best_of the n likeliest choices of each prompt."""
        kept = []
        for at in range(0, len(self.conversation.choices), self.each):
            group = self.conversation.choices[at : at + self.each]
            if self.each > self.ask.n:
                group = sorted(group, key=_mean_logprob, reverse=True)[: self.ask.n]
            kept += group
        choices = [self._choice(choice, index) for index, choice in enumerate(kept)]
        usage = usage_json(self.conversation.usage(), self.conversation.declined)
        return self._body(choices, usage) | {"usage": usage}

    def _choice(self, choice: Choice, index: int) -> dict[str, Any]:
        logprobs = None
        if self.ask.logprobs is not None:
            entries = _Logprobs(self.pieces, self.ask.logprobs)  # a stream's own have gone on
            before = self._prompt_part(choice, entries) if self.ask.echo else None
            entries.add(choice.logprobs)
            logprobs = entries.take()
            if before:
                logprobs = {key: before[key] + logprobs[key] for key in before}
        shown = choice.prompt_logprobs
        told = self._ids(choice, 0) if self.ask.extras.token_ids else {}
        return told | {
            "index": index,
            "text": (self._prompt_text(choice) if self.ask.echo else "") + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.finished.stop if choice.finished else None,
            "prompt_logprobs": None if shown is None else prompt_logprobs_json(shown, self.pieces),
        }

    def _ids(self, choice: Choice, start: int) -> dict[str, Any]:
        """Tokens of the output from `start` on; with its first ones those of the prompt."""
        prompt = {} if start else {"prompt_token_ids": list(self.prompt_tokens[choice.index // self.each])}
        return prompt | {"token_ids": choice.tokens[start:]}

    def _prompt_text(self, choice: Choice) -> str:
        return self.prompt_texts[choice.index // self.each]

    def _prompt_part(self, choice: Choice, entries: _Logprobs) -> dict[str, Any]:
        tokens = self.prompt_tokens[choice.index // self.each]
        for token, entry in zip(tokens, choice.prompt_logprobs or (None,) * len(tokens), strict=True):
            entries.add_one(token, entry)
        return entries.take()


def _mean_logprob(choice: Choice) -> float:
    return sum(entry.logprob for entry in choice.logprobs) / max(len(choice.logprobs), 1)


def _empty() -> dict[str, Any]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


class _Logprobs:
    """The completions shape, growing: parallel lists, offsets counted in characters of the returned text."""

    def __init__(self, pieces: Pieces, top: int | None):
        self.pieces, self.top = pieces, top
        self.texts, self.offset = TokenTexts(pieces), 0
        self.lists = _empty()

    def take(self) -> dict[str, Any]:
        """What came since the last call."""
        out, self.lists = self.lists, _empty()
        return out

    def add(self, entries: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> None:
        for entry in entries:
            self.add_one(entry.token, entry)

    def add_one(self, token: int, entry: TokenLogprob | None) -> None:
        text = self.texts.push(token)
        named = isinstance(self.pieces, Named)
        self.lists["tokens"].append(token_string(self.pieces, token) if named else text)
        self.lists["text_offset"].append(self.offset)
        self.lists["token_logprobs"].append(None if entry is None else clamp(entry.logprob))
        self.lists["top_logprobs"].append(None if entry is None else self._top(entry))
        self.offset += len(text)

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = {token_string(self.pieces, token): clamp(logprob) for token, logprob in entry.top[: self.top]}
        for token, logprob in ((entry.token, entry.logprob), *entry.asked):
            top.setdefault(token_string(self.pieces, token), clamp(logprob))
        return top
