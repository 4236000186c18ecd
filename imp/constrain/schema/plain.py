"""Values of one type without any condition. Most schemas are made of these: each is one formula in all documents."""

from __future__ import annotations

from .arrays import EVERY_ARRAY
from .formula import TRUE, Formula, Kind
from .numbers import EVERY_NUMBER, INTEGERS
from .objects import EVERY_OBJECT
from .shape import BOTH, EVERY_STRING, Shape

SHAPES = {
    "null": Shape(null=True),
    "boolean": Shape(booleans=BOTH),
    "integer": Shape(numbers=(INTEGERS,)),
    "number": Shape(numbers=(EVERY_NUMBER,)),
    "string": Shape(strings=(EVERY_STRING,)),
    "array": Shape(arrays=(EVERY_ARRAY,)),
    "object": Shape(objects=(EVERY_OBJECT,)),
}
PLAIN = {name: Formula(Kind.SHAPE, (), shape) for name, shape in SHAPES.items()}  # by the type's name
BY_KEY = {formula.key: formula for formula in PLAIN.values()}
ALWAYS = frozenset([TRUE, *PLAIN.values()])  # formulas of which it is known that there are such values
