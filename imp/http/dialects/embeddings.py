"""POST /v1/embeddings: OpenAI's shape (WIRE.md section 6)."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imp.chat.pooling import EmbeddingRequest
from imp.http.dialects.generation import prompts
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import Conversation
from imp.http.fields import Field, Kind, Status, parse

FIELDS = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("input", (Kind.STRING, Kind.ARRAY), required=True, doc="Text, token ids, or an array of either; none empty."),
    Field(
        "encoding_format",
        Kind.STRING,
        choices=("float", "base64"),
        default="float",
        doc="base64: of float32, little-endian.",
    ),
    Field("dimensions", Kind.INTEGER, 1, doc="The model's own size, or a size it was trained to be cut to."),
    Field("add_special_tokens", Kind.BOOLEAN, default=True, doc="Begin texts with the model's begin-of-text token."),
    Field(
        "truncate_prompt_tokens", Kind.INTEGER, 1, doc="Keep this many tokens of a longer input; else it is refused."
    ),
    Field("user", Kind.ANY, status=Status.NO_OP, doc="Accepted; has no effect here."),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    wanted: EmbeddingRequest
    model: str | None
    base64: bool
    ignored: tuple[str, ...]


def read(body: Mapping[str, Any], max_items: int) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, FIELDS)
    wanted = EmbeddingRequest(
        prompts(parsed["input"], "input", max_items),
        parsed["dimensions"],
        parsed["add_special_tokens"],
        parsed["truncate_prompt_tokens"],
    )
    return Ask(wanted, parsed["model"], parsed["encoding_format"] == "base64", parsed.ignored)


class Writer:
    """Pooled states as the list of embeddings, each of length 1."""

    def __init__(self, ask: Ask, header: Header, conversation: Conversation):
        self.ask, self.header, self.conversation = ask, header, conversation

    def reply(self) -> dict[str, Any]:
        """The answer as far as it has come: the whole, once every event has been taken."""
        data = []
        for choice in self.conversation.choices:
            if choice.finished is None or choice.finished.vector is None:
                continue
            vector = normalised(choice.finished.vector[: self.ask.wanted.dimensions])
            shown = encoded(vector) if self.ask.base64 else vector.tolist()
            data.append({"object": "embedding", "index": choice.index, "embedding": shown})
        prompt = self.conversation.usage().prompt
        usage = {"prompt_tokens": prompt, "total_tokens": prompt}
        head = {"id": self.header.id, "object": "list", "created": self.header.created, "model": self.header.model}
        return {**head, "data": data, "usage": usage}


def normalised(vector: Sequence[float]) -> array[float]:
    """float32, of Euclidean length 1; a vector of zeros stays one."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return array("f", [value / length for value in vector] if length else vector)


def encoded(vector: array[float]) -> str:
    """Base64 of the little-endian bytes."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
