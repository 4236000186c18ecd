"""Sets of code points Unicode defines, exact for the version the standard library knows; and simple case folding."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import batched, groupby, islice

from .charset import ALL, MAX_CODE_POINT, NONE, SPACES, CharSet
from .clock import tick

BLOCK, QUICK = 1024, 8  # code points looked at between two ticks, and in a microsecond

_CATEGORIES = {
    "L": "Letter", "LC": "Cased_Letter", "Lu": "Uppercase_Letter", "Ll": "Lowercase_Letter", "Lt": "Titlecase_Letter",
    "Lm": "Modifier_Letter", "Lo": "Other_Letter", "M": "Mark", "Mn": "Nonspacing_Mark", "Mc": "Spacing_Mark",
    "Me": "Enclosing_Mark", "N": "Number", "Nd": "Decimal_Number", "Nl": "Letter_Number", "No": "Other_Number",
    "P": "Punctuation", "Pc": "Connector_Punctuation", "Pd": "Dash_Punctuation", "Ps": "Open_Punctuation",
    "Pe": "Close_Punctuation", "Pi": "Initial_Punctuation", "Pf": "Final_Punctuation", "Po": "Other_Punctuation",
    "S": "Symbol", "Sm": "Math_Symbol", "Sc": "Currency_Symbol", "Sk": "Modifier_Symbol", "So": "Other_Symbol",
    "Z": "Separator", "Zs": "Space_Separator", "Zl": "Line_Separator", "Zp": "Paragraph_Separator",
    "C": "Other", "Cc": "Control", "Cf": "Format", "Cs": "Surrogate", "Co": "Private_Use", "Cn": "Unassigned",
}  # fmt: skip
_ALIASES = {long: short for short, long in _CATEGORIES.items()} | {
    "Combining_Mark": "M", "digit": "Nd", "punct": "P", "cntrl": "Cc",
}  # fmt: skip
_HEX = CharSet.of((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_FIXED = {
    "Any": ALL,
    "ASCII": CharSet.of((0, 0x7F)),
    "ASCII_Hex_Digit": _HEX,
    "AHex": _HEX,
    "Hex_Digit": _HEX | CharSet.of((0xFF10, 0xFF19), (0xFF21, 0xFF26), (0xFF41, 0xFF46)),
    "White_Space": (SPACES | CharSet.of((0x85, 0x85))) - CharSet.of((0xFEFF, 0xFEFF)),
}
_TESTS = {"Lowercase": str.islower, "Lower": str.islower, "Uppercase": str.isupper, "Upper": str.isupper,
          "XID_Start": lambda char: char != "_" and char.isidentifier(),
          "XIDS": lambda char: char != "_" and char.isidentifier(),
          "XID_Continue": lambda char: ("a" + char).isidentifier(),
          "XIDC": lambda char: ("a" + char).isidentifier()}  # fmt: skip


@lru_cache(maxsize=1)
def _categories() -> dict[str, CharSet]:
    """Every two-letter General_Category; a tenth of a second, once."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, run in groupby(map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1)))):
        end = start
        while some := sum(1 for _ in islice(run, BLOCK)):
            end += some
            tick(some // QUICK)
        ranges.setdefault(name, []).append((start, end - 1))
        start = end
    return {name: CharSet.of(*spans) for name, spans in ranges.items()}


def _category(name: str) -> CharSet:
    if name == "LC":
        return _category("Lu") | _category("Ll") | _category("Lt")
    chars = NONE
    for short, members in _categories().items():
        if short.startswith(name):
            chars |= members
    return chars


def _where(test: Callable[[str], bool], codes: Iterable[int]) -> list[int]:
    tick(BLOCK // QUICK)
    return [code for code in codes if test(chr(code))]


@lru_cache(maxsize=128)
def property_set(text: str) -> CharSet | None:
    r"""What `\p{text}` holds, None for a property that cannot be told exactly here (scripts, emoji, ...)."""
    key, _, value = text.rpartition("=")
    if key not in ("", "gc", "General_Category"):
        return None
    short = _ALIASES.get(value, value)
    if short in _CATEGORIES:
        return _category(short)
    if key:
        return None
    if value == "Assigned":
        return ~_category("Cn")
    if value in _TESTS:
        test = _TESTS[value]
        return CharSet.of(*((code, code) for some in batched(ALL, BLOCK) for code in _where(test, some)))
    return _FIXED.get(value)


# Simple foldings of Unicode 15.1 that neither str.casefold (full folding) nor str.lower gives
_SIMPLE = {0xFB05: 0xFB06, 0x1FD3: 0x0390, 0x1FE3: 0x03B0}


def simple_fold(code_point: int) -> int:
    """Simple case folding (CaseFolding.txt, statuses C and S), which ECMA-262 canonicalises with under `iu`."""
    char = chr(code_point)
    for folded in (char.casefold(), char.lower()):
        if len(folded) == 1:
            return _SIMPLE.get(code_point, ord(folded))
    return code_point


@lru_cache(maxsize=1)
def _orbits() -> list[CharSet]:
    """Characters that fold alike, where there is more than one. All of them lie in the first two planes."""
    groups: dict[int, list[int]] = {}
    for code in range(0x20000):
        tick()
        if not 0xD800 <= code <= 0xDFFF:
            groups.setdefault(simple_fold(code), []).append(code)
    return [CharSet.of(*((code, code) for code in codes)) for codes in groups.values() if len(codes) > 1]


@lru_cache(maxsize=1)
def _orbit_of() -> dict[int, CharSet]:
    return {code: orbit for orbit in _orbits() for code in orbit}


@lru_cache(maxsize=512)
def any_case(chars: CharSet) -> CharSet:
    """`chars` and everything that is equal to one of them but for case."""
    if len(chars) == 1:
        return _orbit_of().get(chars.ranges[0][0], chars)
    tick(len(_orbits()))
    ranges = [span for orbit in _orbits() if any(code in chars for code in orbit) for span in orbit.ranges]
    return chars | CharSet.of(*ranges)
