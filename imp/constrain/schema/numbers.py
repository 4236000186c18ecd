"""Sets of numbers as a schema can describe them: ranges, multiples, finite sets, and what negation makes of these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ..clock import tick

ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers for which every field holds. `values`: these alone. `plain` is about spelling: without fraction."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    step: Fraction | None = None  # multiples of this
    unsteps: frozenset[Fraction] = frozenset()  # and of none of these
    excluded: frozenset[Fraction] = frozenset()
    values: frozenset[Fraction] | None = None
    plain: bool = False

    def __contains__(self, value: Fraction) -> bool:
        return (
            (self.low is None or value > self.low or (value == self.low and not self.low_open))
            and (self.high is None or value < self.high or (value == self.high and not self.high_open))
            and (self.step is None or (value / self.step).denominator == 1)
            and all((value / step).denominator != 1 for step in self.unsteps)
            and value not in self.excluded
            and (self.values is None or value in self.values)
        )

    def __and__(self, other: Numbers) -> Numbers:
        low, low_open = _higher(self.low, self.low_open, other.low, other.low_open)
        high, high_open = _lower(self.high, self.high_open, other.high, other.high_open)
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        both = Numbers(
            low,
            low_open,
            high,
            high_open,
            _common_step(self.step, other.step),
            self.unsteps | other.unsteps,
            self.excluded | other.excluded,
            values,
            self.plain or other.plain,
        )
        return both if values is None else finite(both._members(values), both.plain)

    def _members(self, values: Iterable[Fraction]) -> Iterator[Fraction]:
        for value in values:
            tick(4)
            if value in self:
                yield value

    def complement(self) -> list[Numbers]:
        """Sets whose union is every number that is not in this one."""
        if self.values is not None:
            return [Numbers(excluded=self.values)]
        parts = [finite(self.excluded, plain=False)] if self.excluded else []
        if self.low is not None:
            parts.append(Numbers(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            parts.append(Numbers(low=self.high, low_open=not self.high_open))
        if self.step is not None:
            parts.append(Numbers(unsteps=frozenset([self.step])))
        return parts + [Numbers(step=step) for step in sorted(self.unsteps)]

    @property
    def size(self) -> int:
        """Nodes that read them, about, without those that are written when they are reached."""
        digits = sum(len(str(bound)) for bound in (self.low, self.high) if bound is not None)
        return 10 * (len(self.values or ()) + digits) + 40 * len(self.excluded)

    @property
    def is_surely_empty(self) -> bool:
        """True is a proof; False may be wrong where `unsteps` or `excluded` take the last number away."""
        if self.values is not None:
            return not self.values
        if self.step is not None and any((self.step / step).denominator == 1 for step in self.unsteps):
            return True
        if self.low is None or self.high is None:
            return False
        if self.step is None:
            return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))
        return self.first_multiple() > self.last_multiple()

    @property
    def has_an_obvious_member(self) -> bool:
        """True is a proof; False is none."""
        step = self.step or ONE
        starts = [Fraction(0), *(bound for bound in (self.low, self.high) if bound is not None)]
        if self.low is not None:
            starts.append(math.ceil(self.low / step) * step)
        near = (Fraction(0), ONE / 2, ONE, Fraction(1, 10), *(k * step for k in range(1, 8)))
        return any(start + sign * distance in self for start in starts for distance in near for sign in (1, -1))

    def first_multiple(self) -> int:
        """The least k with k * step within the lower bound."""
        assert self.low is not None and self.step is not None
        k = math.ceil(self.low / self.step)
        return k + 1 if self.low_open and k * self.step == self.low else k

    def last_multiple(self) -> int:
        assert self.high is not None and self.step is not None
        k = math.floor(self.high / self.step)
        return k - 1 if self.high_open and k * self.step == self.high else k

    def finite(self, limit: int) -> list[Fraction] | None:
        """All members, ascending, if there are at most `limit`; None: more, or not known."""
        if self.values is not None:
            return sorted(self.values) if len(self.values) <= limit else None
        if self.low is not None and self.low == self.high:
            return [self.low] if self.low in self else []
        if self.step is None or self.low is None or self.high is None:
            return None
        first, last = self.first_multiple(), self.last_multiple()
        if last - first >= limit:
            return None
        return [value for k in range(first, last + 1) if (value := k * self.step) in self]

    def without_exclusions(self) -> list[Numbers]:
        """The same set as ranges between the excluded points."""
        parts, rest = [], replace(self, excluded=frozenset())
        for point in sorted(self.excluded):
            below = rest & Numbers(high=point, high_open=True)
            if not below.is_surely_empty:
                parts.append(below)
            rest = rest & Numbers(low=point, low_open=True)
        return parts if rest.is_surely_empty else [*parts, rest]


def finite(values: Iterable[Fraction], plain: bool) -> Numbers:
    return Numbers(values=frozenset(values), plain=plain)


def _higher(a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool) -> tuple[Fraction | None, bool]:
    if b is None or (a is not None and a > b):
        return a, a_open
    return b, b_open or (a == b and a_open)


def _lower(a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool) -> tuple[Fraction | None, bool]:
    if b is None or (a is not None and a < b):
        return a, a_open
    return b, b_open or (a == b and a_open)


def _common_step(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    """The least common multiple: a number is a multiple of both exactly if it is one of this."""
    if a is None or b is None or a == b:
        return b if a is None else a
    return Fraction(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


EVERY_NUMBER = Numbers()
INTEGERS = Numbers(step=ONE, plain=True)
