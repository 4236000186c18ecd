"""Regular languages: sets of texts with union, intersection, difference, complement, and the automaton of a string."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from . import dfa as automata
from . import expr, regex
from .charset import ALL, CharSet, Encoding, json_template, template
from .dfa import Dfa
from .errors import Code, ConstraintError
from .nfa import UNBOUNDED, Nfa
from .texts import counted, free, plain, run

KEPT = 16  # lengths


@dataclass(frozen=True)
class Language:
    """A regular set of texts over Unicode scalar values. Equal languages are equal values; operations are cached."""

    dfa: Dfa

    @staticmethod
    def everything() -> Language:
        return _intern(Dfa((ALL,), ((0,),), (True,)))

    @staticmethod
    def nothing() -> Language:
        return _intern(Dfa((ALL,), ((0,),), (False,)))

    @staticmethod
    def of(texts: Iterable[str]) -> Language:
        """Exactly these texts."""
        return _of(tuple(texts))

    @staticmethod
    def pattern(pattern: str, search: bool = True) -> Language:
        """The texts in which a regular expression matches somewhere, or without `search` as a whole.

        Raises RegexError, or ConstraintError TOO_LARGE.
        """
        return _pattern(pattern, search)

    @staticmethod
    def lengths(low: int, high: int = UNBOUNDED) -> Language:
        """All texts of low to high code points; one state a code point, so for small bounds."""
        return _lengths(low, high)

    def __and__(self, other: Language) -> Language:
        if self.is_everything or other.is_empty or self == other:
            return other
        if other.is_everything or self.is_empty:
            return self
        return _intersection(self, other)

    def __or__(self, other: Language) -> Language:
        return ~(~self & ~other)

    def __invert__(self) -> Language:
        return _intern(automata.complement(self.dfa))

    def __sub__(self, other: Language) -> Language:
        return self & ~other

    def __le__(self, other: Language) -> bool:
        """Is this a subset?"""
        return (self - other).is_empty

    @property
    def is_empty(self) -> bool:
        return not any(self.dfa.accepts)

    @property
    def is_everything(self) -> bool:
        return all(self.dfa.accepts)

    @cached_property
    def _columns(self) -> tuple[list[int], list[int], list[int]]:
        """First and last code points of all ranges, sorted, and the class of each."""
        spans = sorted((*span, at) for at, chars in enumerate(self.dfa.classes) for span in chars.ranges)
        return [first for first, _, _ in spans], [last for _, last, _ in spans], [at for _, _, at in spans]

    def accepts(self, text: str) -> bool:
        starts, ends, columns = self._columns
        state = 0
        for char in text:
            at = bisect_right(starts, ord(char)) - 1
            if ord(char) > ends[at]:
                return False  # a surrogate
            state = self.dfa.rows[state][columns[at]]
        return self.dfa.accepts[state]

    @cached_property
    def _run(self) -> tuple[CharSet, int, int] | None:
        return run(self.dfa)

    @property
    def size(self) -> int:
        """Nodes that read a text of it, about."""
        return len(self.dfa.rows) * sum(len(chars.ranges) for chars in self.dfa.classes)

    @property
    def min_length(self) -> int | None:
        """Code points of the shortest text; None if there is none."""
        return self.dfa.fewest[0]

    @property
    def max_length(self) -> int:
        """Code points of the longest text, 0 if there is none, UNBOUNDED without an end."""
        return self.dfa.longest

    def at_least(self, low: int) -> Language:
        """The texts of `low` or more code points; known as long as this language is, since it may be large."""
        if low <= (self.min_length or 0):
            return self
        if low not in self._longer:
            if len(self._longer) == KEPT:
                self._longer.clear()
            self._longer[low] = self & Language.lengths(low)
        return self._longer[low]

    @cached_property
    def _longer(self) -> dict[int, Language]:
        return {}

    def has_length(self, low: int, high: int = UNBOUNDED) -> bool:
        """Is there a text of low to high code points?"""
        if self._run is not None:
            _, least, most = self._run
            return all(low <= last or last == UNBOUNDED for last in (high, most)) and (
                high == UNBOUNDED or least <= high
            )
        if high == self.max_length == UNBOUNDED:
            return True
        shortest = None if UNBOUNDED < self.max_length < low else self.at_least(low).min_length
        return shortest is not None and (high == UNBOUNDED or shortest <= high)

    def finite(self, limit: int) -> tuple[str, ...] | None:
        """All texts, sorted, if there are at most `limit`; else None."""
        found: list[str] = []
        stack = [("", 0)] if not self.is_empty else []
        longest = self.max_length
        while stack and longest != UNBOUNDED:
            text, state = stack.pop()
            if self.dfa.accepts[state]:
                found.append(text)
            moves = [(target, chars) for target, chars in self.dfa.targets[state]]
            if len(found) + len(stack) + sum(len(chars) for _, chars in moves) > limit:
                return None
            stack += [(text + chr(code), target) for target, chars in moves for code in chars]
        return None if longest == UNBOUNDED else tuple(sorted(found))

    def emit(
        self,
        nfa: Nfa,
        after: int,
        encoding: Encoding,
        low: int = 0,
        high: int = UNBOUNDED,
        escapes: bool = False,
    ) -> int:
        """A node that reads a text of the language with low to high code points, then goes on at `after`.

        Every text is read in one spelling; with `escapes`, which needs the encoding JSON and the language of
        everything, in each that RFC 8259 allows. No prefix is let through that cannot be completed.
        Raises ConstraintError: UNSATISFIABLE when no text fits, TOO_LARGE.
        """
        if escapes and not (encoding is Encoding.JSON and self.is_everything):
            raise ValueError("escapes in every spelling are for JSON strings without a pattern")
        if not self.has_length(low, high):
            raise ConstraintError(Code.UNSATISFIABLE, "", "no text fulfils this")
        if escapes:
            return free(nfa, after, json_template(), low, high)
        if self._run is not None:
            chars, least, most = self._run
            upper = most if high == UNBOUNDED else high if most == UNBOUNDED else min(high, most)
            return free(nfa, after, template(chars, encoding), max(low, least), upper)
        dfa = self.at_least(low).dfa
        if high == UNBOUNDED or UNBOUNDED < dfa.longest <= high:
            return plain(nfa, after, dfa, encoding)
        return counted(nfa, after, dfa, encoding, high)


@lru_cache(maxsize=256)
def _intern(dfa: Dfa) -> Language:
    return Language(dfa)


@lru_cache(maxsize=128)
def _pattern(pattern: str, search: bool) -> Language:
    return _intern(automata.from_expr(regex.parse(pattern), search))


@lru_cache(maxsize=64)
def _of(texts: tuple[str, ...]) -> Language:
    return _intern(automata.from_texts(texts))


@lru_cache(maxsize=64)
def _lengths(low: int, high: int) -> Language:
    return _intern(automata.from_expr(expr.repeat(expr.Chars(ALL), low, high)))


@lru_cache(maxsize=128)
def _intersection(left: Language, right: Language) -> Language:
    return _intern(automata.intersection(left.dfa, right.dfa))
