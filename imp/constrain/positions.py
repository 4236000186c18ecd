"""Positions of an expression: Glushkov's construction, with contexts, so that anchors are exact.

Every character set in the expression is a position, a repetition's rounds have positions of their own, and the result
says which position may follow which, may be last, and in which contexts: pairs of what stands before and after.
Sets of positions are integers, one bit each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import expr as e
from .charset import NONE, CharSet
from .clock import tick
from .errors import too_large
from .expr import EVERYWHERE, Expr

MAX_POSITIONS = 20_000
MAX_LINKS = 500_000  # of one position to a set of others

Guarded = dict[int, int]  # contexts -> set of positions


def bits(positions: int) -> Iterator[int]:
    while positions:
        lowest = positions & -positions
        yield lowest.bit_length() - 1
        positions ^= lowest


def _merged(left: Guarded, right: Guarded, contexts: int = EVERYWHERE) -> Guarded:
    """left, and right where `contexts` allow."""
    merged = dict(left)
    for guard, positions in right.items():
        if guard & contexts:
            merged[guard & contexts] = merged.get(guard & contexts, 0) | positions
    return merged


def _shifted(guarded: Guarded, by: int) -> Guarded:
    return {guard: positions << by for guard, positions in guarded.items()}


@dataclass(slots=True)
class _Part:
    """An expression as positions: which can be first and last, in which contexts it matches nothing at all."""

    empty: int
    first: Guarded
    last: Guarded
    start: int = 0  # the first of its positions; they go on to the newest, since the leaves are built left to right


class Positions:
    """Glushkov's construction; position 0 is the beginning of the text."""

    def __init__(self, expr: Expr) -> None:
        self.sets: list[CharSet] = [NONE]
        self.follow: list[Guarded] = [{}]
        self.links = 0
        whole: _Part = e.fold(expr, self.combine)
        self.follow[0] = whole.first
        self.last = _merged(whole.last, {whole.empty: 1}) if whole.empty else whole.last

    def combine(self, node: Expr, below: list[_Part]) -> _Part:
        start = below[0].start if below else len(self.sets)
        part = self.part(node, below)
        part.start = start
        return part

    def part(self, node: Expr, below: list[_Part]) -> _Part:
        if isinstance(node, e.Chars):
            mark = {EVERYWHERE: 1 << self.new(node.chars)}
            return _Part(0, mark, mark)
        if isinstance(node, e.Assert):
            return _Part(node.contexts, {}, {})
        if isinstance(node, e.Concat):
            return self.joined(below)
        if isinstance(node, e.Alternate):
            return _either(below)
        if isinstance(node, e.Repeat):
            return self.repeated(below[0], node.low, node.high)
        raise TypeError(f"{type(node).__name__} is no part of a regular expression")

    def new(self, chars: CharSet) -> int:
        if len(self.sets) >= MAX_POSITIONS:
            raise too_large(f"more than {MAX_POSITIONS} characters, with repetitions written out")
        self.sets.append(chars)
        self.follow.append({})
        return len(self.sets) - 1

    def link(self, lasts: Guarded, firsts: Guarded) -> None:
        for leaving, sources in lasts.items():
            for entering, targets in firsts.items():
                guard = leaving & entering
                if guard:
                    self.links += sources.bit_count()
                    tick(sources.bit_count())
                    if self.links > MAX_LINKS:
                        raise too_large("the parts of the pattern can follow each other in too many ways")
                    for source in bits(sources):
                        follow = self.follow[source]
                        follow[guard] = follow.get(guard, 0) | targets

    def joined(self, parts: Sequence[_Part]) -> _Part:
        whole = _Part(EVERYWHERE, {}, {})
        for part in parts:
            self.link(whole.last, part.first)
            whole.first = _merged(whole.first, part.first, whole.empty)
            whole.last = _merged(part.last, whole.last, part.empty)
            whole.empty &= part.empty
        return whole

    def repeated(self, body: _Part, low: int, high: int) -> _Part:
        size = len(self.sets) - body.start
        if body.empty == EVERYWHERE:
            low = 0  # rounds may be empty, so fewer are as good
        if size == 0 or high == 0:  # nothing but assertions: once is as good as often
            return _Part(EVERYWHERE if low == 0 else body.empty, {}, {})
        count = max(low, 1) if high < 0 else high
        if len(self.sets) + size * (count - 1) > MAX_POSITIONS:
            raise too_large(f"more than {MAX_POSITIONS} characters, with repetitions written out")
        parts = [body, *(self.copy(body, size, round * size) for round in range(1, count))]
        if high < 0:
            self.link(parts[-1].last, parts[-1].first)
        required, rest = parts[:low], parts[low:]
        return self.joined([*required, self.nested(rest)]) if rest else self.joined(required)

    def copy(self, body: _Part, size: int, by: int) -> _Part:
        """The body, `size` positions, once more on positions that lie `by` further on."""
        tick(size)
        self.sets += self.sets[body.start : body.start + size]
        self.follow += [_shifted(follow, by) for follow in self.follow[body.start : body.start + size]]
        return _Part(body.empty, _shifted(body.first, by), _shifted(body.last, by))

    def nested(self, rounds: Sequence[_Part]) -> _Part:
        """(X(X(X)?)?)?: rounds that may end after each; none needs to be skipped to reach the next."""
        whole = _Part(EVERYWHERE, {}, {})
        for part in reversed(rounds):
            self.link(part.last, whole.first)
            whole.first = part.first
            whole.last = _merged(part.last, whole.last)
        return whole


def _either(parts: Sequence[_Part]) -> _Part:
    whole = _Part(0, {}, {})
    for part in parts:
        whole.empty |= part.empty
        tick(1 + part.start // 4096)
        whole.first = _merged(whole.first, part.first)
        whole.last = _merged(whole.last, part.last)
    return whole
