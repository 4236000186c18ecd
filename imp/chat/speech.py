"""How the answers to one request are to be read: with which format, and whether the prompt ends inside reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..constrain.framing import NO_FRAME, Frame
from ..text.spelled import joined
from ..types import Headers, Limits, Reasoning
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
    silent: reasoning is dropped.  budget: tokens that it could take at most.  late: see program.
    seam: white space at the beginning belongs to nothing, since the prompt ends with the mark that closes reasoning."""

    format: Format | None = None
    thinking: Thinking | None = None
    started: bool = False
    tools: Mapping[str, Tool] = field(default_factory=dict)
    one_call: bool = False
    named: bool = False
    splits: bool = True
    silent: bool = False
    budget: int | None = None
    late: bool = True
    seam: bool = False

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
    shows_several: it writes all calls of an answer that has several; else each needs an answer of its own.
    shows_results: it has a turn for what tools gave; else the user's is taken.
    text_arguments: it wants the arguments of calls as JSON in a string; else as a mapping.
    no_tools: what it wants to be given where there are none.
    thinks_in_blocks: it shows earlier reasoning where that is a block of the content; else as a field of the message.
    wants_parts: it shows content that is a list of parts; else a text.
    frame: what it puts around an answer in words.
    switch, effort: the template's variables for thinking.
    splits: reasoning is a part of its own; else it stays in the text, its markers with it.
    """

    format: Format | None = None
    thinking: Thinking | None = None
    shows_tools: bool = True
    shows_calls: bool = True
    shows_several: bool = True
    shows_results: bool = True
    text_arguments: bool = False
    no_tools: Sequence[Any] | None = None
    thinks_in_blocks: bool = False
    wants_parts: bool = False
    frame: Frame | None = None
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
        if thinks is False:
            return None
        own = self.thinking
        late = bool(thinks) and own.again is None
        opener = self.frame.opener[0] if self.frame and self.frame.thought and self.frame.opener else ""
        return Reasoning(own.open, own.close, bool(thinks), own.turn, str(opener), late, own.again)

    @property
    def headers(self) -> Headers | None:
        """Of the messages that an output is."""
        if self.thinking is not None and self.thinking.headers is not None:
            return self.thinking.headers
        return self.format.headers if self.format is not None else None

    def framed(self, rendered: str, continued: str | None = None) -> Frame | None:
        """What stands around an answer in words to a prompt; continued: see `reasoning`."""
        closed = self.thinking is not None and continued is None and rendered.endswith(self.thinking.close)
        if self.frame is None:
            return replace(NO_FRAME, lines=True) if closed else None
        opener = self.frame.opener
        begun = isinstance(opener, str) and rendered.rstrip().endswith(opener.strip())
        return replace(self.frame, begun=begun or continued is not None, lines=closed)

    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of the vocabulary, or hold some, and have to be seen in the output."""
        around: tuple[str, ...] = ()
        if (thinking := self.thinking) is not None:
            headers = self.headers or Headers((), ())
            around = (thinking.open, thinking.close, *thinking.around, thinking.turn, *headers.begins, *headers.ends)
        return (*self.format.openers, *self.format.closers, *around) if self.format else around

    def speech(
        self, tools: Sequence[Mapping[str, Any]], limits: Limits, one_call: bool = False, named: bool = False
    ) -> Speech:
        """How the answers to a request with these tools (OpenAI's shape) and limits are read; see Speech."""
        started = limits.reasoning is not None and limits.reasoning.started
        functions = [tool["function"] for tool in tools]
        known = {each["name"]: Tool(each["name"], each.get("parameters") or {}) for each in functions}
        late = limits.reasoning is not None and limits.reasoning.late
        seam = isinstance(limits.frame, Frame) and limits.frame.lines
        return Speech(self.format, self.thinking, started, known, one_call, named, self.splits, late=late, seam=seam)


class Listener:
    """Reads one answer."""

    def __init__(self, speech: Speech, new_call_id: Callable[[], str]) -> None:
        self._answer = Answer(new_call_id, speech.one_call, speech.silent)
        if speech.seam:
            self._answer.edge()
        self._feed = Feed(
            program(
                speech.format, speech.thinking, speech.started, self._answer, speech.tools, speech.splits, speech.late
            )
        )

    def push(self, text: str) -> list[parts.Event]:
        """What of the answer's parts has become certain with this text."""
        self._feed.push(text)
        return self._news()

    def close(self) -> list[parts.Event]:
        """The rest, when no more text comes."""
        self._feed.close()
        return self._news()

    def _news(self) -> list[parts.Event]:
        return [event for each in self._answer.events() if (event := _unbroken(each)) is not None]


def _unbroken(event: parts.Event) -> parts.Event | None:
    """As the model wrote it: what was spelled like a marker was only kept apart; None: it was that alone."""
    if isinstance(event, parts.Grown):
        text = joined(event.text)
        return event if text == event.text else parts.Grown(event.index, text) if text else None
    if isinstance(event, parts.Closed) and event.unfinished:
        return parts.Closed(event.index, joined(event.unfinished))
    return event


TEXT_ONLY = Voice()
