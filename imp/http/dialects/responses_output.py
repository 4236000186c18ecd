"""The items of a response, made of the parts of an answer: each is announced, grows, and is closed before the next.

What an item is closed with, completed or incomplete, is known only when the next one begins or the response ends; so a
part that has ended stays open here until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from imp.chat.parts import Channel, Closed, Event, Grown, Opened
from imp.http.dialects.responses_items import new_id

StreamEvent = tuple[str, dict[str, Any]]  # its type, and what it says besides its number
Seals = Callable[[str], str]
Logprobs = Sequence[dict[str, Any]]


class Output:
    """The output of one response. `items` are whole once it is finished."""

    def __init__(self, seal: Seals | None = None) -> None:
        """seal: reasoning is given sealed as well."""
        self._seal = seal
        self.items: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._cut_off = False

    def take(self, event: Event, logprobs: Logprobs = ()) -> list[StreamEvent]:
        """Fold one part event in; the stream events it comes to.  logprobs: of the tokens of a piece of text."""
        if isinstance(event, Opened):
            closed = self.finish("completed")
            self._open = _ITEMS[event.channel](event, len(self.items), self._seal)
            self._cut_off = False
            self.items.append(self._open.item)
            return [*closed, self._announced(), *self._open.begin()]
        if isinstance(event, Closed):
            self._cut_off = bool(event.unfinished)
            return []
        assert self._open is not None and isinstance(event, Grown)
        return self._open.grow(event.text, logprobs)

    def note(self, told: dict[str, str]) -> None:
        """Say more beside what is open."""
        assert self._open is not None
        self._open.item |= told

    def finish(self, status: str, logprobs: Logprobs = ()) -> list[StreamEvent]:
        """Close what is open.  status: of the item.  logprobs: of tokens without a text of their own."""
        if self._open is None:
            return []
        item, self._open = self._open, None
        events = item.end(logprobs)
        item.item["status"] = "incomplete" if self._cut_off else status
        return [*events, ("response.output_item.done", {"output_index": item.index, "item": _copy(item.item)})]

    def _announced(self) -> StreamEvent:
        assert self._open is not None
        return "response.output_item.added", {"output_index": self._open.index, "item": _copy(self._open.item)}


class _Item(Protocol):
    """An item that is open: what it is, where it stands, and its events."""

    item: dict[str, Any]
    index: int

    def begin(self) -> list[StreamEvent]: ...
    def grow(self, text: str, logprobs: Logprobs) -> list[StreamEvent]: ...
    def end(self, logprobs: Logprobs) -> list[StreamEvent]: ...


class _Message:
    def __init__(self, event: Opened, index: int, seal: Seals | None) -> None:
        self.index = index
        self.item: dict[str, Any] = {"id": new_id("msg_"), "type": "message", "status": "in_progress"}
        self.item |= {"role": "assistant", "content": []}
        self._place = {"item_id": self.item["id"], "output_index": index, "content_index": 0}
        self._pieces: list[str] = []
        self._part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

    def begin(self) -> list[StreamEvent]:
        added = ("response.content_part.added", self._place | {"part": _copy(self._part)})
        self.item["content"].append(self._part)
        return [added]

    def grow(self, text: str, logprobs: Logprobs) -> list[StreamEvent]:
        self._pieces.append(text)
        self._part["logprobs"] += logprobs
        return [("response.output_text.delta", self._place | {"delta": text, "logprobs": list(logprobs)})]

    def end(self, logprobs: Logprobs) -> list[StreamEvent]:
        self._part["text"] = "".join(self._pieces)
        self._part["logprobs"] += logprobs
        said = {name: self._part[name] for name in ("text", "logprobs")}
        return [
            ("response.output_text.done", self._place | said),
            ("response.content_part.done", self._place | {"part": self._part}),
        ]


class _Reasoning:
    def __init__(self, event: Opened, index: int, seal: Seals | None) -> None:
        self.index = index
        self.item: dict[str, Any] = {"id": new_id("rs_"), "type": "reasoning", "status": "in_progress"}
        self.item |= {"summary": [], "content": []}
        self._pieces: list[str] = []
        self._place = {"item_id": self.item["id"], "output_index": index, "content_index": 0}
        self._part = {"type": "reasoning_text", "text": ""}
        self._seal = seal

    def begin(self) -> list[StreamEvent]:
        added = ("response.content_part.added", self._place | {"part": _copy(self._part)})
        self.item["content"].append(self._part)
        return [added]

    def grow(self, text: str, logprobs: Logprobs) -> list[StreamEvent]:
        self._pieces.append(text)
        return [("response.reasoning_text.delta", self._place | {"delta": text})]

    def end(self, logprobs: Logprobs) -> list[StreamEvent]:
        self._part["text"] = "".join(self._pieces)
        if self._seal is not None:
            self.item["encrypted_content"] = self._seal(self._part["text"])
        return [
            ("response.reasoning_text.done", self._place | {"text": self._part["text"]}),
            ("response.content_part.done", self._place | {"part": self._part}),
        ]


class _Call:
    def __init__(self, event: Opened, index: int, seal: Seals | None) -> None:
        self.index = index
        self.item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": event.id or new_id("call_"),
            "name": event.name,
            "arguments": "",
        }
        self._pieces: list[str] = []
        self._place = {"item_id": self.item["id"], "output_index": index}

    def begin(self) -> list[StreamEvent]:
        return []

    def grow(self, text: str, logprobs: Logprobs) -> list[StreamEvent]:
        self._pieces.append(text)
        return [("response.function_call_arguments.delta", self._place | {"delta": text})]

    def end(self, logprobs: Logprobs) -> list[StreamEvent]:
        self.item["arguments"] = "".join(self._pieces)
        said = {name: self.item[name] for name in ("name", "arguments")}
        return [("response.function_call_arguments.done", self._place | said)]


_ITEMS: dict[Channel, Callable[[Opened, int, Seals | None], _Item]] = {
    Channel.TEXT: _Message,
    Channel.REASONING: _Reasoning,
    Channel.TOOL: _Call,
}


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """As it is now: items go on growing, and events are encoded later."""
    return {name: list(each) if isinstance(each, list) else each for name, each in value.items()}
