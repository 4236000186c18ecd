"""What OpenAI's generating dialects share on the way out: choices, usage, finish reasons, token texts."""

from __future__ import annotations

import codecs
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from imp.chat.arguments import problem
from imp.chat.formats.base import Tool
from imp.chat.guessing import Declined
from imp.chat.parts import Channel, Closed, Grown, Opened
from imp.chat.parts import Event as PartEvent
from imp.chat.speech import PLAIN, Listener, Speech
from imp.http.errors import ApiError
from imp.types import Delta, Event, Failed, Finished, PromptLogprobs, Reason, Started, TokenLogprob, Usage

log = logging.getLogger(__name__)

ABORTED = "request_aborted"  # code of what a client sees whose request was cancelled by its id
RETRY_AFTER_S = "2"
EXHAUSTED = "reasoning_budget_exhausted"
UNCLOSED = "reasoning_not_closed"  # the model ended its turn inside the reasoning
FLOOR = -9999.0  # a log-probability JSON can carry where it is minus infinity


class Pieces(Protocol):
    """The bytes of a token, as the tokenizer knows them."""

    def token_bytes(self, token: int) -> bytes: ...


@runtime_checkable
class Named(Pieces, Protocol):
    """Pieces whose tokens are called by something else than their text."""

    def token_name(self, token: int) -> str: ...


@dataclass(slots=True)
class Part:
    """Reasoning, text or a call, as far as it has come."""

    channel: Channel
    name: str = ""  # of the function, for a call
    id: str = ""
    pieces: list[str] = field(default_factory=list)
    unfinished: str = ""  # a call that the end of the output cut off, as the model wrote it

    @property
    def text(self) -> str:
        """For a call: its arguments, a JSON object."""
        return "".join(self.pieces)


@dataclass(slots=True)
class Choice:
    """What one sequence has said so far."""

    index: int
    listener: Listener | None = None  # None: all is text
    named: bool = False  # the one function to call was named
    think_budget: int | None = None  # tokens; None: there is no thinking
    tools: Mapping[str, Tool] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    news: list[PartEvent] = field(default_factory=list)  # what the latest event added to the parts
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    started: bool = False
    prompt_tokens: int = 0
    cached: int = 0
    finished: Finished | None = None

    @property
    def text(self) -> str:
        """The answer without reasoning and calls; with what is left of a call that was cut off."""
        return "".join(p.text if p.channel is Channel.TEXT else p.unfinished for p in self.parts)

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if part.channel is Channel.REASONING)

    @property
    def calls(self) -> list[Part]:
        """The complete calls."""
        return [part for part in self.parts if part.channel is Channel.TOOL and not part.unfinished]

    def problem(self, call: Part) -> str | None:
        """What breaks the tool's schema in the arguments of a complete call."""
        tool = self.tools.get(call.name)
        if tool is None:
            return f'there is no function "{call.name}"'
        return problem(call.text, tool.parameters)

    @property
    def calls_problem(self) -> str | None:
        """What is wrong with the first call that something is wrong with."""
        problems = ((call, self.problem(call)) for call in self.calls)
        return next((f"{call.name}: {wrong}" for call, wrong in problems if wrong), None)

    @property
    def validation(self) -> dict[str, str]:
        """Says that a call breaks its tool's schema, where one does."""
        return {"tool_call_validation_error": self.calls_problem} if self.calls_problem else {}

    def invalid(self, call: Part) -> dict[str, str]:
        """Beside a call: what breaks the tool's schema in its arguments, where something does."""
        wrong = None if call.unfinished else self.problem(call)
        return {"invalid_arguments": wrong} if wrong else {}

    @property
    def finish_reason(self) -> str | None:
        if self.finished is None or self.finished.vector is not None:
            return None
        if self.finished.reason is Reason.LENGTH:
            return "length"
        return "tool_calls" if self.calls and not self.named else "stop"

    @property
    def finish_detail(self) -> str | None:
        """Why the answer is shorter than it might be, or did not begin."""
        if self.finished is None or self.think_budget is None:
            return None
        if self.finished.thinks:
            return EXHAUSTED if self.finished.reason is Reason.LENGTH else UNCLOSED
        usage = self.finished.usage
        exhausted = usage.reasoning >= self.think_budget or usage.reasoning == usage.generated
        return EXHAUSTED if usage.reasoning and exhausted else None

    @property
    def all_reasoning(self) -> bool:
        """No token was the answer's; one that ends the turn belongs to neither."""
        if self.finished is None:
            return False
        usage = self.finished.usage
        return usage.reasoning + (self.finished.reason is Reason.STOP) >= usage.generated

    @property
    def detail(self) -> dict[str, str]:
        """More of why it ended, where there is more to say."""
        return {"imp_finish_detail": self.finish_detail} if self.finish_detail else {}

    def take(self, event: Event) -> None:
        self.news = []
        if isinstance(event, Delta):
            self.tokens += event.tokens
            self.logprobs += event.logprobs
            self._hear(self.listener.push(event.text) if self.listener else self._plain(event.text))
        elif isinstance(event, Started):
            self.started, self.prompt_tokens, self.cached = True, event.prompt_tokens, event.cached
        elif isinstance(event, PromptLogprobs):
            self.prompt_logprobs = event.logprobs
        elif isinstance(event, Finished):
            self.finished = event
            self._hear(self.listener.close() if self.listener else self._end_of_plain())

    def _plain(self, text: str) -> list[PartEvent]:
        if not text:
            return []
        grown = Grown(0, text)
        return [grown] if self.parts else [Opened(0, Channel.TEXT), grown]

    def _end_of_plain(self) -> list[PartEvent]:
        return [Closed(0)] if self.parts else []

    def _hear(self, news: list[PartEvent]) -> None:
        self.news = news
        for event in news:
            if isinstance(event, Grown):
                self.parts[event.index].pieces.append(event.text)
            elif isinstance(event, Opened):
                self.parts.append(Part(event.channel, event.name, event.id))
            else:
                self.parts[event.index].unfinished = event.unfinished

    def replay(self) -> Iterator[PartEvent]:
        """The parts as if each had come in one piece."""
        for index, part in enumerate(self.parts):
            yield Opened(index, part.channel, part.name, part.id)
            if part.pieces:
                yield Grown(index, part.text)
            yield Closed(index, part.unfinished)


class Conversation:
    """All choices of one HTTP request: engine events are folded in, dialects read out. One fold for both ways."""

    def __init__(
        self,
        requests: Sequence[tuple[str, int]],
        timings: Callable[[], dict[str, Any]] | None = None,
        speech: Speech = PLAIN,
        call_prefix: str = "call_",
    ):
        """requests: (engine request id, n), in the order of the prompts.  timings: where the time went, where that was
        asked for.  speech: how the answers are read.  call_prefix: of the ids of calls."""
        self._timings = timings
        self.declined: Declined | None = None  # why nothing is guessed
        self.choices: list[Choice] = []
        self.first: dict[str, int] = {}
        self.n = dict(requests)
        for id, n in requests:
            self.first[id] = len(self.choices)
            for _ in range(n):
                listener = None if speech.plain else Listener(speech, lambda: call_prefix + secrets.token_hex(12))
                heard = listener, speech.named, speech.budget, speech.tools
                self.choices.append(Choice(len(self.choices), *heard))

    def take(self, event: Event) -> Choice:
        """Fold one event in; the choice it belongs to. ApiError when the engine gave up, or was told to."""
        if isinstance(event, Failed):
            raise failure(event)
        choice = self.choices[self.first[event.request] + event.index]
        choice.take(event)
        if isinstance(event, Finished) and event.reason is Reason.ABORT:
            raise ApiError(499, ABORTED, "The request was cancelled by its id.")
        if isinstance(event, Finished) and choice.finish_detail and choice.all_reasoning:
            log.info("%s: the answer never began: all %d tokens were reasoning", event.request, event.usage.generated)
        return choice

    def leaders(self) -> list[Choice]:
        """One choice of each prompt: what counts once per prompt is read here."""
        return [self.choices[at] for at in self.first.values()]

    def usage(self) -> Usage:
        """Prompt tokens once per prompt; generated ones of all choices, as far as they have come."""
        total = Usage.total(choice.finished.usage for choice in self.choices if choice.finished)
        return replace(
            total,
            prompt=sum(choice.prompt_tokens for choice in self.leaders()),
            cached=sum(choice.cached for choice in self.leaders()),
            generated=total.generated + sum(len(choice.tokens) for choice in self.choices if not choice.finished),
        )

    def timings(self) -> dict[str, Any]:
        """`timings` for what ends the answer: nothing where nobody asked, or while a sequence goes on."""
        if self._timings is None or not all(choice.finished for choice in self.choices):
            return {}
        return {"timings": self._timings()}


_STATUS = {
    "kv_pool_floored": (503, "capacity_error"),
    "context_length_exceeded": (503, "capacity_error"),
    "draining": (503, "server_error"),
    "queue_timeout": (503, "server_error"),
    "engine_faulted": (500, "internal_error"),
    "engine_step_failed": (500, "internal_error"),
    "constraint_too_large": (400, "invalid_request_error"),
    "unsatisfiable_constraint": (400, "invalid_request_error"),
}
_PASSES = ("draining", "queue_timeout")  # the same request may do better a little later


def failure(event: Failed) -> ApiError:
    status, kind = _STATUS.get(event.code, (500, "internal_error"))
    headers = {"Retry-After": RETRY_AFTER_S} if event.code in _PASSES else None
    return ApiError(status, event.code, event.message, type=kind, headers=headers)


def speculation_json(usage: Usage) -> dict[str, int]:
    """What was guessed, where anything was: every dialect tells it."""
    if not usage.verify_steps:
        return {}
    return {
        "imp_spec_drafted": usage.drafted,
        "imp_spec_accepted": usage.accepted,
        "imp_spec_emitted": usage.verified,
        "imp_spec_verify_steps": usage.verify_steps,
    }


def usage_json(usage: Usage, declined: Declined | None = None) -> dict[str, Any]:
    """declined: why nothing was guessed although that was asked for."""
    told = {} if declined is None else {"imp_spec_declined": declined.code, "imp_spec_declined_detail": declined.why}
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.predicted_accepted,
            "rejected_prediction_tokens": usage.predicted - usage.predicted_accepted,
        }
        | speculation_json(usage)
        | told,
    }


def clamp(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def token_string(pieces: Pieces, token: int) -> str:
    """A token alone: its text, or `bytes:\\xNN...` where it is only a part of a character; or the name that the
    vocabulary was given for it."""
    if isinstance(pieces, Named):
        return pieces.token_name(token)
    raw = pieces.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def logprob_json(entry: TokenLogprob, pieces: Pieces) -> dict[str, Any]:
    """OpenAI's shape of one output token, its alternatives below it."""
    top = [_token_json(token, logprob, pieces) for token, logprob in entry.top]
    top += [_token_json(token, logprob, pieces) for token, logprob in entry.asked]
    return _token_json(entry.token, entry.logprob, pieces) | {"top_logprobs": top}


def _token_json(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    raw = pieces.token_bytes(token)
    return {"token": token_string(pieces, token), "logprob": clamp(logprob), "bytes": list(raw)}


class TokenTexts:
    """Texts of consecutive tokens that join to the text of the whole: a character belongs to the token that ends it."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self.decoder.decode(self.pieces.token_bytes(token))


def prompt_logprobs_json(entries: Sequence[TokenLogprob | None], pieces: Pieces) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token null (the first) or {token id: {logprob, rank, decoded_token}}."""
    out: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            out.append(None)
            continue
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(entry.top, 1)}
        ranked.setdefault(entry.token, (entry.logprob, entry.rank))
        out.append(
            {
                str(token): {"logprob": clamp(value), "rank": rank, "decoded_token": token_string(pieces, token)}
                for token, (value, rank) in ranked.items()
            }
        )
    return out
