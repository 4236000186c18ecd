"""POST /v1/responses/compact: a long conversation as one short item.

The model itself writes a summary. The item holds, sealed, what the conversation goes on from: its system messages, the
summary with the user's last words, and the calls that wait for their outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imp.chat.message import ChatRequest, Message, Options
from imp.http.dialects import responses_writer
from imp.http.dialects.responses_items import (
    CALLS,
    COMPACTION,
    OUTPUTS,
    Item,
    message_item,
    new_id,
    text_of,
    unsealed,
)
from imp.http.errors import ApiError
from imp.http.seal import Seal
from imp.types import Event

INSTRUCTION = (
    "Summarize this conversation so that it can go on from the summary alone. Keep names, numbers, decisions, results "
    "of tools, and what remains to be done. Answer with the summary only."
)
MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a conversation survives as it is."""

    system: tuple[Item, ...]
    last_words: str  # of the user
    calls: tuple[Item, ...]  # without an output yet


def summarising(turns: ChatRequest, context: int) -> ChatRequest:
    """The request for a summary of `turns`. A last message of the user takes the instruction in, because many
    templates know no two in a row."""
    *before, last = turns.messages
    if last.role == "user":
        asked = (*before, replace(last, content=f"{last.content}\n\n{INSTRUCTION}"))
    else:
        asked = (*before, last, Message("user", INSTRUCTION))
    return ChatRequest(asked, Options(max_tokens=min(MAX_TOKENS, context // 4), temperature=0.0))


def unanswered(items: Iterable[Item], seal: Seal) -> Kept:
    """What is kept of a conversation besides its summary."""
    conversation = list(unsealed(items, seal))
    messages = [item for item in conversation if item["type"] == "message"]
    answered = {item["call_id"] for item in conversation if item["type"] in OUTPUTS}
    words = [text_of(item["content"]) for item in messages if item["role"] == "user"]
    return Kept(
        tuple(item for item in messages if item["role"] in ("system", "developer")),
        words[-1] if words else "",
        tuple(item for item in conversation if item["type"] in CALLS and item["call_id"] not in answered),
    )


class Writer:
    """The one object a compaction is; it is never streamed."""

    def __init__(self, inner: responses_writer.Writer, kept: Kept, seal: Seal) -> None:
        self.header, self.conversation = inner.header, inner.conversation
        self._inner, self._kept, self._seal = inner, kept, seal
        self._id = new_id("cmp_")

    def frame(self, event: Event) -> bytes:
        return self._inner.frame(event)

    def end(self) -> bytes:
        return self._inner.end()

    def error(self, error: ApiError) -> bytes:
        return self._inner.error(error)

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken."""
        sealed = self._seal.seal(COMPACTION, [dict(item) for item in self._items()])
        return {
            "id": self.header.id,
            "object": "response.compaction",
            "created_at": self.header.created,
            "model": self.header.model,
            "output": [{"id": self._id, "type": "compaction", "encrypted_content": sealed}],
            "usage": responses_writer.usage_json(self.conversation.usage()),
        }

    def _items(self) -> Sequence[Item]:
        text = "Summary of the conversation so far:\n" + self.conversation.choices[0].text
        if self._kept.last_words:
            text += f"\n\nThe user's last message was:\n{self._kept.last_words}"
        return (*self._kept.system, message_item("system", text), *self._kept.calls)
