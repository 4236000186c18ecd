"""Before the first token: every value a schema can lead to is looked at, so that what will be refused is refused now.

It is found out, too, which values exist at all. A value exists if it can be finished: a list that must hold itself
cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .algebra import Algebra, InProgress
from .array_plan import ArrayPlan, CountedPlan, Productive, UniquePlan, plan_array
from .budget import COMBINATIONS, FORMULAS, Budget, too_large
from .formula import Formula
from .number_text import is_empty as no_number
from .number_text import prepare as prepare_numbers
from .object_plan import ObjectPlan
from .parse import reference_in, self_reference
from .plain import ALWAYS
from .shape import Shape

Plan = ArrayPlan | CountedPlan | UniquePlan | ObjectPlan


@dataclass(slots=True)
class Value:
    """One value as it will be written: a shape, with plans for its arrays and objects."""

    shape: Shape
    plans: list[Plan]  # once all is known, of those that exist
    has_scalars: bool

    @property
    def size(self) -> int:
        """Nodes its rule has, about, without those of the values in it."""
        return sum(each.size for each in (*self.shape.strings, *self.shape.numbers, *self.plans))


class Reachable:
    """All values a formula leads to. `exists` says which of them can be finished."""

    def __init__(self, algebra: Algebra, budget: Budget, any_order: bool, source: object = None) -> None:
        """source: what the algebra asks; lives as long as this. Plans refer to a set, not to this, so that nothing here
        waits for a collection of garbage."""
        self._source = source
        self._algebra, self._budget, self._any_order = algebra, budget, any_order
        self._values: dict[Formula, Value] = {}
        self._existing: set[Formula] = set(ALWAYS)
        self._exists: Productive = self._existing.__contains__

    def add(self, root: Formula) -> None:
        """Look at this formula and everything below it. Raises ConstraintError for what is not supported."""
        new: dict[Formula, None] = {root: None}
        order = []
        while new:
            formula = new.popitem()[0]
            if formula in self._values or formula in ALWAYS:
                continue
            if len(self._values) >= FORMULAS:
                raise too_large(f"the schema describes more than {FORMULAS} different values")
            value = self._values[formula] = self._look(formula)
            order.append(formula)
            for plan in value.plans:
                self._budget.spend()
                new.update(dict.fromkeys(below for below in plan.formulas() if below not in self._values))
        self._find_existing(order)

    def _look(self, formula: Formula) -> Value:
        try:
            return self._value(self._algebra.expand(formula))
        except InProgress as loop:
            raise self_reference(reference_in(loop.formula)) from None

    def _value(self, shape: Shape) -> Value:
        if len(shape.arrays) + len(shape.objects) > COMBINATIONS:
            raise too_large(f"one value has more than {COMBINATIONS} kinds of arrays and objects")
        plans: list[Plan] = [plan_array(arrays, self._algebra) for arrays in shape.arrays]
        plans += [ObjectPlan(objects, self._algebra, self._any_order) for objects in shape.objects]
        for numbers in shape.numbers:
            prepare_numbers(numbers)
        for strings in shape.strings:
            strings.prepare()
        scalars = bool(
            shape.null
            or shape.booleans
            or any(not no_number(numbers) for numbers in shape.numbers)
            or any(not strings.is_empty for strings in shape.strings)
        )
        return Value(shape, plans, scalars)

    def _find_existing(self, order: list[Formula]) -> None:
        """The least fixpoint, from the values that need no others."""
        waiting = list(reversed(order))
        changed = True
        while changed:
            changed = False
            left = []
            for formula in waiting:
                self._budget.spend()
                value = self._values[formula]
                if value.has_scalars or any(plan.exists(self._exists) for plan in value.plans):
                    self._existing.add(formula)
                    changed = True
                else:
                    left.append(formula)
            waiting = left
        for formula in order:  # with all that is known now
            self._settle(self._values[formula])

    def exists(self, formula: Formula) -> bool:
        return formula in self._existing

    def value(self, formula: Formula) -> Value:
        value = self._values.get(formula)
        if value is None:  # one of ALWAYS
            value = self._values[formula] = self._look(formula)
            self._settle(value)
        return value

    def existing(self) -> Iterator[tuple[Formula, Value]]:
        return ((formula, value) for formula, value in self._values.items() if formula in self._existing)

    def _settle(self, value: Value) -> None:
        value.plans = [plan for plan in value.plans if plan.exists(self._exists)]
