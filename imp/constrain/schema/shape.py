"""What a value may look like, one level deep: for each type of JSON a union of sets."""

from __future__ import annotations

from dataclasses import dataclass

from .arrays import EVERY_ARRAY, Arrays
from .numbers import EVERY_NUMBER, Numbers
from .objects import EVERY_OBJECT, Objects
from .strings import Strings

EVERY_STRING = Strings()
BOTH = frozenset([False, True])


@dataclass(frozen=True, slots=True)
class Shape:
    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    strings: tuple[Strings, ...] = ()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()


ANYTHING = Shape(True, BOTH, (EVERY_NUMBER,), (EVERY_STRING,), (EVERY_ARRAY,), (EVERY_OBJECT,))
NOTHING = Shape()
