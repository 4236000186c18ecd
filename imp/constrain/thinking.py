"""Reasoning that is ended: at a budget, or when somebody asks for it. What follows may have a constraint of its own.

Tokens are counted as text.thinking counts them, from the first one of the output to the one that ends the closing
marker, and those of reasoning that begins again.
Where the marker just fits into what is left of the budget, its tokens are the only ones that may come; one token later
where the text stands in the middle of a character. Once the budget is used up, reasoning cannot begin again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..types import CompiledGrammar, Constraint
from .bars import Bar
from .vocab import VocabTables

HISTORY = 512  # steps that can be taken back, and some more
LATE = 4 * 200  # bytes behind an empty block; text.thinking.LATE has its characters
SPACE = b" \t\r\n"


class Phase(Enum):
    """Where a text stands."""

    BEGINNING = 0  # it may still begin with the opening marker
    REASONING = 1
    DOUBT = 2  # behind reasoning that was closed at once: it may go on and be closed again
    ANSWER = 3
    HEADER = 4  # of a message that may be reasoning


@dataclass(frozen=True, slots=True)
class Place:
    """After some tokens.  tokens: of reasoning.  doubtful: those that may turn out to be.
    tail: the end of the text, as the automaton reads it; in BEGINNING and HEADER all of it since the phase began.
    size: bytes of the phase, in DOUBT.  closing: tokens of the closing marker that stand at the end.
    inside: the text of reasoning that has nothing in it so far; None: it has."""

    phase: Phase
    tokens: int = 0
    doubtful: int = 0
    tail: bytes = b""
    size: int = 0
    closing: int = 0
    inside: bytes | None = None


@dataclass(frozen=True, slots=True)
class Markers:
    """As the automaton reads them (free.spelled).  close_tokens: the closing marker as the tokenizer cuts it.
    begins, ends: of headers (types.Headers) where reasoning may come again.  late: see types.Reasoning."""

    open: bytes
    close: bytes
    close_tokens: tuple[int, ...]
    begins: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Against reasoning beyond the budget.  open: against a further block, which has `open_tokens` at least before what
    is thought in it.  close: against the marker that would make reasoning of the text before it."""

    open: Bar | None = None
    open_tokens: int = 0
    close: Bar | None = None


class ThinkingGrammar:
    """types.CompiledGrammar of one request. `inner` reads the whole output, its reasoning included."""

    def __init__(
        self,
        tables: VocabTables,
        markers: Markers,
        started: bool,
        budget: int,
        inner: CompiledGrammar | None,
        bars: Bars = Bars(),
    ) -> None:
        """started: the prompt ends inside the reasoning.  budget: tokens of reasoning, its markers included."""
        self.tables, self.markers, self.inner, self.bars = tables, markers, inner, bars
        self.first = Place(Phase.REASONING, inside=b"" if markers.late else None) if started else Place(Phase.BEGINNING)
        self.limit = max(0, budget - len(markers.close_tokens))  # from here on the marker is due
        self.over = False  # set by any thread: reasoning ends now
        self.matchers: list[ThinkingMatcher] = []

    def start(self) -> ThinkingMatcher:
        matcher = ThinkingMatcher(self, None if self.inner is None else self.inner.start())
        self.matchers.append(matcher)
        return matcher

    def end(self) -> int:
        """End all reasoning as soon as may be; how many sequences were at it. May be called on any thread."""
        self.over = True
        return sum(matcher.place.phase is Phase.REASONING for matcher in list(self.matchers))

    def after(self, place: Place, token: int) -> Place:
        """Where the text stands with one more token."""
        if place.phase is Phase.ANSWER and not self.markers.begins:
            return place
        data = self.tables.bytes_of(token)
        if place.phase is Phase.REASONING:
            closing, close = place.closing, self.markers.close_tokens
            closing = closing + 1 if closing < len(close) and token == close[closing] else int(token == close[0])
            place = replace(place, tokens=place.tokens + 1, closing=closing)
        elif place.phase is not Phase.ANSWER:
            place = replace(place, doubtful=place.doubtful + 1)
        counted = place.phase is Phase.REASONING
        rest: bytes | None = data
        while rest is not None:
            place, rest = _STEPS[place.phase](self, place, rest)
        if place.phase is Phase.HEADER and not place.doubtful and not counted:
            return replace(place, doubtful=1)
        return place

    def due(self, place: Place) -> int | None:
        """The token of the closing marker that must come here; None: it need not."""
        if place.phase is not Phase.REASONING or not (self.over or place.tokens >= self.limit):
            return None
        waits = self.over or place.tokens == self.limit
        if waits and not place.closing and _inside_character(place.tail):
            return None
        return self.markers.close_tokens[place.closing % len(self.markers.close_tokens)]

    def barred(self, place: Place) -> np.ndarray | None:
        """Tokens that must not come, since reasoning beyond the budget would follow from them."""
        if place.phase is Phase.DOUBT:
            spent = self.over or place.tokens + place.doubtful > self.limit
            return self.bars.close.mask(place.tail) if spent and self.bars.close else None
        if place.phase not in (Phase.ANSWER, Phase.HEADER) or self.bars.open is None:
            return None
        spent = self.over or place.tokens + self.bars.open_tokens >= self.limit
        return self.bars.open.mask(place.tail) if spent else None

    # -- one phase each: where more text leads, and what of it is left for another phase; as text.thinking.Outline

    def _beginning(self, place: Place, data: bytes) -> tuple[Place, bytes | None]:
        known = place.tail + data
        begun = known.lstrip(SPACE)
        if begun.startswith(self.markers.open):
            return Place(Phase.REASONING, place.doubtful), begun[len(self.markers.open) :]
        if self.markers.open.startswith(begun):
            return replace(place, tail=known), None
        if begun.startswith(self.markers.begins):
            return Place(Phase.HEADER, doubtful=place.doubtful), known
        return Place(Phase.ANSWER), known

    def _reasoning(self, place: Place, data: bytes) -> tuple[Place, bytes | None]:
        known, close = place.tail + data, self.markers.close
        inside = None if place.inside is None else place.inside + data
        at = known.find(close)
        if at < 0:
            inside = None if inside is None or not self._may_be_empty(inside) else inside
            return replace(place, tail=known[-max(3, len(close) - 1) :], inside=inside), None
        empty = inside is not None and inside[: inside.find(close)].strip(SPACE) in (b"", self.markers.open)
        return Place(Phase.DOUBT if empty else Phase.ANSWER, place.tokens), known[at + len(close) :]

    def _may_be_empty(self, inside: bytes) -> bool:
        """Is there nothing but perhaps the opening marker once more, and the beginning of the closing one?"""
        text = inside.lstrip(SPACE)
        behind = text.removeprefix(self.markers.open).lstrip(SPACE)
        return self.markers.open.startswith(text) or self.markers.close.startswith(behind)

    def _doubt(self, place: Place, data: bytes) -> tuple[Place, bytes | None]:
        known, close = place.tail + data, self.markers.close
        at = known.find(close)
        if at >= 0:
            return Place(Phase.ANSWER, place.tokens + place.doubtful), known[at + len(close) :]
        size = place.size + len(data)
        if size > LATE:
            return Place(Phase.ANSWER, place.tokens), b""
        return replace(place, tail=known[-len(close) :], size=size), None

    def _answer(self, place: Place, data: bytes) -> tuple[Place, bytes | None]:
        known, begins = place.tail + data, self.markers.begins
        at = min((known.find(each) for each in begins if each in known), default=-1)
        if at < 0:
            keep = max((len(each) for each in begins), default=0)
            return replace(place, tail=known[-keep:] if keep else b""), None
        return Place(Phase.HEADER, place.tokens), known[at:]

    def _header(self, place: Place, data: bytes) -> tuple[Place, bytes | None]:
        known = place.tail + data
        found = [known.find(end) + len(end) for end in self.markers.ends if end in known]
        if not found:
            return replace(place, tail=known), None
        if known[: min(found)].endswith(self.markers.open):
            return Place(Phase.REASONING, place.tokens + place.doubtful), known[min(found) :]
        return Place(Phase.ANSWER, place.tokens), known[min(found) :]


_STEPS = {
    Phase.BEGINNING: ThinkingGrammar._beginning,
    Phase.REASONING: ThinkingGrammar._reasoning,
    Phase.DOUBT: ThinkingGrammar._doubt,
    Phase.ANSWER: ThinkingGrammar._answer,
    Phase.HEADER: ThinkingGrammar._header,
}


class ThinkingMatcher:
    """types.Constraint over a ThinkingGrammar. Belongs to the engine thread."""

    __slots__ = ("__weakref__", "grammar", "inner", "places")

    def __init__(self, grammar: ThinkingGrammar, inner: Constraint | None) -> None:
        self.grammar, self.inner = grammar, inner
        self.places = [grammar.first]  # the last one is where it stands

    @property
    def place(self) -> Place:
        return self.places[-1]

    @property
    def done(self) -> bool:
        return self.inner is not None and self.inner.done

    @property
    def error(self) -> str | None:
        return None if self.inner is None else self.inner.error

    def ready(self) -> bool:
        return self.inner is None or self.inner.ready()

    def fill_mask(self, out: np.ndarray) -> None:
        tables, due = self.grammar.tables, self.grammar.due(self.place)
        if due is not None:
            word, bit = divmod(int(tables.rank[due]), 32)
            if self.inner is not None:
                self.inner.fill_mask(out)
                if not out[word] >> np.uint32(bit) & 1:  # something has begun that must be complete first
                    return
            out[:] = 0
            out[word] = np.uint32(1 << bit)
        elif self.inner is not None:
            self.inner.fill_mask(out)
        else:
            out[:] = tables.any_token
        if due is None and (barred := self.grammar.barred(self.place)) is not None:
            out &= ~barred

    def accept(self, token: int) -> bool:
        """Any token, where nothing else constrains it: a mask may be older than the wish to end."""
        if self.inner is not None and not self.inner.accept(token):
            return False
        self.places.append(self.grammar.after(self.place, token))
        if len(self.places) > 2 * HISTORY:
            del self.places[: -HISTORY - 1]
        return True

    def rollback(self, count: int) -> None:
        assert 0 <= count < len(self.places), "more is taken back than was accepted"
        if count:
            del self.places[-count:]
            if self.inner is not None:
                self.inner.rollback(count)

    def forced(self) -> list[int]:
        if self.grammar.due(self.place) is not None:
            return list(self.grammar.markers.close_tokens[self.place.closing :])
        return self.inner.forced() if self.inner is not None else []


def _inside_character(tail: bytes) -> bool:
    """The text ends with the first bytes of a character."""
    for back in range(1, min(3, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:
            return byte != 0xFF and (byte >> 5 == 6 or byte >> 4 == 14 or byte >> 3 == 30) and back < _size(byte)
    return False


def _size(lead: int) -> int:
    """Bytes of the character that begins with this one."""
    return 2 if lead >> 5 == 6 else 3 if lead >> 4 == 14 else 4


def cut(tables: VocabTables, close: bytes, tokens: Sequence[int]) -> tuple[int, ...] | None:
    """The tokens of a closing marker; None where they do not write it."""
    return tuple(tokens) if tokens and close in b"".join(map(tables.bytes_of, tokens)) else None
