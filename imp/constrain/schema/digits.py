"""Digits without bounds: rules for integers and numbers of any value, and for exponents."""

from __future__ import annotations

from ..nfa import Nfa

DIGITS = 20  # before the point, and after it
FREE_EXPONENT = 287  # behind any mantissa of up to DIGITS digits


def integer(nfa: Nfa, zero: bool, after: int) -> int:
    """Up to DIGITS digits without a leading zero; `zero`: 0 is one of the numbers."""
    more = nfa.repeat(0, DIGITS - 1, after, lambda following: nfa.byte([(0x30, 0x39, following)]))
    return nfa.byte([(0x31, 0x39, more), *([(0x30, 0x30, after)] if zero else [])])


def number(nfa: Nfa) -> int:
    """Any number without a sign."""
    scale = nfa.lazy(lambda: exponent(nfa, -FREE_EXPONENT, FREE_EXPONENT))
    places = nfa.repeat(1, DIGITS, nfa.ret, lambda following: nfa.byte([(0x30, 0x39, following)]))
    point = nfa.byte([(0x2E, 0x2E, nfa.call(places, nfa.eps(scale, nfa.ret)))])
    return integer(nfa, True, nfa.eps(point, scale, nfa.ret))


def exponent(nfa: Nfa, least: int, most: int) -> int:
    """`e`, a sign where needed, and one to three digits whose value is within the bounds."""
    signs, digits = [], -1
    if most >= 0:
        digits = nfa.eps(*_padded(nfa, max(least, 0), most))
        signs += [digits, nfa.byte([(0x2B, 0x2B, digits)])]
    if least <= 0:
        if least != -most:
            digits = nfa.eps(*_padded(nfa, max(-most, 0), -least))
        signs.append(nfa.byte([(0x2D, 0x2D, digits)]))
    return nfa.byte([(0x45, 0x45, sign := nfa.eps(*signs)), (0x65, 0x65, sign)])


def _padded(nfa: Nfa, least: int, most: int) -> list[int]:
    """Decimal numbers between the two with one to three digits, leading zeros allowed; one node for each width."""
    return [
        _fixed(nfa, str(least).rjust(width, "0"), str(min(most, 10**width - 1)).rjust(width, "0"))
        for width in (1, 2, 3)
        if least < 10**width
    ]


def _fixed(nfa: Nfa, least: str, most: str) -> int:
    """Digit strings of one width from `least` to `most`."""
    if not least:
        return nfa.ret
    first, last = int(least[0]), int(most[0])
    if first == last:
        return nfa.byte([(0x30 + first, 0x30 + first, _fixed(nfa, least[1:], most[1:]))])
    nines, zeros = "9" * (len(least) - 1), "0" * (len(least) - 1)
    edges = [
        (0x30 + first, 0x30 + first, _fixed(nfa, least[1:], nines)),
        (0x30 + last, 0x30 + last, _fixed(nfa, zeros, most[1:])),
    ]
    if first + 1 < last:
        edges.append((0x30 + first + 1, 0x30 + last - 1, _fixed(nfa, zeros, nines)))
    return nfa.byte(edges)
