"""Reading keywords' values: the right JSON type, or a ConstraintError that names pointer and keyword."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ..clock import tick
from ..errors import Code, ConstraintError
from .algebra import Algebra
from .arrays import Arrays
from .formula import FALSE, Formula
from .load import Place
from .numbers import finite
from .objects import Objects
from .shape import Shape
from .strings import Strings

MAX_COUNT = 1 << 30  # a bound above is as good as none: no text is that long
MAX_DIGITS = 400  # of a number in a schema; a float has 309 at most


def invalid(place: Place, keyword: str, reason: str) -> ConstraintError:
    return ConstraintError(Code.INVALID, place.pointer, f"'{keyword}' {reason}")


def unsupported(place: Place, keyword: str, reason: str, advice: str = "") -> ConstraintError:
    return ConstraintError(Code.UNSUPPORTED, place.pointer, f"'{keyword}' {reason}", advice)


def mapping(place: Place, keyword: str) -> dict[str, object]:
    value = _raw(place).get(keyword, {})
    if not isinstance(value, dict):
        raise invalid(place, keyword, "must be an object")
    return value


def schemas(place: Place, keyword: str) -> list[Place]:
    """The members of a list of schemas; such a list is never empty."""
    value = _raw(place).get(keyword)
    if not isinstance(value, list) or not value:
        raise invalid(place, keyword, "must be a list of at least one schema")
    return [place.at(keyword, index) for index in range(len(value))]


def names(place: Place, keyword: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise invalid(place, keyword, "must be a list of strings")
    return list(dict.fromkeys(value))


def count(place: Place, keyword: str) -> int | None:
    """A number of items, members or characters; None where the keyword is absent."""
    value = _raw(place).get(keyword)
    if value is None and keyword not in _raw(place):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise invalid(place, keyword, "must be an integer that is not negative")
    if value > MAX_COUNT and keyword.startswith("min"):
        raise ConstraintError(Code.TOO_LARGE, place.pointer, f"too large: '{keyword}' is above {MAX_COUNT}")
    return int(value) if value <= MAX_COUNT else None


def flag(place: Place, keyword: str) -> bool:
    value = _raw(place).get(keyword, False)
    if not isinstance(value, bool):
        raise invalid(place, keyword, "must be true or false")
    return value


def text(place: Place, keyword: str) -> str:
    value = _raw(place)[keyword]
    if not isinstance(value, str):
        raise invalid(place, keyword, "must be a string")
    return value


def number(place: Place, keyword: str) -> Fraction | None:
    value = _raw(place).get(keyword)
    if value is None and keyword not in _raw(place):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(place, keyword, "must be a number")
    return exact(place, keyword, value)


def exact(place: Place, keyword: str, value: int | float) -> Fraction:
    """The number as it is written, not as binary floating point rounds it."""
    if isinstance(value, int) and value.bit_length() > 4 * MAX_DIGITS:
        raise ConstraintError(Code.TOO_LARGE, place.pointer, f"'{keyword}' has more than {MAX_DIGITS} digits")
    tick(2)
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def literals(place: Place, keyword: str, values: list[object], algebra: Algebra) -> Shape:
    """The shape of exactly these values."""
    tick(2 * len(values))
    numbers = dict.fromkeys(
        exact(place, keyword, v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)
    )
    strings = tuple(dict.fromkeys(v for v in values if isinstance(v, str)))
    return Shape(
        any(v is None for v in values),
        frozenset(v for v in values if isinstance(v, bool)),
        (finite(numbers, plain=False),) if numbers else (),
        (Strings(values=strings),) if strings else (),
        tuple(_array(place, keyword, v, algebra) for v in values if isinstance(v, list)),
        tuple(_object(place, keyword, v, algebra) for v in values if isinstance(v, dict)),
    )


def _array(place: Place, keyword: str, value: list[object], algebra: Algebra) -> Arrays:
    prefix = tuple(_literal(place, keyword, item, algebra) for item in value)
    return Arrays(prefix, FALSE, len(prefix), len(prefix))


def _object(place: Place, keyword: str, value: Mapping[str, object], algebra: Algebra) -> Objects:
    members = tuple((name, _literal(place, keyword, member, algebra)) for name, member in value.items())
    return Objects(members, (), tuple(value))


def _literal(place: Place, keyword: str, value: object, algebra: Algebra) -> Formula:
    return algebra.shape(literals(place, keyword, [value], algebra))


def _raw(place: Place) -> dict[str, object]:
    assert isinstance(place.raw, dict)
    return place.raw
