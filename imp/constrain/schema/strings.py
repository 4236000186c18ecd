"""Sets of strings as a schema can describe them: a regular language with a length, or a finite set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..clock import tick
from ..language import Language
from ..nfa import UNBOUNDED

EVERYTHING = Language.everything()


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of the language with `low` to `high` code points; or, with `values`, exactly these, in this order."""

    language: Language = EVERYTHING
    low: int = 0
    high: int | None = None
    values: tuple[str, ...] | None = None

    def __contains__(self, text: str) -> bool:
        if self.values is not None:
            return text in self.values
        fits = self.low <= len(text) and (self.high is None or len(text) <= self.high)
        return fits and (self.language.is_everything or self.language.accepts(text))

    def __and__(self, other: Strings) -> Strings:
        if self.values is not None:
            return Strings(values=tuple(self._shared(self.values, other)))
        if other.values is not None:
            return other & self
        highs = [high for high in (self.high, other.high) if high is not None]
        return Strings(self.language & other.language, max(self.low, other.low), min(highs, default=None))

    @staticmethod
    def _shared(values: tuple[str, ...], other: Strings) -> Iterator[str]:
        known = None if other.values is None else frozenset(other.values)
        for text in values:
            tick(1 + len(text) // 4)
            if text in (other if known is None else known):
                yield text

    def complement(self) -> list[Strings]:
        """Sets whose union is every string that is not in this one."""
        if self.values is not None:
            return [Strings(~Language.of(self.values))]
        parts = [] if self.language.is_everything else [Strings(~self.language)]
        if self.low:
            parts.append(Strings(high=self.low - 1))
        if self.high is not None:
            parts.append(Strings(low=self.high + 1))
        return parts

    @property
    def is_empty(self) -> bool:
        if self.values is not None:
            return not self.values
        if self.high is not None and self.low > self.high:
            return True
        if self.language.is_everything:
            return False
        return self.language.is_empty or not self.language.has_length(self.low, unbounded(self.high))

    @property
    def size(self) -> int:
        """Nodes that read them, about."""
        if self.values is not None:
            return sum(map(len, self.values))
        return self._counted().size

    def prepare(self) -> None:
        """Find out now whether its automaton is too large."""
        if self.values is None:
            self._counted()

    def _counted(self) -> Language:
        """What an automaton is made of. Characters of any text are counted by a counter."""
        return self.language if self.language.is_everything else self.language.at_least(self.low)

    def finite(self, limit: int) -> tuple[str, ...] | None:
        """All members if there are at most `limit` and they are known."""
        if self.values is None:
            return None
        return self.values if len(self.values) <= limit else None


def as_language(sets: Iterable[Strings]) -> Language:
    """The union as one language, lengths included; ConstraintError where that is too large."""
    union = Language.nothing()
    for strings in sets:
        if strings.values is not None:
            part = Language.of(strings.values)
        elif strings.low == 0 and strings.high is None:
            part = strings.language
        else:
            part = strings.language & Language.lengths(strings.low, unbounded(strings.high))
        union = union | part
    return union


def unbounded(high: int | None) -> int:
    return UNBOUNDED if high is None else high
