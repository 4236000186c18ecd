"""Canonical JSON texts of single values, and rules for lists of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction

from ..clock import tick
from ..nfa import Nfa
from .budget import NODES, too_large
from .digits import DIGITS
from .shape import Shape


def quoted(string: str) -> bytes:
    """A JSON string in its canonical spelling: only what must be escaped is."""
    return json.dumps(string, ensure_ascii=False).encode()


def scalar_texts(shape: Shape, limit: int) -> list[bytes] | None:
    """All values of the shape as JSON, if they are scalars and at most `limit`; else None."""
    if shape.arrays or shape.objects:
        return None
    texts = dict.fromkeys([b"null"] if shape.null else [])
    texts.update(dict.fromkeys(str(value).lower().encode() for value in sorted(shape.booleans)))
    for numbers in shape.numbers:
        members = numbers.finite(limit)
        if members is None:
            return None
        texts.update(dict.fromkeys(text(value).encode() for value in members))
    for strings in shape.strings:
        members_ = strings.finite(limit)
        if members_ is None:
            return None
        texts.update(dict.fromkeys(map(quoted, members_)))
    return list(texts) if len(texts) <= limit else None


def emit_literals(nfa: Nfa, texts: Iterable[bytes], after: int = Nfa.ret) -> int | None:
    """A rule for exactly these texts, sharing their beginnings; None where there are none."""
    root: dict[int | None, dict] = {}
    places = 0
    for literal in texts:
        tick(2 * len(literal))
        place = root
        for byte in literal:
            places += byte not in place
            place = place.setdefault(byte, {})
        place[None] = {}
        if places > NODES:
            raise too_large(f"the values need more than {NODES} nodes")
    if not root:
        return None
    made: dict[int, int] = {}
    work = [root]
    order = []
    while work:  # parents before children
        place = work.pop()
        tick()
        order.append(place)
        work.extend(below for byte, below in place.items() if byte is not None)
    for place in reversed(order):
        tick(2)
        node = nfa.byte([(byte, byte, made[id(below)]) for byte, below in place.items() if byte is not None])
        if None in place:
            node = after if len(place) == 1 else nfa.eps(node, after)
        made[id(place)] = node
    return made[id(root)]


def spellings(value: Fraction) -> set[str]:
    """The canonical spelling, and that of a float with an exponent if it is exact."""
    short = repr(float(value)) if abs(value) < Fraction(10) ** 308 else ""
    return {text(value), short} if "e" in short and Fraction(short) == value else {text(value)}


def text(value: Fraction) -> str:
    """The canonical spelling: all digits, or the shortest form of a float where that would be long."""
    whole, digits = decimal(abs(value))
    if len(whole) > DIGITS or len(digits) > DIGITS:
        as_float = repr(float(value)) if abs(value) < Fraction(10) ** 308 else ""
        if as_float and Fraction(as_float) == value:
            return as_float
    return ("-" if value < 0 else "") + (whole or "0") + ("." + digits if digits else "")


def decimal(value: Fraction) -> tuple[str, str]:
    """Digits before the point (none for 0) and after it, of a number >= 0 whose denominator divides a power of ten."""
    places = decimal_places(value)
    digits = str(value.numerator * (10**places // value.denominator)).rjust(places, "0")
    whole, fraction = (digits[:-places], digits[-places:]) if places else (digits, "")
    return whole.lstrip("0"), fraction


def decimal_places(value: Fraction) -> int:
    """How many fraction digits the number has."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    assert rest == 1, "numbers of JSON are decimal"
    return max(twos, fives)
