"""What a client of Anthropic's dialect gets: events as a stream of one message, or that message (WIRE.md section 5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from imp.chat.parts import Channel, Closed, Grown, Opened
from imp.chat.parts import Event as PartEvent
from imp.http import sse
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import Choice, Conversation, Part, speculation_json
from imp.http.errors import ApiError, Envelope, envelope
from imp.types import Event, Reason, Started, Usage

PING = sse.frame({"type": "ping"}, "ping")


class Writer:
    """Engine events as the events of one message stream, or folded into one message."""

    def __init__(
        self,
        header: Header,
        conversation: Conversation,
        request_id: str,
        sign: Callable[[str], str],
        omits: bool = False,
        kept: int = 0,
    ):
        """conversation: of one choice.  request_id: of the HTTP exchange; errors inside a stream repeat it.
        sign: the signature of reasoning, by which it is known when it comes back.  omits: reasoning is not shown.
        kept: leading tokens of the prompt that the cache is to keep."""
        self.omits, self.kept = omits, kept
        self.header, self.conversation, self.request_id, self.sign = header, conversation, request_id, sign

    def end(self) -> bytes:
        """After the last event: the reason and the whole usage. Nothing said is an empty text."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        delta |= self._choice.detail | self._choice.validation
        usage = self._usage()
        empty: list[PartEvent] = [Opened(0, Channel.TEXT), Closed(0)]
        frames = b"" if self._choice.parts else b"".join(map(self._part_frame, empty))
        return (
            frames
            + _event("message_delta", delta=delta, usage=usage, **self.conversation.timings())
            + _event("message_stop")
        )

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent; nothing follows it."""
        return sse.frame(envelope(error, Envelope.ANTHROPIC, self.request_id), "error")

    def frame(self, event: Event) -> bytes:
        self.conversation.take(event)
        if isinstance(event, Started):
            return _event("message_start", message=self._message([], self._usage()))
        return b"".join(map(self._part_frame, self._choice.news))

    def _part_frame(self, event: PartEvent) -> bytes:
        """A part of the answer is a block."""
        if isinstance(event, Opened):
            return _event("content_block_start", index=event.index, content_block=_empty_block(event))
        channel = self._choice.parts[event.index].channel if self._choice.parts else Channel.TEXT
        if isinstance(event, Grown):
            if self.omits and channel is Channel.REASONING:
                return b""
            return _event("content_block_delta", index=event.index, delta=_block_delta(channel, event.text))
        frames = b""
        if channel is Channel.REASONING:
            delta = {"type": "signature_delta", "signature": self.sign(self._choice.parts[event.index].text)}
            frames = _event("content_block_delta", index=event.index, delta=delta)
        return frames + _event("content_block_stop", index=event.index)

    @property
    def _choice(self) -> Choice:
        return self.conversation.choices[0]

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken."""
        blocks = [self._block(part) for part in self._choice.parts]
        content = [block for block in blocks if block] or [{"type": "text", "text": ""}]
        return self._message(content, self._usage())

    def _usage(self) -> dict[str, int]:
        return usage_json(self.conversation.usage(), self.kept)

    def _block(self, part: Part) -> dict[str, Any]:
        """{}: there is nothing to show."""
        if part.channel is Channel.REASONING:
            return {"type": "thinking", "thinking": "" if self.omits else part.text, "signature": self.sign(part.text)}
        if part.channel is Channel.TEXT or part.unfinished:
            return {"type": "text", "text": part.text if part.channel is Channel.TEXT else part.unfinished}
        call = {"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.text)}
        return call | self._choice.invalid(part)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        more = self._choice.detail | self._choice.validation | self.conversation.timings()
        return {
            "id": self.header.id,
            "type": "message",
            "role": "assistant",
            "model": self.header.model,
            "content": content,
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._stop_sequence(),
            "usage": usage,
        } | more

    def _stop_reason(self) -> str | None:
        finished = self.conversation.choices[0].finished
        if finished is None:
            return None
        if finished.reason is Reason.LENGTH:
            return "max_tokens"
        if self._choice.calls:
            return "tool_use"
        return "end_turn" if self._stop_sequence() is None else "stop_sequence"

    def _stop_sequence(self) -> str | None:
        finished = self.conversation.choices[0].finished
        return finished.stop if finished and isinstance(finished.stop, str) else None


def _empty_block(event: Opened) -> dict[str, Any]:
    if event.channel is Channel.TOOL:
        return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
    if event.channel is Channel.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _block_delta(channel: Channel, text: str) -> dict[str, Any]:
    if channel is Channel.TOOL:
        return {"type": "input_json_delta", "partial_json": text}
    if channel is Channel.REASONING:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def usage_json(usage: Usage, kept: int = 0) -> dict[str, int]:
    """`input_tokens` leaves out what the cache had, and what of the `kept` tokens it had not: a client adds the three
    input counts."""
    created = max(kept - usage.cached, 0)
    return {
        "input_tokens": usage.prompt - usage.cached - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    } | speculation_json(usage)


def _event(name: str, **fields: Any) -> bytes:
    return sse.frame({"type": name, **fields}, name)
