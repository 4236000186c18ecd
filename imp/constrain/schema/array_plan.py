"""How arrays of a set are written item by item: a state after each item, and which items may follow it.

Most sets need no more than the number of items. `contains` adds how many have matched, `uniqueItems` which values were
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from ..clock import tick
from ..errors import Code, ConstraintError
from .algebra import Algebra
from .arrays import Arrays, Contains
from .budget import too_large
from .formula import FALSE, Formula
from .literals import scalar_texts

State = tuple[int, tuple[int, ...]]  # items so far, up to where that matters; matches of each `contains`, likewise
MAX_STATES = 20_000
MAX_VALUES = 64
MAX_CONTAINS = 4
Productive = Callable[[Formula], bool]


class ArrayPlan:
    """Arrays without `contains` and `uniqueItems`: chains and a counter."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    @property
    def size(self) -> int:
        return 8 * len(self.arrays.prefix)

    def formulas(self) -> Iterator[Formula]:
        most = self.arrays.most
        yield from self.arrays.prefix[:most]
        if most is None or most > len(self.arrays.prefix):
            yield self.arrays.rest

    def exists(self, productive: Productive) -> bool:
        low = self.arrays.low
        most = self.limits(productive)[1]
        return most is None or low <= most

    def limits(self, productive: Productive) -> tuple[int, int | None]:
        """The fewest and the most items, with those no value can be left out."""
        most = self.arrays.most
        for index, formula in enumerate((*self.arrays.prefix, self.arrays.rest)):
            if most is not None and index >= most:
                break
            if not productive(formula):
                most = index
        return self.arrays.low, most


class CountedPlan:
    """Arrays with `contains`: each item is one that matches, or one that does not."""

    def __init__(self, arrays: Arrays, algebra: Algebra) -> None:
        if len(arrays.contains) > MAX_CONTAINS:
            raise too_large(f"more than {MAX_CONTAINS} 'contains' hold for one array")
        self.arrays = arrays
        self._algebra = algebra
        self._caps = [contains.low if contains.high is None else contains.high for contains in arrays.contains]
        self._high = arrays.most
        settled = max([len(arrays.prefix), arrays.low, *(contains.start for contains in arrays.contains)])
        self._last = settled if self._high is None else self._high
        states = self._last + 1
        for cap in self._caps:
            states *= cap + 1
        if states > MAX_STATES:
            raise too_large("'contains' with that many items or matches")
        self.first: State = (0, (0,) * len(arrays.contains))
        self.size = 8 * len(arrays.prefix)
        self._same_from = max([len(arrays.prefix), *(contains.start for contains in arrays.contains)])
        self._ways: dict[tuple[int, tuple[bool, ...]], list[tuple[Formula, tuple[bool, ...]]]] = {}
        self._feasible: set[State] = set()

    def items(self, state: State) -> list[tuple[Formula, State]]:
        """What may come next, with the state after it."""
        index, counts = state
        if self._high is not None and index >= self._high:
            return []
        full = tuple(count >= cap for count, cap in zip(counts, self._caps, strict=True))
        key = min(index, self._same_from), full
        if key not in self._ways:
            self._ways[key] = list(self._items(*key))
        tick(len(self._ways[key]))
        after = min(index + 1, self._last)
        return [
            (formula, (after, tuple(count + match for count, match in zip(counts, matches, strict=True))))
            for formula, matches in self._ways[key]
        ]

    def _items(self, index: int, full: tuple[bool, ...]) -> Iterator[tuple[Formula, tuple[bool, ...]]]:
        """What may come next, and which `contains` it matches. full: those that must not match once more."""
        for matches in product((False, True), repeat=len(full)):
            parts = map(self._judged, self.arrays.contains, full, matches, [index] * len(full))
            formula = self._algebra.formulas.all_of((self.arrays.item(index), *parts))
            if formula is not FALSE:
                yield formula, matches

    def _judged(self, contains: Contains, full: bool, match: bool, index: int) -> Formula:
        """What an item must be that matches, or does not."""
        everything = self._algebra.formulas.all_of(())
        if index < contains.start:
            return FALSE if match else everything
        if match:
            return FALSE if full else contains.formula
        return everything if contains.high is None else self._algebra.formulas.negation(contains.formula)

    def closes(self, state: State) -> bool:
        index, counts = state
        return index >= self.arrays.low and all(
            count >= contains.low for count, contains in zip(counts, self.arrays.contains, strict=True)
        )

    def formulas(self) -> Iterator[Formula]:
        for index in range(min(self._last, len(self.arrays.prefix)) + 1):
            for counts in product(*({0, cap} for cap in self._caps)):
                yield from (formula for formula, _ in self.items((index, counts)))

    def exists(self, productive: Productive) -> bool:
        """Also finds out from which states an array can be finished."""
        self._feasible = set()
        states = [
            (index, counts)
            for index in range(self._last, -1, -1)
            for counts in product(*(range(cap, -1, -1) for cap in self._caps))
        ]
        changed = True
        while changed:
            changed = False
            for state in states:
                if state not in self._feasible and (
                    self.closes(state) or any(s in self._feasible and productive(f) for f, s in self.items(state))
                ):
                    self._feasible.add(state)
                    changed = changed or self._high is None
        return self.first in self._feasible

    def is_feasible(self, state: State) -> bool:
        return state in self._feasible


class UniquePlan:
    """Arrays whose items are of a finite set and all different."""

    def __init__(self, arrays: Arrays, algebra: Algebra) -> None:
        self.arrays = arrays
        self._values = [_finite(algebra, formula) for formula in arrays.prefix]
        self._rest = _finite(algebra, arrays.rest)
        if arrays.contains or self._rest is None or any(values is None for values in self._values):
            raise ConstraintError(
                Code.UNSUPPORTED,
                arrays.unique or "",
                f"'uniqueItems' needs items of at most {MAX_VALUES} known values (enum, const, a short range)",
                "leave it out or list the values",
            )
        self.size = sum(map(len, self._at(0)))

    def formulas(self) -> Iterator[Formula]:
        return iter(())

    def items(self, used: tuple[bytes, ...]) -> list[bytes]:
        """The values that may come next."""
        most = self.arrays.most
        if most is not None and len(used) >= most:
            return []
        following = [value for value in self._at(len(used)) if value not in used]
        return [value for value in following if self._can_finish((*used, value))]

    def exists(self, productive: Productive) -> bool:
        most = self.arrays.most
        return (most is None or self.arrays.low <= most) and self._can_finish(())

    def _at(self, index: int) -> list[bytes]:
        values = self._values[index] if index < len(self._values) else self._rest
        assert values is not None
        return values

    def _can_finish(self, used: tuple[bytes, ...]) -> bool:
        """Different unused values for all places up to the least length: a matching, by augmenting paths."""
        taken: dict[bytes, int] = {}

        def place(index: int, tried: set[bytes]) -> bool:
            tick(8)
            for value in self._at(index):
                if value in used or value in tried:
                    continue
                tried.add(value)
                if value not in taken or place(taken[value], tried):
                    taken[value] = index
                    return True
            return False

        if self.arrays.low > len(self._values) + MAX_VALUES:
            return False
        if len(used) >= len(self._values):  # all places are alike
            return self.arrays.low - len(used) <= sum(value not in used for value in self._at(len(used)))
        return all(place(index, set()) for index in range(len(used), self.arrays.low))


def plan_array(arrays: Arrays, algebra: Algebra) -> ArrayPlan | CountedPlan | UniquePlan:
    tick(2)
    if arrays.unique is not None and not _surely_different(arrays, algebra):
        return UniquePlan(arrays, algebra)
    return CountedPlan(arrays, algebra) if arrays.contains else ArrayPlan(arrays)


def _surely_different(arrays: Arrays, algebra: Algebra) -> bool:
    """Whether no two items can be equal: at most one of them, or a tuple of values that have nothing in common."""
    most = arrays.most
    if most is None or most > MAX_VALUES:
        return False
    items = [arrays.item(index) for index in range(most)]
    both = algebra.formulas.all_of
    return all(algebra.surely_empty(both((a, b))) for i, a in enumerate(items) for b in items[:i])


def _finite(algebra: Algebra, formula: Formula) -> list[bytes] | None:
    """The JSON texts of all values; None where they are not few and known."""
    return scalar_texts(algebra.expand(formula), MAX_VALUES)
