"""Reasoning that is ended: at a budget, or when somebody asks for it. What follows may have a constraint of its own.

Tokens are counted as text.decode counts them, from the first one of the output to the one that ends the closing marker.
Where the marker just fits into what is left of the budget, its tokens are the only ones that may come; one token later
where the text stands in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..types import CompiledGrammar, Constraint
from .vocab import VocabTables

HISTORY = 512  # steps that can be taken back, and some more


class Phase(Enum):
    """Where a text stands."""

    BEGINNING = 0  # it may still begin with the opening marker
    REASONING = 1
    ANSWER = 2


@dataclass(frozen=True, slots=True)
class Place:
    """After some tokens.  tail: the end of the text, as the automaton reads it.  closing: tokens of the closing marker
    that stand at the end."""

    phase: Phase
    tokens: int = 0
    tail: bytes = b""
    closing: int = 0


@dataclass(frozen=True, slots=True)
class Markers:
    """As the automaton reads them (free.spelled).  close_tokens: the closing marker as the tokenizer cuts it."""

    open: bytes
    close: bytes
    close_tokens: tuple[int, ...]


class ThinkingGrammar:
    """types.CompiledGrammar of one request. `inner` reads the whole output, its reasoning included."""

    def __init__(
        self, tables: VocabTables, markers: Markers, started: bool, budget: int, inner: CompiledGrammar | None
    ) -> None:
        """started: the prompt ends inside the reasoning.  budget: tokens of reasoning, its markers included."""
        self.tables, self.markers, self.inner = tables, markers, inner
        self.first = Place(Phase.REASONING if started else Phase.BEGINNING)
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
        if place.phase is Phase.ANSWER:
            return place
        closing, close = place.closing, self.markers.close_tokens
        closing = closing + 1 if closing < len(close) and token == close[closing] else int(token == close[0])
        place = Place(place.phase, place.tokens + 1, place.tail + self.tables.bytes_of(token), closing)
        if place.phase is Phase.BEGINNING:
            place = self._opened(place)
        if place.phase is not Phase.REASONING:
            return place
        if self.markers.close in place.tail:
            return replace(place, phase=Phase.ANSWER)
        return replace(place, tail=place.tail[-max(3, len(self.markers.close) - 1) :])

    def _opened(self, place: Place) -> Place:
        begun = place.tail.lstrip()
        if begun.startswith(self.markers.open):
            return replace(place, phase=Phase.REASONING)
        return place if self.markers.open.startswith(begun) else replace(place, phase=Phase.ANSWER)

    def due(self, place: Place) -> int | None:
        """The token of the closing marker that must come here; None: it need not."""
        if place.phase is not Phase.REASONING or not (self.over or place.tokens >= self.limit):
            return None
        waits = self.over or place.tokens == self.limit
        if waits and not place.closing and _inside_character(place.tail):
            return None
        return self.markers.close_tokens[place.closing % len(self.markers.close_tokens)]


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

    def fill_mask(self, out: np.ndarray) -> None:
        tables, due = self.grammar.tables, self.grammar.due(self.place)
        if due is not None:
            out[:] = 0
            bit = int(tables.rank[due])
            out[bit // 32] = np.uint32(1 << bit % 32)
        elif self.inner is not None:
            self.inner.fill_mask(out)
        else:
            out[:] = tables.any_token

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
