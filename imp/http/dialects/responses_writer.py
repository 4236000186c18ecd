"""The way out of the Responses dialect: engine events as its stream events, or folded into one response object.

The output is a list of items; each is announced (`output_item.added`), grows (`delta`) and is closed (`done`) before
the next begins. Text is the one kind of item that is generated. Stream and object are made from the same items, which
keep their ids from the first look on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from imp.http import sse
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.responses import Ask
from imp.http.dialects.responses_items import Item, new_id
from imp.http.dialects.shared import ABORTED, Conversation, Pieces, logprob_json
from imp.http.errors import ApiError
from imp.types import Delta, Event, Reason, Sampling, Started, TokenLogprob, Usage


class Writer:
    """One response. Mutable; events are written in the order of their `sequence_number`, without gaps."""

    def __init__(self, ask: Ask, header: Header, conversation: Conversation, pieces: Pieces, sampling: Sampling):
        """conversation: of one choice.  sampling: what is in force, the model's defaults included."""
        self.ask, self.header, self.conversation, self.pieces = ask, header, conversation, pieces
        self.sampling = sampling
        self.events = 0  # written so far
        self._created = self._begun = self._opened = False
        self._message_id = new_id("msg_")
        self._unsent: list[TokenLogprob] = []  # of tokens whose text has not been shown
        self._error: ApiError | None = None
        self._completed_at: int | None = None

    # -- the stream

    def queued(self) -> bytes:
        """The first events of a response that runs in the background."""
        self._created = True
        return self._event("response.created", response=self.reply()) + self._event(
            "response.queued", response=self.reply()
        )

    def frame(self, event: Event) -> bytes:
        self.conversation.take(event)
        if isinstance(event, Started):
            return self._begin()
        if isinstance(event, Delta):
            self._unsent += event.logprobs
            return self._begin() + self._delta(event.text) if event.text else b""
        return b""

    def end(self) -> bytes:
        """After the last event: the item is closed, then the whole response."""
        frames = self._begin()
        if self.ask.generates:
            frames += b"" if self._opened else self._open()  # nothing said is an empty message
            frames += self._close()
        return frames + self._event(f"response.{self.status}", response=self.reply())

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent. The event has the two forms clients look for in one."""
        frames = self._begin()
        self._error = error
        inner = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        told = self._event("error", code=error.code, message=error.message, param=error.param, error=inner)
        return frames + told + self._event("response.failed", response=self.reply())

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        frames = b"" if self._created else self._event("response.created", response=self.reply())
        self._created = True
        return frames + self._event("response.in_progress", response=self.reply())

    def _open(self) -> bytes:
        self._opened = True
        item = self._message("in_progress") | {"content": []}
        part = _text_part("", [])
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._place, part=part
        )

    def _delta(self, text: str) -> bytes:
        frames = b"" if self._opened else self._open()
        logprobs, self._unsent = self._logprobs(self._unsent), []
        return frames + self._event("response.output_text.delta", **self._place, delta=text, logprobs=logprobs)

    def _close(self) -> bytes:
        item = self._message("incomplete" if self.status == "incomplete" else "completed")
        [part] = item["content"]
        text, logprobs = part["text"], part["logprobs"]
        return (
            self._event("response.output_text.done", **self._place, text=text, logprobs=logprobs)
            + self._event("response.content_part.done", **self._place, part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
        )

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _event(self, type: str, **fields: Any) -> bytes:
        number = self.events
        self.events += 1
        return sse.frame({"type": type, "sequence_number": number} | fields, type)

    # -- the object

    @property
    def status(self) -> str:
        finished = self.conversation.choices[0].finished
        if self._error is not None:
            return "cancelled" if self._error.code == ABORTED else "failed"
        if finished is None:
            return "in_progress" if self._begun or not self._created else "queued"
        return "incomplete" if finished.reason is Reason.LENGTH and self.ask.generates else "completed"

    def output(self) -> Sequence[Item]:
        """The items so far; whatever is not over is incomplete."""
        there = self._opened if self._created else self.conversation.choices[0].finished is not None
        if not self.ask.generates or not there:
            return ()
        return (self._message("completed" if self.status == "completed" else "incomplete"),)

    def reply(self) -> dict[str, Any]:
        """The response as far as it has come."""
        status = self.status
        over = status not in ("queued", "in_progress")
        if status == "completed" and self._completed_at is None:
            self._completed_at = int(time.time())
        error = {"code": "server_error", "message": self._error.message} if self._error and status == "failed" else None
        return {
            "id": self.header.id,
            "object": "response",
            "created_at": self.header.created,
            "completed_at": self._completed_at,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": error,
            "model": self.header.model,
            "output": list(self.output()) if over else [],
            "usage": usage_json(self.conversation.usage()) if over else None,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "service_tier": "default",
        } | dict(self.ask.echo)

    def _message(self, status: str) -> dict[str, Any]:
        choice = self.conversation.choices[0]
        part = _text_part("".join(choice.text), self._logprobs(choice.logprobs))
        return {
            "id": self._message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [part],
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [logprob_json(entry, self.pieces) for entry in entries]


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.generated,
    }
