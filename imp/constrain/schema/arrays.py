"""Sets of arrays as a schema can describe them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .formula import FALSE, TRUE, Formula, Formulas


@dataclass(frozen=True, slots=True)
class Contains:
    """`low` to `high` of the items from number `start` on are what `formula` says."""

    formula: Formula
    start: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of `low` to `high` items: the first as `prefix` says, the others as `rest` does."""

    prefix: tuple[Formula, ...] = ()
    rest: Formula = TRUE
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: str | None = None  # no two are equal; where the schema says so

    def item(self, index: int) -> Formula:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    @property
    def most(self) -> int | None:
        """The upper bound, with items that cannot be taken into account."""
        impossible = next((i for i, formula in enumerate((*self.prefix, self.rest)) if formula is FALSE), None)
        bounds = [bound for bound in (self.high, impossible) if bound is not None]
        return min(bounds, default=None)

    def and_(self, other: Arrays, formulas: Formulas) -> Arrays:
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(formulas.all_of((self.item(i), other.item(i))) for i in range(length))
        highs = [high for high in (self.high, other.high) if high is not None]
        return Arrays(
            prefix,
            formulas.all_of((self.rest, other.rest)),
            max(self.low, other.low),
            min(highs, default=None),
            tuple(dict.fromkeys((*self.contains, *other.contains))),
            self.unique or other.unique,
        )

    def complement(self, formulas: Formulas) -> Iterator[Arrays]:
        """Sets whose union is every array that is not in this one. Not for `unique` ones."""
        assert self.unique is None
        if self.low:
            yield Arrays(high=self.low - 1)
        if self.high is not None:
            yield Arrays(low=self.high + 1)
        for index, formula in enumerate(self.prefix):
            if (wrong := formulas.negation(formula)) is not FALSE:
                yield Arrays((*[TRUE] * index, wrong), low=index + 1)
        if (wrong := formulas.negation(self.rest)) is not FALSE:
            if wrong is TRUE:
                yield Arrays(low=len(self.prefix) + 1)
            else:
                yield Arrays(contains=(Contains(wrong, len(self.prefix), 1, None),))
        for contained in self.contains:
            if contained.low:
                yield Arrays(contains=(replace(contained, low=0, high=contained.low - 1),))
            if contained.high is not None:
                yield Arrays(contains=(replace(contained, low=contained.high + 1, high=None),))


EVERY_ARRAY = Arrays()
