"""From a schema to a formula: what its own keywords say, and the keywords that combine schemas.

`unevaluatedProperties` and `unevaluatedItems` depend on which of the combined schemas hold. For them a schema is taken
apart into alternatives, each a formula with what it looks at; the more it looks at the less is left unevaluated, so
that the union over all sets of branches that may hold is exact without saying which do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

from ..errors import Code, ConstraintError
from ..language import Language
from . import values
from .algebra import Algebra, InProgress
from .arrays import Arrays
from .budget import Budget, too_large
from .formula import FALSE, TRUE, Formula, Kind
from .leaf import KEYWORDS as LEAF_KEYWORDS
from .leaf import Leaf, pattern
from .load import Document, Draft, Place
from .objects import Objects
from .plain import PLAIN
from .shape import ANYTHING, Shape
from .strings import EVERYTHING

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
UNEVALUATED = frozenset(["unevaluatedProperties", "unevaluatedItems"])
ONLY_TYPE = {"type"}
MAX_ALTERNATIVES = 256
MAX_DEPTH = 32  # schemas read inside one another; what is deeper is read later


@dataclass(frozen=True, slots=True)
class Seen:
    """Which members of a value a schema has looked at."""

    names: frozenset[str] = frozenset()
    families: tuple[Language, ...] = ()
    every_name: bool = False
    items: int = 0
    every_item: bool = False
    contained: tuple[Formula, ...] = ()

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            tuple(dict.fromkeys((*self.families, *other.families))),
            self.every_name or other.every_name,
            max(self.items, other.items),
            self.every_item or other.every_item,
            tuple(dict.fromkeys((*self.contained, *other.contained))),
        )


BLIND = Seen()
Alternative = tuple[Formula, Seen]


class Parser:
    """Formulas for the schemas of one document."""

    def __init__(self, document: Document, budget: Budget) -> None:
        this = weakref.proxy(self)  # so that all of it goes as soon as nobody refers to it
        self.algebra = Algebra(lambda formula: this._resolve(formula), budget)
        self._document, self._budget = document, budget
        self._formulas = self.algebra.formulas
        self._leaf = Leaf(self.algebra, lambda place, *keys: this.schema(place, *keys))
        self._parsed: dict[tuple[int, str, object], Formula] = {}
        self._places: dict[tuple[int, str, object], Place] = {}
        self._opening: list[int] = []
        self._depth = 0

    @property
    def ignored_formats(self) -> tuple[str, ...]:
        return tuple(self._leaf.ignored_formats)

    def root(self) -> Formula:
        try:
            return self.schema(self._document.root)
        except InProgress as loop:
            raise self_reference(reference_in(loop.formula)) from None

    def schema(self, place: Place, *keys: str | int) -> Formula:
        """The formula of the schema at a place, or at `keys` below it."""
        raw = place.raw
        for key in keys:
            raw = raw[key]  # type: ignore[index]
        if isinstance(raw, bool):
            return TRUE if raw else FALSE
        if isinstance(raw, dict):
            said = raw.keys() & MEANING
            if not said:
                return TRUE
            if said == ONLY_TYPE and isinstance(name := raw["type"], str) and name in PLAIN:
                return PLAIN[name]
        place = place.at(*keys) if keys else place
        if not isinstance(raw, dict):
            raise ConstraintError(Code.INVALID, place.pointer, "a schema must be an object or a boolean")
        place = self._document.enter(place)
        assert isinstance(place.raw, dict)
        # what is unevaluated in a value may depend on a schema that is being read: it is read when it is needed
        if self._depth > MAX_DEPTH or not UNEVALUATED.isdisjoint(place.raw):
            return self._later(place)
        return self._parsed_at(place)

    def _parsed_at(self, place: Place) -> Formula:
        key = (id(place.raw), place.resource.uri, place.scope)
        formula = self._parsed.get(key)
        if formula is None:
            self._budget.spend()
            self._depth += 1
            try:
                formula = self._parsed[key] = self._read(place)
            finally:
                self._depth -= 1
        return formula

    def _later(self, place: Place) -> Formula:
        key = (id(place.raw), place.resource.uri, place.scope)
        return self._formulas.holding(Kind.REFERENCE, self._places.setdefault(key, place))

    def _read(self, place: Place) -> Formula:
        assert isinstance(place.raw, dict)
        if _is_only_reference(place):
            return self._reference(place, "$ref")
        if not UNEVALUATED.isdisjoint(place.raw):
            return self._formulas.any_of([formula for formula, _ in self.alternatives(place)])
        own = self.algebra.shape(self._leaf.shape(place))
        if COMBINING.keys().isdisjoint(place.raw):
            return own
        parts = [[own] if make is None else make(self, place) for make in _ordered(place, COMBINING)]
        return self._formulas.all_of([formula for part in parts for formula in part])

    def _reference(self, place: Place, keyword: str) -> Formula:
        assert isinstance(place.raw, dict)
        return self._later(self._document.reference(place, keyword, place.raw[keyword]))

    def _resolve(self, formula: Formula) -> Formula:
        place = formula.held
        assert isinstance(place, Place)
        if isinstance(place.raw, dict) and place.raw:
            return self._parsed_at(self._document.enter(place))
        return self.schema(place)

    # --- keywords that combine schemas --------------------------------------------------------------------------------

    def _all_of(self, place: Place) -> Iterator[Formula]:
        yield from map(self.schema, values.schemas(place, "allOf"))

    def _any_of(self, place: Place) -> Iterator[Formula]:
        yield self._formulas.any_of(map(self.schema, values.schemas(place, "anyOf")))

    def _one_of(self, place: Place) -> Iterator[Formula]:
        yield self._formulas.one_of(map(self.schema, values.schemas(place, "oneOf")))

    def _not(self, place: Place) -> Iterator[Formula]:
        yield self._formulas.negation(self.schema(place, "not"))

    def _if(self, place: Place) -> Iterator[Formula]:
        condition = self.schema(place, "if")
        both = self._formulas.all_of((condition, self._branch(place, "then")))
        neither = self._formulas.all_of((self._formulas.negation(condition), self._branch(place, "else")))
        yield self._formulas.any_of((both, neither))

    def _branch(self, place: Place, keyword: str) -> Formula:
        assert isinstance(place.raw, dict)
        return self.schema(place, keyword) if keyword in place.raw else TRUE

    def _referenced(self, place: Place) -> Iterator[Formula]:
        assert isinstance(place.raw, dict)
        for keyword in REFERENCES:
            if keyword in place.raw:
                yield self._reference(place, keyword)

    def _dependent(self, place: Place) -> Iterator[Formula]:
        for name, dependent in _dependent_schemas(place):
            held = self._formulas.all_of((self._present(name), self.schema(dependent)))
            yield self._formulas.any_of((self._absent(name), held))

    def _present(self, name: str) -> Formula:
        return self.algebra.shape(Shape(objects=(Objects(required=(name,)),)))

    def _absent(self, name: str) -> Formula:
        without = Objects(clauses=frozenset([frozenset([(name, False)])]))
        return self.algebra.shape(replace(ANYTHING, objects=(without,)))

    # --- what is unevaluated ------------------------------------------------------------------------------------------

    def alternatives(self, place: Place) -> list[Alternative]:
        """Formulas whose union the schema is, each with what it has looked at in a value it holds for."""
        if not isinstance(place.raw, dict):
            return [(self.schema(place), BLIND)]
        place = self._document.enter(place)
        if id(place.raw) in self._opening:
            raise self_reference(place)
        self._opening.append(id(place.raw))
        try:
            return self._alternatives(place)
        finally:
            self._opening.pop()

    def _alternatives(self, place: Place) -> list[Alternative]:
        assert isinstance(place.raw, dict)
        if _is_only_reference(place):
            return self._product(place, list(self._seen_reference(place)))
        own = [(self.algebra.shape(self._leaf.shape(place)), self._own_seen(place))]
        parts = [[own] if see is None else list(see(self, place)) for see in _ordered(place, SEEING)]
        found = self._product(place, [alternatives for part in parts for alternatives in part])
        if UNEVALUATED.isdisjoint(place.raw):
            return found
        return [self._close(place, formula, seen) for formula, seen in found]

    def _product(self, place: Place, parts: list[list[Alternative]]) -> list[Alternative]:
        found: list[Alternative] = [(TRUE, BLIND)]
        for part in parts:
            if len(found) * len(part) > MAX_ALTERNATIVES:
                raise too_large(f"'unevaluated' depends on more than {MAX_ALTERNATIVES} combinations", place.pointer)
            self._budget.spend(len(found) * len(part))
            pairs = product(found, part)
            found = [(self._formulas.all_of((f, g)), a | b) for (f, a), (g, b) in pairs]
        return [(formula, seen) for formula, seen in found if formula is not FALSE]

    def _own_seen(self, place: Place) -> Seen:
        assert isinstance(place.raw, dict)
        raw, draft = place.raw, place.resource.draft
        items = raw.get("items")
        prefix = raw.get("prefixItems") if draft is Draft.DRAFT2020 else None
        counted = items if isinstance(items, list) else prefix if isinstance(prefix, list) else []
        contained = "contains" in raw and draft is Draft.DRAFT2020
        return Seen(
            frozenset(values.mapping(place, "properties")),
            tuple(pattern(place, "patternProperties", key) for key in values.mapping(place, "patternProperties")),
            "additionalProperties" in raw,
            len(counted),
            isinstance(items, dict | bool) or (isinstance(items, list) and "additionalItems" in raw),
            (self.schema(place, "contains"),) if contained else (),
        )

    def _close(self, place: Place, formula: Formula, seen: Seen) -> Alternative:
        """With what the unevaluated keywords say of the members that were not looked at."""
        assert isinstance(place.raw, dict)
        shape = ANYTHING
        if "unevaluatedProperties" in place.raw:
            value = self.schema(place, "unevaluatedProperties")
            if not seen.every_name:
                shape = replace(shape, objects=(_unseen_names(seen, value),))
            seen = replace(seen, every_name=True)
        if "unevaluatedItems" in place.raw:
            item = self._formulas.any_of((self.schema(place, "unevaluatedItems"), *seen.contained))
            if not seen.every_item:
                shape = replace(shape, arrays=(Arrays((TRUE,) * seen.items, item),))
            seen = replace(seen, every_item=True)
        return self._formulas.all_of((formula, self.algebra.shape(shape))), seen

    def _seen_all_of(self, place: Place) -> Iterator[list[Alternative]]:
        yield from map(self.alternatives, values.schemas(place, "allOf"))

    def _seen_any_of(self, place: Place) -> Iterator[list[Alternative]]:
        branches = [self.alternatives(branch) for branch in values.schemas(place, "anyOf")]
        blind = [branch for branch in branches if all(seen == BLIND for _, seen in branch)]
        seeing = [branch for branch in branches if branch not in blind]
        found = []
        if blind:
            found.append((self._formulas.any_of([formula for branch in blind for formula, _ in branch]), BLIND))
        if len(seeing) > MAX_ALTERNATIVES.bit_length():
            raise too_large("'unevaluated' beside 'anyOf' with that many branches", place.pointer)
        for size in range(1, len(seeing) + 1):
            for chosen in combinations(seeing, size):
                found += self._product(place, list(chosen))
        yield found

    def _seen_one_of(self, place: Place) -> Iterator[list[Alternative]]:
        places = values.schemas(place, "oneOf")
        whole = [self.schema(branch) for branch in places]
        found = []
        for index, branch in enumerate(places):
            others = [self._formulas.negation(other) for i, other in enumerate(whole) if i != index]
            for formula, seen in self.alternatives(branch):
                found.append((self._formulas.all_of([formula, *others]), seen))
        yield found

    def _seen_not(self, place: Place) -> Iterator[list[Alternative]]:
        yield [(formula, BLIND) for formula in self._not(place)]

    def _seen_if(self, place: Place) -> Iterator[list[Alternative]]:
        unconstrained: list[Alternative] = [(TRUE, BLIND)]
        assert isinstance(place.raw, dict)
        then, otherwise = (
            self.alternatives(place.at(branch)) if branch in place.raw else unconstrained for branch in ("then", "else")
        )
        not_met = [(self._formulas.negation(self.schema(place, "if")), BLIND)]
        met = self._product(place, [self.alternatives(place.at("if")), then])
        yield met + self._product(place, [not_met, otherwise])

    def _seen_reference(self, place: Place) -> Iterator[list[Alternative]]:
        for formula in self._referenced(place):
            assert isinstance(formula.held, Place)
            yield self.alternatives(formula.held)

    def _seen_dependent(self, place: Place) -> Iterator[list[Alternative]]:
        for name, dependent in _dependent_schemas(place):
            held = self._product(place, [[(self._present(name), BLIND)], self.alternatives(dependent)])
            yield [(self._absent(name), BLIND), *held]


COMBINING = {
    "$ref": Parser._referenced,
    "$dynamicRef": Parser._referenced,
    "$recursiveRef": Parser._referenced,
    "allOf": Parser._all_of,
    "anyOf": Parser._any_of,
    "oneOf": Parser._one_of,
    "not": Parser._not,
    "if": Parser._if,
    "dependentSchemas": Parser._dependent,
    "dependencies": Parser._dependent,
}
SEEING = {
    "$ref": Parser._seen_reference,
    "$dynamicRef": Parser._seen_reference,
    "$recursiveRef": Parser._seen_reference,
    "allOf": Parser._seen_all_of,
    "anyOf": Parser._seen_any_of,
    "oneOf": Parser._seen_one_of,
    "not": Parser._seen_not,
    "if": Parser._seen_if,
    "dependentSchemas": Parser._seen_dependent,
    "dependencies": Parser._seen_dependent,
}

MEANING = LEAF_KEYWORDS | UNEVALUATED | COMBINING.keys()  # of the value; other keywords name a schema, or annotate


def self_reference(place: Place) -> ConstraintError:
    return ConstraintError(
        Code.UNSUPPORTED, place.pointer, "'$ref' refers to itself without a value in between", "put it under a property"
    )


def reference_in(formula: Formula) -> Place:
    """A reference the formula goes through: without one it could not depend on itself."""
    work = [formula]
    while work:
        formula = work.pop()
        if isinstance(formula.held, Place):
            return formula.held
        work.extend(formula.args)
    raise AssertionError("a formula that depends on itself holds a reference")


def _ordered[Maker](place: Place, table: dict[str, Maker]) -> list[Maker | None]:
    """Who reads the schema's keywords, in their order, which is that of properties; None: its own, where they begin."""
    assert isinstance(place.raw, dict)
    keywords = place.raw.keys()
    first = [] if "properties" in keywords else [None]
    return list(dict.fromkeys([*first, *(table.get(k) for k in keywords if k in table or k == "properties")]))


def _is_only_reference(place: Place) -> bool:
    """Up to draft 7 what stands beside `$ref` is ignored."""
    assert isinstance(place.raw, dict)
    return "$ref" in place.raw and place.resource.draft <= Draft.DRAFT7


def _dependent_schemas(place: Place) -> Iterator[tuple[str, Place]]:
    """Names with the schemas that hold where they are present."""
    for keyword in ("dependentSchemas", "dependencies"):
        for name, value in values.mapping(place, keyword).items():
            if keyword == "dependentSchemas" or not isinstance(value, list):
                yield name, place.at(keyword, name)


def _unseen_names(seen: Seen, value: Formula) -> Objects:
    unseen, families = EVERYTHING, []
    for family in seen.families:
        families.append(unseen & family)
        unseen = unseen - family
    rest: Iterable[tuple[Language, Formula]] = [*((family, TRUE) for family in families), (unseen, value)]
    return Objects(
        tuple((name, TRUE) for name in sorted(seen.names)),
        tuple((family, formula) for family, formula in rest if formula is not FALSE and not family.is_empty),
    )
