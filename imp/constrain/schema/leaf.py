"""The keywords that look at one value: type, members one by one, and how many. One schema's become one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from ..errors import Code, ConstraintError
from ..language import Language
from ..regex import RegexError
from . import values
from .algebra import Algebra
from .arrays import Arrays, Contains
from .digits import DIGITS
from .formats import FORMATS, MAX_LENGTHS, language_of
from .formula import FALSE, TRUE, Formula
from .literals import decimal_places
from .load import Draft, Place
from .numbers import INTEGERS, Numbers
from .objects import Clause, Family, Objects
from .shape import ANYTHING, BOTH, Shape
from .strings import EVERYTHING, Strings, as_language

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NUMBER_KEYWORDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
STRING_KEYWORDS = frozenset(["minLength", "maxLength", "pattern", "format"])
ARRAY_KEYWORDS = frozenset(
    ["items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems"]
)
OBJECT_KEYWORDS = frozenset(
    [
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependencies",
    ]
)
KEYWORDS = NUMBER_KEYWORDS | STRING_KEYWORDS | ARRAY_KEYWORDS | OBJECT_KEYWORDS | {"type", "enum", "const"}
MAX_FAMILIES = 64


class Leaf:
    """Makes shapes of schemas' own keywords; `schema` reads the schemas inside."""

    def __init__(self, algebra: Algebra, schema: Callable[..., Formula]) -> None:
        """schema(place, *keys): the formula of the schema at these keys below a place."""
        self._algebra, self._schema = algebra, schema
        self.ignored_formats: dict[str, None] = {}

    def shape(self, place: Place) -> Shape:
        raw = place.raw
        assert isinstance(raw, dict)
        types = self._types(place) if "type" in raw else TYPES
        keywords = raw.keys()
        shape = Shape(
            "null" in types,
            BOTH if "boolean" in types else frozenset(),
            self._numbers(place, types, not NUMBER_KEYWORDS.isdisjoint(keywords)),
            self._strings(place, not STRING_KEYWORDS.isdisjoint(keywords)) if "string" in types else (),
            self._arrays(place, not ARRAY_KEYWORDS.isdisjoint(keywords)) if "array" in types else (),
            self._objects(place, not OBJECT_KEYWORDS.isdisjoint(keywords)) if "object" in types else (),
        )
        for keyword in ("enum", "const"):
            if keyword in raw:
                shape = self._algebra.intersect(shape, self._literals(place, keyword))
        return shape

    def _literals(self, place: Place, keyword: str) -> Shape:
        assert isinstance(place.raw, dict)
        listed = place.raw[keyword]
        if keyword == "const":
            listed = [listed]
        elif not isinstance(listed, list):
            raise values.invalid(place, keyword, "must be a list")
        return values.literals(place, keyword, listed, self._algebra)

    @staticmethod
    def _types(place: Place) -> tuple[str, ...]:
        assert isinstance(place.raw, dict)
        stated = place.raw["type"]
        types = tuple(stated) if isinstance(stated, list) else (stated,)
        for name in types:
            if name not in TYPES:
                shown = repr(name) if isinstance(name, str) else "what is no string"
                raise values.invalid(place, "type", f"knows {', '.join(TYPES)}; not {shown}")
        return types

    # --- scalars ------------------------------------------------------------------------------------------------------

    def _numbers(self, place: Place, types: tuple[str, ...], constrained: bool) -> tuple[Numbers, ...]:
        if "number" not in types and "integer" not in types:
            return ()
        numbers = Numbers() if "number" in types else INTEGERS
        if constrained:
            for limits in self._limits(place):
                numbers = numbers & limits
        return () if numbers.is_surely_empty else (numbers,)

    @staticmethod
    def _limits(place: Place) -> Iterable[Numbers]:
        low, low_open = _bound(place, "minimum", "exclusiveMinimum", max)
        high, high_open = _bound(place, "maximum", "exclusiveMaximum", min)
        step = values.number(place, "multipleOf")
        if step is not None and step <= 0:
            raise values.invalid(place, "multipleOf", "must be above 0")
        if step is not None and decimal_places(step) > DIGITS:
            raise values.unsupported(place, "multipleOf", f"has more than {DIGITS} fraction digits", "round it")
        yield Numbers(low, low_open, high, high_open, step)

    def _strings(self, place: Place, constrained: bool) -> tuple[Strings, ...]:
        if not constrained:
            return ANYTHING.strings
        assert isinstance(place.raw, dict)
        language = EVERYTHING
        low, high = values.count(place, "minLength") or 0, values.count(place, "maxLength")
        if "pattern" in place.raw:
            language = pattern(place, "pattern", values.text(place, "pattern"))
        if "format" in place.raw:
            name = values.text(place, "format")
            if name in FORMATS:
                language = located(place, "format", lambda: language & language_of(name, place.pointer))
                high = min((h for h in (high, MAX_LENGTHS.get(name)) if h is not None), default=None)
            else:
                self.ignored_formats[name] = None
        strings = Strings(language, low, high)
        return () if located(place, "pattern", lambda: strings.is_empty) else (strings,)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def _arrays(self, place: Place, constrained: bool) -> tuple[Arrays, ...]:
        if not constrained:
            return ANYTHING.arrays
        assert isinstance(place.raw, dict)
        prefix, rest = self._items(place)
        contains: tuple[Contains, ...] = ()
        if "contains" in place.raw:
            least, most = values.count(place, "minContains"), values.count(place, "maxContains")
            least = 1 if least is None else least
            contains = (Contains(self._schema(place, "contains"), 0, least, most),)
            if contains[0].formula is TRUE:  # every item counts
                contains = ()
                return (_arrays_of(place, prefix, rest, least, most),)
        return (_arrays_of(place, prefix, rest, 0, None, contains),)

    def _items(self, place: Place) -> tuple[tuple[Formula, ...], Formula]:
        assert isinstance(place.raw, dict)
        raw, resource = place.raw, place.resource
        prefix: tuple[Formula, ...] = ()
        rest: Formula = TRUE
        if "prefixItems" in raw and (resource.draft is Draft.DRAFT2020):
            prefix = tuple(map(self._schema, values.schemas(place, "prefixItems")))
        if isinstance(raw.get("items"), list):
            if resource.stated and resource.draft is Draft.DRAFT2020:
                raise values.invalid(place, "items", "is one schema in draft 2020-12; a list is called 'prefixItems'")
            prefix = tuple(self._schema(place, "items", index) for index in range(len(raw["items"])))
            if "additionalItems" in raw:
                rest = self._schema(place, "additionalItems")
        elif "items" in raw:
            rest = self._schema(place, "items")
        return prefix, rest

    # --- objects ------------------------------------------------------------------------------------------------------

    def _objects(self, place: Place, constrained: bool) -> tuple[Objects, ...]:
        if not constrained:
            return ANYTHING.objects
        assert isinstance(place.raw, dict)
        raw = place.raw
        patterns = self._patterns(place) if "patternProperties" in raw else []
        names = {name: self._schema(place, "properties", name) for name in values.mapping(place, "properties")}
        if patterns:
            all_of = self._algebra.formulas.all_of
            for name, own in names.items():
                names[name] = all_of([own, *(formula for language, formula in patterns if language.accepts(name))])
        rest = self._families(place, patterns)
        required = tuple(values.names(place, "required", raw.get("required", [])))
        objects = Objects(
            tuple(names.items()),
            rest,
            required,
            frozenset(self._dependencies(place)),
            values.count(place, "minProperties") or 0,
            values.count(place, "maxProperties"),
        )
        limited: Objects | None = objects
        if "propertyNames" in raw:
            limited = objects.and_(self._named(place), self._algebra.formulas)
        elif objects.clauses:
            limited = objects.simplified()
        return () if limited is None else (limited,)

    def _patterns(self, place: Place) -> list[Family]:
        return [
            (pattern(place, "patternProperties", key), self._schema(place, "patternProperties", key))
            for key in values.mapping(place, "patternProperties")
        ]

    def _families(self, place: Place, patterns: list[Family]) -> tuple[Family, ...]:
        """Undeclared names, parted by which patterns match them."""
        assert isinstance(place.raw, dict)
        has_rest = "additionalProperties" in place.raw
        additional = self._schema(place, "additionalProperties") if has_rest else TRUE
        if not patterns:
            return () if additional is FALSE else ((EVERYTHING, additional),)
        parts: list[tuple[Language, list[Formula]]] = [(EVERYTHING, [])]
        for language, formula in patterns:
            split = [
                (part & language if hit else part - language, [*formulas, formula] if hit else formulas)
                for part, formulas in parts
                for hit in (True, False)
            ]
            parts = [(part, formulas) for part, formulas in split if not part.is_empty]
            if len(parts) > MAX_FAMILIES:
                raise ConstraintError(
                    Code.TOO_LARGE,
                    place.pointer,
                    f"too large: 'patternProperties' overlap in more than {MAX_FAMILIES} ways",
                    "use fewer patterns",
                )
        all_of = self._algebra.formulas.all_of
        families = [(part, all_of(formulas) if formulas else additional) for part, formulas in parts]
        return tuple((part, formula) for part, formula in families if formula is not FALSE)

    def _named(self, place: Place) -> Objects:
        """Objects all of whose names fulfil `propertyNames`."""
        shape = self._algebra.expand(self._schema(place, "propertyNames"))
        allowed = located(place, "propertyNames", lambda: as_language(shape.strings))
        return Objects(rest=() if allowed.is_empty else ((allowed, TRUE),))

    @staticmethod
    def _dependencies(place: Place) -> Iterable[Clause]:
        for keyword in ("dependentRequired", "dependencies"):
            for name, needed in values.mapping(place, keyword).items():
                if keyword == "dependentRequired" or isinstance(needed, list):
                    for other in values.names(place, keyword, needed):
                        if other != name:
                            yield frozenset([(name, False), (other, True)])


def pattern(place: Place, keyword: str, regex: str) -> Language:
    return located(place, keyword, lambda: Language.pattern(regex))


def located(place: Place, keyword: str, make: Callable):  # type: ignore[no-untyped-def, type-arg]
    """What `make` returns; what it refuses is said to be about this keyword here."""
    try:
        return make()
    except ConstraintError as error:
        if error.where.startswith("#"):
            raise
        said = f"{error.predicate}, at {error.where}" if isinstance(error, RegexError) else f"is {error.reason}"
        raise ConstraintError(error.code, place.pointer, f"'{keyword}' {said}", error.advice) from None


def _arrays_of(
    place: Place,
    prefix: tuple[Formula, ...],
    rest: Formula,
    least: int,
    most: int | None,
    contains: tuple[Contains, ...] = (),
) -> Arrays:
    low, high = values.count(place, "minItems") or 0, values.count(place, "maxItems")
    highs = [bound for bound in (high, most) if bound is not None]
    unique = place.pointer if values.flag(place, "uniqueItems") else None
    return Arrays(prefix, rest, max(low, least), min(highs, default=None), contains, unique)


def _bound(place: Place, closed: str, open_: str, tighter: Callable[..., Fraction]) -> tuple[Fraction | None, bool]:
    """A limit and whether it is excluded itself, from both keywords; the open one is a flag in draft 4."""
    assert isinstance(place.raw, dict)
    limit = values.number(place, closed)
    exclusive = place.raw.get(open_)
    if isinstance(exclusive, bool) and (place.resource.draft is Draft.DRAFT4 or not place.resource.stated):
        return limit, exclusive and limit is not None
    excluded = values.number(place, open_)
    if excluded is None or (limit is not None and limit != excluded and tighter(limit, excluded) == limit):
        return limit, False
    return excluded, True
