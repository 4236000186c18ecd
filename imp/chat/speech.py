"""How the answers to one request are to be read: with which format, and whether the prompt ends inside reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types import Limits, Reasoning
from . import parts
from .answer import Answer
from .formats.base import Format, Thinking, Tool, program
from .reader import Feed


@dataclass(frozen=True, slots=True)
class Speech:
    """format: of the calls; None: there are none.  thinking: the markers of reasoning; None: there is none.
    started: the prompt ends inside it.  one_call: calls behind the first are dropped.  named: one function was
    named, so that calling it ends the answer like any other."""

    format: Format | None = None
    thinking: Thinking | None = None
    started: bool = False
    tools: Mapping[str, Tool] = field(default_factory=dict)
    one_call: bool = False
    named: bool = False

    @property
    def plain(self) -> bool:
        """All of the output is text."""
        return self.thinking is None and (self.format is None or not self.tools)


PLAIN = Speech()


@dataclass(frozen=True, slots=True)
class Voice:
    """How a model speaks, as its template tells: the format of its calls, and what it puts around its reasoning."""

    format: Format | None = None
    thinking: Thinking | None = None

    def reasoning(self, rendered: str, continues: bool) -> Reasoning | None:
        """What the prompt's end says of reasoning: it is inside (`started`), behind it (None), or the output decides.

        continues: the prompt ends in a message that is to be gone on with."""
        if self.thinking is None:
            return None
        opened, closed = rendered.rfind(self.thinking.open), rendered.rfind(self.thinking.close)
        if opened > closed and (continues or not rendered[opened + len(self.thinking.open) :].strip()):
            return Reasoning(self.thinking.open, self.thinking.close, True)
        if rendered.rstrip().endswith(self.thinking.close):
            return None
        return Reasoning(self.thinking.open, self.thinking.close, False)

    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of the vocabulary and have to be seen in the output."""
        around = (self.thinking.open, self.thinking.close) if self.thinking else ()
        return (*self.format.openers, *self.format.closers, *around) if self.format else around

    def speech(
        self, tools: Sequence[Mapping[str, Any]], limits: Limits, one_call: bool = False, named: bool = False
    ) -> Speech:
        """How the answers to a request with these tools (OpenAI's shape) and limits are read; see Speech."""
        thinking = self.thinking if limits.reasoning else None
        started = limits.reasoning is not None and limits.reasoning.started
        functions = [tool["function"] for tool in tools]
        known = {each["name"]: Tool(each["name"], each.get("parameters") or {}) for each in functions}
        return Speech(self.format, thinking, started, known, one_call, named)


class Listener:
    """Reads one answer."""

    def __init__(self, speech: Speech, new_call_id: Callable[[], str]) -> None:
        self._answer = Answer(new_call_id, speech.one_call)
        self._feed = Feed(program(speech.format, speech.thinking, speech.started, self._answer, speech.tools))

    def push(self, text: str) -> list[parts.Event]:
        """What of the answer's parts has become certain with this text."""
        self._feed.push(text)
        return self._answer.events()

    def close(self) -> list[parts.Event]:
        """The rest, when no more text comes."""
        self._feed.close()
        return self._answer.events()


TEXT_ONLY = Voice()
