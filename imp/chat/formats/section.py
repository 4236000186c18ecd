"""Calls one behind the other in a section, each between markers of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..answer import Answer
from ..reader import Reader, Steps
from .base import NotACall, ParseCalls, Tools


@dataclass(frozen=True, slots=True)
class Section:
    """Its markers: what stands around it, and what begins each call, which may also stand without a section."""

    open: str
    close: str
    call: str

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open, self.call)

    def parser(self, call: Callable[[Reader, Answer], Steps]) -> ParseCalls:
        """call: reads one call, behind the marker that begins it."""

        def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
            if opener == self.open:
                yield from reader.space()
                if not (yield from reader.match(self.call)):
                    raise NotACall
            yield from call(reader, answer)
            while not answer.in_call:
                reader.keep((yield from reader.space()))
                if (yield from reader.match(self.close)) or not (yield from reader.match(self.call)):
                    return
                yield from call(reader, answer)

        return parse
