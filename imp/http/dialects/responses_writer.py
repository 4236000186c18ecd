"""The way out of the Responses dialect: engine events as its stream events, or folded into one response object.

Stream and object are made from the same items (responses_output.py), which keep their ids from the first look on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from imp.chat import parts
from imp.http import sse
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.responses import Ask
from imp.http.dialects.responses_output import Output, StreamEvent
from imp.http.dialects.shared import ABORTED, Choice, Conversation, Pieces, logprob_json, speculation_json
from imp.http.errors import ApiError
from imp.types import Delta, Event, Reason, Sampling, Started, TokenLogprob, Usage


class Writer:
    """One response. Mutable; events are written in the order of their `sequence_number`, without gaps."""

    def __init__(
        self,
        ask: Ask,
        header: Header,
        conversation: Conversation,
        pieces: Pieces,
        sampling: Sampling,
        seal: Callable[[str], str] | None = None,
    ):
        """conversation: of one choice.  sampling: what is in force, the model's defaults included.  seal: reasoning is
        given back sealed, too."""
        self.ask, self.header, self.conversation, self.pieces = ask, header, conversation, pieces
        self.sampling = sampling
        self._numbered = 0  # events written so far
        self._created = self._begun = False
        self._output = Output(seal)
        self._unsent: list[TokenLogprob] = []  # of tokens whose text has not been shown
        self._error: ApiError | None = None
        self._final: dict[str, Any] | None = None

    # -- the stream

    def queued(self) -> bytes:
        """The first events of a response that runs in the background."""
        self._created = True
        return self._lifecycle("created") + self._lifecycle("queued")

    def frame(self, event: Event) -> bytes:
        self.conversation.take(event)
        if isinstance(event, Started):
            return self._begin()
        if isinstance(event, Delta):
            self._unsent += event.logprobs
        frames = [each for news in self._choice.news for each in self._take(news)] if self.ask.generates else []
        return self._begin() + self._frames(frames) if frames else b""

    def end(self) -> bytes:
        """After the last event: the item is closed, then the whole response."""
        frames = self._begin() + self._frames(self._finish())
        return frames + self._lifecycle(self.status)

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent. The event has the two forms clients look for in one."""
        frames = self._begin()
        self._error = error
        inner = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        told = {"code": error.code, "message": error.message, "param": error.param, "error": inner}
        self._output.finish("incomplete")  # clients are told of the failure, not of the item's end
        return frames + self._frames([("error", told)]) + self._lifecycle("failed")

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        frames = b"" if self._created else self._lifecycle("created")
        self._created = True
        return frames + self._lifecycle("in_progress")

    def _lifecycle(self, name: str) -> bytes:
        return self._frames([(f"response.{name}", {"response": self.reply()})])

    def _frames(self, events: Sequence[StreamEvent]) -> bytes:
        frames = b""
        for type, said in events:
            frames += sse.frame({"type": type, "sequence_number": self._numbered} | said, type)
            self._numbered += 1
        return frames

    # -- the items

    def _take(self, event: parts.Event) -> list[StreamEvent]:
        """The answer goes on. Log-probabilities come with the next piece of text."""
        is_text = isinstance(event, parts.Grown) and self._choice.parts[event.index].channel is parts.Channel.TEXT
        logprobs: list[TokenLogprob] = []
        if is_text:
            logprobs, self._unsent = self._unsent, logprobs
        events = self._output.take(event, self._logprobs(logprobs))
        if isinstance(event, parts.Closed) and self._choice.parts[event.index].channel is parts.Channel.TOOL:
            self._output.note(self._choice.invalid(self._choice.parts[event.index]))
        return events

    def _finish(self) -> list[StreamEvent]:
        """The answer is over. Nothing said is an empty message."""
        if not self.ask.generates:
            return []
        opened = [] if self._output.items else self._output.take(parts.Opened(0, parts.Channel.TEXT))
        return opened + self._output.finish(self.status, self._logprobs(self._unsent))

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [logprob_json(entry, self.pieces) for entry in entries]

    @property
    def _choice(self) -> Choice:
        return self.conversation.choices[0]

    # -- the object

    @property
    def status(self) -> str:
        finished = self._choice.finished
        if self._error is not None:
            return "cancelled" if self._error.code == ABORTED else "failed"
        if finished is None or finished.reason is Reason.ABORT:  # the error that tells of it is on its way
            return "in_progress" if self._begun or not self._created else "queued"
        return "incomplete" if finished.reason is Reason.LENGTH and self.ask.generates else "completed"

    def reply(self) -> dict[str, Any]:
        """The response as far as it has come; once it is over, always the same."""
        if self._final is not None:
            return self._final
        if self.status in ("queued", "in_progress"):
            return self._response([], None)
        if not self._created:  # nothing was streamed
            self._unsent = list(self._choice.logprobs)
            for event in self._choice.replay() if self.ask.generates else ():
                self._take(event)
            self._finish()
        usage = usage_json(self.conversation.usage())
        more = self._choice.detail | self._choice.validation | self.conversation.timings()
        self._final = self._response(self._output.items, usage) | more
        return self._final

    def _response(self, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        status, error = self.status, None
        if self._error is not None and status == "failed":
            error = {"code": "server_error", "message": self._error.message}
        return {
            "id": self.header.id,
            "object": "response",
            "created_at": self.header.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": error,
            "model": self.header.model,
            "output": output,
            "usage": usage,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "service_tier": "default",
        } | dict(self.ask.echo)


def usage_json(usage: Usage) -> dict[str, Any]:
    """The counts in the names of this API."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning} | speculation_json(usage),
        "total_tokens": usage.prompt + usage.generated,
    }
