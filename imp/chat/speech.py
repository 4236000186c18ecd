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
from .switches import Effort, Switch


@dataclass(frozen=True, slots=True)
class Speech:
    """format: of the calls; None: there are none.  thinking: the markers of reasoning; None: there is none.
    started: the prompt ends inside it.  one_call: calls behind the first are dropped.  named: one function was
    named, so that calling it ends the answer like any other.  splits: see Voice.
    silent: reasoning is dropped.  budget: tokens that it could take at most."""

    format: Format | None = None
    thinking: Thinking | None = None
    started: bool = False
    tools: Mapping[str, Tool] = field(default_factory=dict)
    one_call: bool = False
    named: bool = False
    splits: bool = True
    silent: bool = False
    budget: int | None = None

    @property
    def plain(self) -> bool:
        """All of the output is text."""
        silent = self.format is None or not (self.tools or self.format.always)
        return self.thinking is None and silent


PLAIN = Speech()


@dataclass(frozen=True, slots=True)
class Voice:
    """How a model speaks, as its template tells: the format of its calls, and what it puts around its reasoning.

    shows_tools: the template tells the model of tools; else the prompt of tool_prompt.py has to.
    shows_calls: it writes earlier calls as the model writes them; else they are part of the text.
    shows_results: it has a turn for what tools gave; else the user's is taken.
    text_arguments: it wants the arguments of calls as JSON in a string; else as a mapping.
    no_tools: what it wants to be given where there are none.
    switch, effort: the template's variables for thinking.
    splits: reasoning is a part of its own; else it stays in the text, its markers with it.
    """

    format: Format | None = None
    thinking: Thinking | None = None
    shows_tools: bool = True
    shows_calls: bool = True
    shows_results: bool = True
    text_arguments: bool = False
    no_tools: Sequence[Any] | None = None
    switch: Switch | None = None
    effort: Effort | None = None
    splits: bool = True

    def thinks(self, rendered: str) -> bool | None:
        """What the prompt's end says: it is inside reasoning, there will be none, or (None) the output decides."""
        if self.thinking is None:
            return False
        text = rendered.rstrip()
        if text.endswith(self.thinking.skipped or (self.thinking.close,)):
            return False
        return True if text.endswith(self.thinking.open.rstrip()) else None

    def reasoning(self, rendered: str, continued: str | None = None) -> Reasoning | None:
        """Where the answer to a prompt begins; None: at once.

        continued: what the prompt has, at its end, of a message that is to be gone on with."""
        if self.thinking is None:
            return None
        thinks = self.thinks(rendered)
        if continued is not None and thinks is None:
            thinks = continued.rfind(self.thinking.open.rstrip()) > continued.rfind(self.thinking.close) or None
        return None if thinks is False else Reasoning(self.thinking.open, self.thinking.close, bool(thinks))

    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of the vocabulary, or hold some, and have to be seen in the output."""
        around = (self.thinking.open, self.thinking.close, *self.thinking.around) if self.thinking else ()
        return (*self.format.openers, *self.format.closers, *around) if self.format else around

    def speech(
        self, tools: Sequence[Mapping[str, Any]], limits: Limits, one_call: bool = False, named: bool = False
    ) -> Speech:
        """How the answers to a request with these tools (OpenAI's shape) and limits are read; see Speech."""
        started = limits.reasoning is not None and limits.reasoning.started
        functions = [tool["function"] for tool in tools]
        known = {each["name"]: Tool(each["name"], each.get("parameters") or {}) for each in functions}
        return Speech(self.format, self.thinking, started, known, one_call, named, self.splits)


class Listener:
    """Reads one answer."""

    def __init__(self, speech: Speech, new_call_id: Callable[[], str]) -> None:
        self._answer = Answer(new_call_id, speech.one_call, speech.silent)
        self._feed = Feed(
            program(speech.format, speech.thinking, speech.started, self._answer, speech.tools, speech.splits)
        )

    def push(self, text: str) -> list[parts.Event]:
        """What of the answer's parts has become certain with this text."""
        self._feed.push(text)
        return self._answer.events()

    def close(self) -> list[parts.Event]:
        """The rest, when no more text comes."""
        self._feed.close()
        return self._answer.events()


TEXT_ONLY = Voice()
