"""A set of numbers as JSON text: an automaton that knows, at each digit, how the number compares with its bounds
and what its steps leave of it. States from which no member can be finished are never entered.

Numbers are finite in length: DIGITS integer digits unless a bound or a step needs more, and DIGITS fraction digits.
Exponents are such that the number fits in a float of 64 bits. Where there is a step no exponent is written; where there
is a bound other than zero, exponents follow a mantissa between 1 and 10, as every JSON writer puts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from ..nfa import Nfa
from .budget import too_large
from .digits import DIGITS, FREE_EXPONENT, exponent, integer, number
from .literals import decimal, decimal_places, emit_literals, spellings
from .numbers import Numbers

EXPONENT = 307  # behind a mantissa between 1 and 10
MAX_UNSTEPS, MAX_EXCLUDED = 16, 256  # numbers it must be no multiple of, and single ones it must not be
BELOW, TIED, ABOVE = -1, 0, 1  # the number so far against a bound


def prepare(numbers: Numbers) -> None:
    """Find out now whether it is too large to be written."""
    if len(numbers.unsteps) > MAX_UNSTEPS:
        raise too_large(f"a number must be no multiple of more than {MAX_UNSTEPS} others")
    if len(numbers.excluded) > MAX_EXCLUDED:
        raise too_large(f"a number must be none of more than {MAX_EXCLUDED} values")


def emit_numbers(nfa: Nfa, numbers: Numbers) -> int | None:
    """A rule for all members of the set; None where it has none."""
    if numbers.values is not None:
        return emit_literals(
            nfa, (spelling.encode() for value in sorted(numbers.values) for spelling in spellings(value))
        )
    parts = [node for part in numbers.without_exclusions() for node in _signed(nfa, part)]
    return nfa.eps(*parts) if parts else None


def is_empty(numbers: Numbers) -> bool:
    if numbers.is_surely_empty:
        return True
    if (not numbers.unsteps and not numbers.excluded) or numbers.has_an_obvious_member:
        return False
    return not any(_magnitudes(part) for part in numbers.without_exclusions())


def _signed(nfa: Nfa, numbers: Numbers) -> Iterator[int]:
    for sign, magnitudes in _magnitudes(numbers):
        body = magnitudes.emit(nfa)
        yield nfa.byte([(0x2D, 0x2D, body)]) if sign < 0 else body


def _magnitudes(numbers: Numbers) -> list[tuple[int, Magnitudes]]:
    """The members without their sign, as one set for each sign that has any."""
    low, high = numbers.low, numbers.high
    found = []
    if high is None or high >= 0:
        clipped = (Fraction(0), False) if low is None or low < 0 else (low, numbers.low_open)
        found.append((1, Magnitudes(numbers, *clipped, high, numbers.high_open)))
    if low is None or low < 0 or (low == 0 and not numbers.low_open and not numbers.plain):
        if high is None or high > 0:
            least = (Fraction(0), numbers.plain)
        else:
            least = (-high, numbers.high_open or (numbers.plain and high == 0))
        most = (None, False) if low is None else (-low, numbers.low_open)
        found.append((-1, Magnitudes(numbers, *least, *most)))
    return [(sign, magnitudes) for sign, magnitudes in found if magnitudes.exist]


class State(NamedTuple):
    """Digits read, and what is known from them."""

    whole: int  # digits before the point
    places: int  # digits after it; -1: no point yet
    low: int  # BELOW, TIED or ABOVE the lower bound
    high: int
    is_zero: bool  # a single 0 stands before the point
    rests: tuple[int, ...]  # digits so far modulo each step's numerator; -1: can be no multiple any more


class Magnitudes:
    """Numbers >= 0 between two bounds, with a step and unsteps of `numbers`, as digits."""

    def __init__(self, numbers: Numbers, low: Fraction, low_open: bool, high: Fraction | None, high_open: bool) -> None:
        self._plain = numbers.plain
        self._low, self._low_open = decimal(low), low_open
        self._high, self._high_open = (None if high is None else decimal(high)), high_open
        steps = ([] if numbers.step is None else [numbers.step]) + sorted(numbers.unsteps)
        if self._plain:  # an integer is a multiple of p/q, in lowest terms, if it is one of p
            steps = [Fraction(step.numerator) for step in steps]
        self._wanted = len(steps) - len(numbers.unsteps)  # the first `_wanted` must divide, the others must not
        self._scales = [decimal_places(step) for step in steps]
        self._moduli = [int(step * 10**scale) for step, scale in zip(steps, self._scales, strict=True)]
        bounds = [self._low] if self._high is None else [self._low, self._high]
        longest = max(len(digits) for digits in (*(whole for whole, _ in bounds), *map(str, self._moduli)))
        self._most_whole = max(DIGITS, longest + (self._high is None))
        longest = max([len(places) for _, places in bounds] + self._scales)
        self._most_places = 0 if self._plain else max(DIGITS, longest + 1)
        unit = 10**self._most_places  # numbers are looked at as multiples of the last place
        self._units = [int(step * unit) for step in steps]
        self._least = _at_least(low * unit, low_open)
        self._greatest = None if high is None else -_at_least(-high * unit, high_open)
        self._feasible: dict[State, bool] = {}
        self._nodes: dict[State, int] = {}
        self._first = State(0, -1, TIED, TIED if self._high else BELOW, False, (0,) * len(steps))

    @property
    def exist(self) -> bool:
        return any(True for _ in self._steps(self._first))

    def emit(self, nfa: Nfa) -> int:
        free = self._high is None and self._low == ("", "")
        if free and self._plain and self._moduli == [1] and self._wanted:
            return integer(nfa, not self._low_open, nfa.ret)
        if free and not self._plain and not self._moduli and not self._low_open:
            return number(nfa)
        mantissa = self._node(nfa, self._first)
        if self._moduli == [1] and self._wanted and self._plain:  # few states
            self._write_all(nfa)
        if self._plain or self._moduli:
            return mantissa
        return nfa.eps(mantissa, *self._with_exponent(nfa))

    def _write_all(self, nfa: Nfa) -> None:
        written = 0
        while written < len(self._nodes):
            for node in list(self._nodes.values())[written:]:
                nfa.lower(node)
                written += 1

    def _steps(self, state: State) -> Iterator[tuple[int, State]]:
        """The bytes that may follow, with the states they lead to."""
        return ((byte, following) for byte, following in self._moves(state) if self._is_feasible(following))

    def _moves(self, state: State) -> Iterator[tuple[int, State]]:
        """The same without looking whether a member can be finished from there."""
        if state.places < 0 < state.whole and self._most_places:
            yield 0x2E, State(state.whole, 0, *self._at_point(state), state.is_zero, state.rests)
        if not (state.is_zero and state.places < 0):  # a point alone follows a leading zero
            for digit in range(10):
                yield 0x30 + digit, self._digit(state, digit)

    def _digit(self, state: State, digit: int) -> State:
        whole, places = (state.whole + 1, -1) if state.places < 0 else (state.whole, state.places + 1)
        is_zero = state.is_zero or (whole == 1 and places < 0 and digit == 0)
        significant = 0 if is_zero else whole
        low = _compare(state.low, self._low, significant, places, digit)
        high = state.high if self._high is None else _compare(state.high, self._high, significant, places, digit)
        rests = tuple(
            self._rest(rest, digit, places, scale, modulus)
            for rest, scale, modulus in zip(state.rests, self._scales, self._moduli, strict=True)
        )
        return State(whole, places, low, high, is_zero, rests)

    @staticmethod
    def _rest(rest: int, digit: int, places: int, scale: int, modulus: int) -> int:
        if rest < 0 or places > scale:
            return rest if digit == 0 else -1
        return (rest * 10 + digit) % modulus

    def _at_point(self, state: State) -> tuple[int, int]:
        """Comparisons once the number of integer digits is known."""
        whole = 0 if state.is_zero else state.whole
        low = _settle(state.low, self._low, whole)
        return low, (state.high if self._high is None else _settle(state.high, self._high, whole))

    def _accepts(self, state: State) -> bool:
        if not state.whole or state.places == 0:
            return False
        low, high = self._at_point(state) if state.places < 0 else (state.low, state.high)
        places = max(state.places, 0)
        low = BELOW if low == TIED and places < len(self._low[1]) else low
        if low == BELOW or (low == TIED and self._low_open):
            return False
        if self._high is not None:
            high = BELOW if high == TIED and places < len(self._high[1]) else high
            if high == ABOVE or (high == TIED and self._high_open):
                return False
        for index, (rest, scale, modulus) in enumerate(zip(state.rests, self._scales, self._moduli, strict=True)):
            divides = rest >= 0 and rest * 10 ** max(scale - places, 0) % modulus == 0
            if divides != (index < self._wanted):
                return False
        return True

    # --- whether digits can follow that make a member -----------------------------------------------------------------

    def _is_feasible(self, state: State) -> bool:
        known = self._feasible.get(state)
        if known is None:
            known = self._feasible[state] = any(
                self._can_finish(state, more, low, high) for more, low, high in self._ways_on(state)
            )
        return known

    def _ways_on(self, state: State) -> Iterator[tuple[int, int, int]]:
        """How many more digits there may be before the point, and how the number then compares with its bounds. The
        most first: among many numbers there is sooner a member."""
        if state.places >= 0 or state.is_zero:
            yield 0, *(self._at_point(state) if state.places < 0 else (state.low, state.high))
        else:
            for whole in range(self._most_whole, state.whole - 1, -1):
                low = _settle(state.low, self._low, whole)
                yield whole - state.whole, low, BELOW if self._high is None else _settle(state.high, self._high, whole)

    def _can_finish(self, state: State, more: int, low: int, high: int) -> bool:
        """Whether a member begins like this, with `more` digits before the point, if the digits so far compare with the
        bounds as `low` and `high` say: a number between two that is a multiple of the step and of no unstep."""
        places = max(state.places, 0)
        if state.whole > self._most_whole or places > self._most_places or low == BELOW or high == ABOVE:
            return False
        power: int = 10 ** (more + self._most_places - places)  # so many numbers begin like this
        if TIED not in (low, high):
            return self._has_member(self._remainders(state, more), power)
        least = self._beginning(state, self._low if low == TIED else self._high) * power
        most = least + power - 1
        least = max(least, self._least) if low == TIED else least
        if high == TIED and self._greatest is not None:
            most = min(most, self._greatest)
        # an unstep that digits so far have made impossible is as impossible for the exact number
        return self._has_member([least % unit for unit in self._units], most - least + 1)

    def _beginning(self, state: State, bound: tuple[str, str] | None) -> int:
        """The digits so far, which are those of `bound`, as an integer."""
        assert bound is not None
        whole = bound[0] if state.places >= 0 else bound[0][: state.whole]
        places = bound[1].ljust(state.places, "0")[: state.places] if state.places > 0 else ""
        return int(whole + places or "0")

    def _remainders(self, state: State, more: int) -> list[int]:
        """Of the least number that begins like this, by every step in units of the last place; -1: no multiple does."""
        places = max(state.places, 0)
        return [
            -1 if rest < 0 else rest * 10 ** (more + self._most_places - min(places, scale)) % unit
            for rest, scale, unit in zip(state.rests, self._scales, self._units, strict=True)
        ]

    def _has_member(self, remainders: list[int], count: int) -> bool:
        """Whether one of `count` numbers in a row fulfils all steps, given the first one's remainders.

        It is soon found: of consecutive integers, fewer than 110 are all divisible by one of MAX_UNSTEPS numbers above
        1 (Jacobsthal's function), and multiples of the step are such integers, times the step."""
        step, first = 1, 0
        if self._wanted:
            if remainders[0] < 0:
                return False
            step = self._units[0]
            first = -remainders[0] % step
        unsteps = [
            (remainder, unit)
            for remainder, unit in zip(remainders[self._wanted :], self._units[self._wanted :], strict=True)
            if remainder >= 0
        ]
        if any(step % unit == 0 for _, unit in unsteps):
            return False
        while first < count:
            if all((remainder + first) % unit for remainder, unit in unsteps):
                return True
            first += step
        return False

    def _node(self, nfa: Nfa, state: State) -> int:
        if state not in self._nodes:
            self._nodes[state] = nfa.lazy(lambda: self._lower(nfa, state))
        return self._nodes[state]

    def _lower(self, nfa: Nfa, state: State) -> int:
        targets: list[list[int]] = []
        for byte, following in sorted(self._steps(state)):
            node = self._node(nfa, following)
            if targets and targets[-1][1] == byte - 1 and targets[-1][2] == node:
                targets[-1][1] = byte
            else:
                targets.append([byte, byte, node])
        if not targets:
            return nfa.ret
        place = nfa.byte([(first, last, node) for first, last, node in targets])
        return nfa.eps(place, nfa.ret) if self._accepts(state) else place

    def _with_exponent(self, nfa: Nfa) -> Iterator[int]:
        """Spellings with an exponent of all members but those whose mantissa is not in normal form."""
        low, low_open, high = self._low, self._low_open, self._high
        if high is None and low == ("", ""):
            yield _nonzero_mantissa(nfa, exponent(nfa, -FREE_EXPONENT, FREE_EXPONENT))
            return
        least = _order(low) if low != ("", "") else -EXPONENT - 1
        most = _order(high) if high is not None else EXPONENT + 1
        if high == ("", ""):
            return
        if least + 1 <= most - 1:
            inside = exponent(nfa, max(least + 1, -EXPONENT), min(most - 1, EXPONENT))
            yield _mantissa(nfa, Numbers(), inside)
        for order in {least, most} & set(range(-EXPONENT, EXPONENT + 1)):
            bounds = Numbers(
                low=_normal(low) if order == least else None,
                low_open=low_open,
                high=_normal(high) if order == most and high is not None else None,
                high_open=self._high_open,
            )
            yield _mantissa(nfa, bounds, exponent(nfa, order, order))


def _at_least(bound: Fraction, is_open: bool) -> int:
    """The least integer that fulfils a lower bound."""
    least = math.ceil(bound)
    return least + 1 if is_open and least == bound else least


def _compare(so_far: int, bound: tuple[str, str], whole: int, places: int, digit: int) -> int:
    """`so_far` with one more digit. Before the point it compares the digits read with as many of the bound's."""
    if so_far != TIED and (places >= 0 or whole <= len(bound[0])):
        return so_far
    if places < 0:
        if whole == 0:
            return TIED
        if whole > len(bound[0]):
            return ABOVE
        other = int(bound[0][whole - 1])
    else:
        other = int(bound[1][places - 1]) if places <= len(bound[1]) else 0
    return (digit > other) - (digit < other)


def _settle(so_far: int, bound: tuple[str, str], whole: int) -> int:
    """The comparison when the integer part is complete with `whole` digits."""
    if whole != len(bound[0]):
        return BELOW if whole < len(bound[0]) else ABOVE
    return so_far


def _order(bound: tuple[str, str]) -> int:
    """The exponent of the bound in normal form; the bound is not 0."""
    whole, fraction = bound
    return len(whole) - 1 if whole else -(len(fraction) - len(fraction.lstrip("0"))) - 1


def _normal(bound: tuple[str, str]) -> Fraction:
    return Fraction(f"{bound[0] or 0}.{bound[1] or 0}") / Fraction(10) ** _order(bound)


def _mantissa(nfa: Nfa, bounds: Numbers, after: int) -> int:
    """A mantissa from 1 up to 10 within the bounds, then `after`."""
    within = bounds & Numbers(low=Fraction(1), high=Fraction(10), high_open=True)
    digits = Magnitudes(within, within.low or Fraction(1), within.low_open, within.high, within.high_open)
    return nfa.call(digits._node(nfa, digits._first), after) if digits.exist else nfa.byte()


def _nonzero_mantissa(nfa: Nfa, after: int) -> int:
    positive = Numbers(low=Fraction(0), low_open=True)
    digits = Magnitudes(positive, Fraction(0), True, None, False)
    return nfa.call(digits._node(nfa, digits._first), after)
