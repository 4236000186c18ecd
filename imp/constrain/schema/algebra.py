"""And, or and not over shapes, and from formulas to shapes. The normal form: a union of sets for each type of JSON.

`one` of several schemas is the union of each without the others; from what provably shares no value with another
nothing is taken away, and that is the rule. Work is counted, and nothing is done twice for equal formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..errors import Code, ConstraintError
from .arrays import EVERY_ARRAY, Arrays
from .budget import COMBINATIONS, Budget, too_large
from .formula import FALSE, TRUE, Formula, Formulas, Kind
from .number_text import is_empty as no_number
from .numbers import EVERY_NUMBER, Numbers
from .objects import EVERY_OBJECT, Objects, merged
from .plain import BY_KEY
from .shape import ANYTHING, EVERY_STRING, NOTHING, Shape
from .strings import Strings

Member = TypeVar("Member")

PROOF_DEPTH = 12  # how deep into values a proof of emptiness looks


class InProgress(Exception):
    """A formula's shape depends on itself."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula


class Algebra:
    """Shapes of formulas. `resolve` gives the formula of the schema a reference leads to."""

    def __init__(self, resolve: Callable[[Formula], Formula], budget: Budget) -> None:
        self.formulas = Formulas(BY_KEY)
        self._resolve, self._budget = resolve, budget
        self._shapes: dict[Formula, Shape] = {TRUE: ANYTHING, FALSE: NOTHING}
        self._busy: dict[Formula, None] = {}
        self._empty: dict[Formula, bool] = {TRUE: False, FALSE: True}
        self._proving: set[Formula] = set()

    def shape(self, shape: Shape) -> Formula:
        """The formula for values that look like this."""
        if shape == ANYTHING:
            return TRUE
        return FALSE if shape == NOTHING else self.formulas.holding(Kind.SHAPE, shape)

    def expand(self, formula: Formula) -> Shape:
        """What values look like for which the formula holds. Raises InProgress, and ConstraintError TOO_LARGE."""
        known = self._shapes.get(formula)
        if known is not None:
            return known
        if formula in self._busy:
            raise InProgress(formula)
        self._budget.spend()
        self._busy[formula] = None
        try:
            shape = self._shapes[formula] = self._expand(formula)
        finally:
            del self._busy[formula]
        return shape

    def _expand(self, formula: Formula) -> Shape:
        match formula.kind:
            case Kind.SHAPE:
                assert isinstance(formula.held, Shape)
                return formula.held
            case Kind.REFERENCE:
                return self.expand(self._resolve(formula))
            case Kind.ALL:
                return self._all(formula.args)
            case Kind.ANY:
                return self._union(map(self.expand, formula.args))
            case Kind.NOT:
                return self._difference(ANYTHING, self.expand(formula.args[0]))
        return self._exactly_one([self.expand(arg) for arg in formula.args])

    def _all(self, args: Iterable[Formula]) -> Shape:
        """In their order: names of members come in the order in which schemas speak of them."""
        result = ANYTHING
        for arg in args:
            if arg.kind is Kind.NOT:
                result = self._difference(result, self.expand(arg.args[0]))
            else:
                result = self.intersect(result, self.expand(arg))
            if result == NOTHING:
                break
        return result

    def _exactly_one(self, shapes: list[Shape]) -> Shape:
        """The union of each without the others."""
        parts = []
        for i, shape in enumerate(shapes):
            self._budget.spend(len(shapes))
            for j, other in enumerate(shapes):
                if i != j and share_a_type(shape, other):
                    shape = self._difference(shape, other)
            parts.append(shape)
        return self._union(parts)

    # --- shapes -------------------------------------------------------------------------------------------------------

    def intersect(self, a: Shape, b: Shape) -> Shape:
        if a is ANYTHING or b is ANYTHING:
            return b if a is ANYTHING else a
        return Shape(
            a.null and b.null,
            a.booleans & b.booleans,
            self._pairs(a.numbers, b.numbers, EVERY_NUMBER, lambda x, y: x & y),
            self._pairs(a.strings, b.strings, EVERY_STRING, lambda x, y: x & y),
            self._pairs(a.arrays, b.arrays, EVERY_ARRAY, lambda x, y: x.and_(y, self.formulas)),
            _merged(self._pairs(a.objects, b.objects, EVERY_OBJECT, lambda x, y: x.and_(y, self.formulas))),
        )

    def _pairs(
        self,
        a: tuple[Member, ...],
        b: tuple[Member, ...],
        every: Member,
        both: Callable[[Member, Member], Member | None],
    ) -> tuple[Member, ...]:
        """The intersection of two unions."""
        if a == (every,) or b == (every,):
            return b if a == (every,) else a
        if len(a) * len(b) > COMBINATIONS:
            raise too_large(f"a combination of schemas expands to more than {COMBINATIONS} cases")
        members = []
        for x in a:
            self._budget.spend(len(b))
            members += [member for y in b if (member := both(x, y)) is not None]
        return self._without_empty(members)

    def _without_empty(self, members: Iterable[Member]) -> tuple[Member, ...]:
        found: dict[Member, None] = {}
        for member in members:
            self._budget.spend()
            if not self.nothing_is_in(member):
                found[member] = None
        return tuple(found)

    def _union(self, shapes: Iterable[Shape]) -> Shape:
        shapes = [shape for shape in shapes if shape is not NOTHING]
        if len(shapes) < 2:
            return shapes[0] if shapes else NOTHING
        return Shape(
            any(shape.null for shape in shapes),
            frozenset().union(*(shape.booleans for shape in shapes)),
            _joined((shape.numbers for shape in shapes), EVERY_NUMBER),
            _joined_strings(_joined((shape.strings for shape in shapes), EVERY_STRING)),
            _joined((shape.arrays for shape in shapes), EVERY_ARRAY),
            _merged(_joined((shape.objects for shape in shapes), EVERY_OBJECT)),
        )

    def _difference(self, a: Shape, b: Shape) -> Shape:
        """What is in the first shape and not in the second."""
        formulas = self.formulas
        return Shape(
            a.null and not b.null,
            a.booleans - b.booleans,
            self._without(a.numbers, b.numbers, Numbers.complement, lambda x, y: x & y),
            self._without(a.strings, _joined_strings(b.strings), Strings.complement, lambda x, y: x & y),
            self._without(a.arrays, b.arrays, self._no_array, lambda x, y: x.and_(y, formulas)),
            _merged(
                self._without(a.objects, b.objects, lambda x: x.complement(formulas), lambda x, y: x.and_(y, formulas))
            ),
        )

    def _no_array(self, arrays: Arrays) -> Iterator[Arrays]:
        if arrays.unique is not None:
            raise ConstraintError(
                Code.UNSUPPORTED,
                arrays.unique,
                "'uniqueItems' inside 'not', 'oneOf' or 'if' needs arrays with equal items; not supported",
                "leave it out there",
            )
        return arrays.complement(self.formulas)

    def _without(
        self,
        members: tuple[Member, ...],
        others: tuple[Member, ...],
        complement: Callable[[Member], Iterable[Member]],
        both: Callable[[Member, Member], Member | None],
    ) -> tuple[Member, ...]:
        """The members without what is in one of the others; those that share nothing with it stay as they are."""
        for other in others:
            kept: list[Member] = []
            rest: tuple[Member, ...] | None = None
            for member in members:
                self._budget.spend()
                shared = None if member == other else both(member, other)
                if member != other and (shared is None or self.nothing_is_in(shared)):
                    kept.append(member)
                elif member != other:
                    rest = self._without_empty(complement(other)) if rest is None else rest
                    kept += self._without_empty(part for x in rest if (part := both(member, x)) is not None)
            if len(kept) > COMBINATIONS:
                raise too_large(f"a combination of schemas expands to more than {COMBINATIONS} cases")
            members = tuple(dict.fromkeys(kept))
        return members

    # --- emptiness ----------------------------------------------------------------------------------------------------

    def surely_empty(self, formula: Formula) -> bool:
        """True is a proof that no value is like this; False is not a proof of anything."""
        known = self._empty.get(formula)
        if known is not None:
            return known
        if formula in self._proving or len(self._proving) > PROOF_DEPTH:
            return False
        self._proving.add(formula)
        try:
            empty = self.nothing_looks_like(self.expand(formula))
        except InProgress:
            return False
        finally:
            self._proving.discard(formula)
        if empty or not self._proving:
            self._empty[formula] = empty
        return empty

    def nothing_looks_like(self, shape: Shape) -> bool:
        if shape.null or shape.booleans:
            return False
        members = (*shape.strings, *shape.numbers, *shape.arrays, *shape.objects)
        return all(map(self.nothing_is_in, members))

    def nothing_is_in(self, member: object) -> bool:
        """True is a proof."""
        match member:
            case Numbers():
                return no_number(member)
            case Strings():
                return member.is_empty
            case Arrays():
                return self._no_array_is_in(member)
            case Objects():
                return self._no_object_is_in(member)
        raise TypeError(member)

    def _no_array_is_in(self, arrays: Arrays) -> bool:
        most = arrays.most
        if most is not None and arrays.low > most:
            return True
        needed = range(min(arrays.low, len(arrays.prefix) + 1))
        if any(self.surely_empty(arrays.item(index)) for index in needed):
            return True
        return any(self._cannot_contain(arrays, index) for index in range(len(arrays.contains)))

    def _cannot_contain(self, arrays: Arrays, index: int) -> bool:
        contains = arrays.contains[index]
        if contains.high is not None and contains.low > contains.high:
            return True
        if not contains.low:
            return False
        if arrays.most is not None and contains.low > arrays.most - contains.start:
            return True
        places = range(min(contains.start, len(arrays.prefix)), len(arrays.prefix) + 1)
        within = self.formulas.all_of
        return all(self.surely_empty(within((contains.formula, arrays.item(place)))) for place in places)

    def _no_object_is_in(self, objects: Objects) -> bool:
        if objects.high is not None and max(objects.low, len(objects.required)) > objects.high:
            return True
        if any(self.surely_empty(objects.value(name)) for name in objects.required):
            return True
        if objects.low > len(objects.names) and not objects.rest:
            return True
        return any(self._cannot_have(objects, *family) for family in objects.some)

    def _cannot_have(self, objects: Objects, family: object, formula: Formula) -> bool:
        """No name of the family can have such a value; looks at closed objects alone."""
        if objects.rest:
            return False
        within = self.formulas.all_of
        return all(
            self.surely_empty(within((value, formula)))
            for name, value in objects.names
            if family.accepts(name)  # type: ignore[attr-defined]
        )


def share_a_type(a: Shape, b: Shape) -> bool:
    return bool(
        (a.null and b.null)
        or (a.booleans & b.booleans)
        or (a.numbers and b.numbers)
        or (a.strings and b.strings)
        or (a.arrays and b.arrays)
        or (a.objects and b.objects)
    )


def _joined[Member](unions: Iterable[tuple[Member, ...]], every: Member) -> tuple[Member, ...]:
    members = tuple(dict.fromkeys(member for union in unions for member in union))
    return (every,) if every in members else members


def _joined_strings(strings: tuple[Strings, ...]) -> tuple[Strings, ...]:
    """With one finite set for all."""
    values = dict.fromkeys(text for part in strings for text in part.values or ())
    if not values or sum(part.values is not None for part in strings) < 2:
        return strings
    return (Strings(values=tuple(values)), *(part for part in strings if part.values is None))


def _merged(objects: tuple[Objects, ...]) -> tuple[Objects, ...]:
    return objects if len(objects) < 2 else tuple(merged(objects))
