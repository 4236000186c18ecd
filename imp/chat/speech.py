"""How the answers to one request are to be read: with which format, and whether the prompt ends inside reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import parts
from .answer import Answer
from .formats.base import Format, Thinking, Tool, program
from .reader import Feed


@dataclass(frozen=True, slots=True)
class Speech:
    """format: of the calls; None: there are none.  thinking: the markers of reasoning; None: there is none.
    started: the prompt ends inside it.  one_call: calls behind the first are dropped."""

    format: Format | None = None
    thinking: Thinking | None = None
    started: bool = False
    tools: Mapping[str, Tool] = field(default_factory=dict)
    one_call: bool = False

    @property
    def plain(self) -> bool:
        """All of the output is text."""
        return self.thinking is None and (self.format is None or not self.tools)


PLAIN = Speech()


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
