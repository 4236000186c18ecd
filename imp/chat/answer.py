"""The parts of one answer, as a parser finds them. White space at the seams between parts belongs to none of them."""

from __future__ import annotations

import json
from collections.abc import Callable

from .json_guard import JsonGuard
from .parts import Channel, Closed, Event, Grown, Opened


class Answer:
    """Collects part events; `events()` takes those that are new.

    Text and reasoning lose the white space before another part and after one; alone they keep every character.
    Arguments are passed on as the model writes them as long as they are JSON, and finished where they stop being that.
    """

    def __init__(self, new_call_id: Callable[[], str], one_call: bool = False, silent: bool = False) -> None:
        """one_call: calls behind the first are dropped.  silent: so is reasoning."""
        self.calls = 0
        self.broken = False  # the arguments of some call were no JSON and had to be finished
        self.splits = True  # reasoning is a part of its own; False: it is text
        self.on_called: Callable[[], object] = lambda: None  # runs when a call is complete
        self._new_call_id, self._one_call, self._silent = new_call_id, one_call, silent
        self._ids: set[str] = set()
        self._events: list[Event] = []
        self._index = -1
        self._open: Channel | None = None
        self._space = ""  # at the end of text or reasoning: passed on when more comes
        self._guard: JsonGuard | None = None
        self._dropping = False
        self._seam = False  # something came before that is no part, or was dropped

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def text(self, text: str) -> None:
        self._write(Channel.TEXT, text)

    def reasoning(self, text: str) -> None:
        if not self._silent:
            self._write(Channel.REASONING, text)
        elif text:
            self._seam = True

    def thought(self) -> None:
        """The reasoning is over."""
        self._seam = True
        if self._open is Channel.REASONING:
            self._close()

    def edge(self) -> None:
        """The text begins or ends here: white space beside it is none of it."""
        self._seam, self._space = True, ""
        if self._open is Channel.TEXT:
            self._close()

    def message(self) -> None:
        """A message begins, as models write several of: text behind text is a paragraph of its own, and white space
        between messages belongs to none."""
        self._space = "\n\n" if self._open is Channel.TEXT else ""

    def call(self, name: str, id: str = "") -> None:
        """A call begins; its arguments follow. An id that another call has gives way to a new one."""
        self._close()
        self._guard = JsonGuard()
        self._dropping = self._one_call and self.calls > 0
        self.calls += 1
        if not self._dropping:
            id = id if id and id not in self._ids else self._new_call_id()
            self._ids.add(id)
            self._begin(Channel.TOOL, name, id)

    def arguments(self, text: str) -> None:
        """More of the call's arguments: a JSON object, in pieces."""
        assert self._guard is not None
        self._grow(self._guard.push(text))

    def called(self) -> None:
        """The call is complete."""
        assert self._guard is not None
        self.broken |= self._guard.broken or not self._guard.done
        self._grow(self._guard.finish())
        self._end_call("")
        self.on_called()

    @property
    def in_call(self) -> bool:
        """A call has begun and is not complete."""
        return self._guard is not None

    def cut_off(self, written: str) -> None:
        """The output ended inside the call. written: the call so far, as the model wrote it."""
        assert self._guard is not None
        self._end_call("" if self._guard.done else written)

    def whole_call(self, name: str, arguments: object, id: str = "") -> None:
        """A call whose arguments are known as a value."""
        self.call(name, id)
        self.arguments(json.dumps(arguments, ensure_ascii=False))
        self.called()

    def finish(self) -> None:
        """No more comes."""
        if self._open in (Channel.TEXT, Channel.REASONING) and self._space and not self.calls:
            self._events.append(Grown(self._index, self._space))
        elif self._space and self._index < 0:  # nothing but white space is text all the same
            space, self._space = self._space, ""
            self._begin(Channel.TEXT)
            self._events.append(Grown(self._index, space))
        self._space = ""
        self._close()

    def _write(self, channel: Channel, text: str) -> None:
        text = self._space + text if self._open in (channel, None) else text
        self._space = ""
        if self._open is not channel and (self._index >= 0 or self._seam or channel is Channel.REASONING):
            text = text.lstrip()
        shown = text.rstrip()
        if not shown:
            if self._open in (channel, None):
                self._space = text
            return
        if self._open is not channel:
            self._close()
            self._begin(channel)
        self._space = text[len(shown) :]
        self._events.append(Grown(self._index, shown))

    def _begin(self, channel: Channel, name: str = "", id: str = "") -> None:
        self._index += 1
        self._open = channel
        self._events.append(Opened(self._index, channel, name, id))

    def _grow(self, text: str) -> None:
        if text and not self._dropping:
            self._events.append(Grown(self._index, text))

    def _end_call(self, unfinished: str) -> None:
        self._guard = None
        if not self._dropping:
            self._open = None
            self._events.append(Closed(self._index, unfinished))
        self._dropping = False

    def _close(self) -> None:
        self._space = ""
        if self._open is not None:
            self._events.append(Closed(self._index))
            self._open = None
