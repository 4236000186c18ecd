"""A set of numbers as JSON text: an automaton that knows, at each digit, how the number compares with its bounds
and what its steps leave of it. States from which no member can be finished are never entered.

Numbers are finite in length: DIGITS integer digits unless a bound or a step needs more, and DIGITS fraction digits.
Exponents are such that the number fits in a float of 64 bits. Where there is a step no exponent is written; where there
is a bound other than zero, exponents follow a mantissa between 1 and 10, as every JSON writer puts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from ..nfa import Nfa
from .budget import too_large
from .digits import DIGITS, FREE_EXPONENT, exponent, integer, number
from .literals import decimal, decimal_places, emit_literals, spellings
from .numbers import Numbers

DIGITS_TO_TRY = (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)  # zeros last: they seldom make a number end sooner
EXPONENT = 307  # behind a mantissa between 1 and 10
MAX_VERDICTS = 50_000  # places in numbers that are looked at, about a second
BELOW, TIED, ABOVE = -1, 0, 1  # the number so far against a bound


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
        self._wanted = len(steps) - len(numbers.unsteps)  # the first `_wanted` must divide, the others must not
        self._scales = [decimal_places(step) for step in steps]
        self._moduli = [int(step * 10**scale) for step, scale in zip(steps, self._scales, strict=True)]
        bounds = [self._low] if self._high is None else [self._low, self._high]
        longest = max(len(digits) for digits in (*(whole for whole, _ in bounds), *map(str, self._moduli)))
        self._most_whole = max(DIGITS, longest + (self._high is None))
        longest = max([len(places) for _, places in bounds] + self._scales)
        self._most_places = 0 if self._plain else max(DIGITS, longest + 1)
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
        for digit in (
            () if state.is_zero and state.places < 0 else DIGITS_TO_TRY
        ):  # a point alone follows a leading zero
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

    def _is_feasible(self, state: State) -> bool:
        """Whether digits can follow that make a member: a search in depth, whose every verdict is kept."""
        known = self._feasible.get(state)
        path: list[tuple[State, Iterator[tuple[int, State]]]] = []
        if known is None:
            known = self._verdict(state)
            path = [(state, self._moves(state))]
        while path and known is None:
            if len(self._feasible) > MAX_VERDICTS:
                raise too_large("multiples and their exceptions have too many remainders in common")
            for _, following in path[-1][1]:
                found = self._feasible.get(following)
                found = self._verdict(following) if found is None else found
                if found is None:
                    path.append((following, self._moves(following)))
                    break
                self._feasible[following] = found
                if found:
                    known = True
                    break
            else:
                self._feasible[path.pop()[0]] = False
        known = bool(known)
        self._feasible.update((passed, True) for passed, _ in path if known)
        self._feasible.setdefault(state, known)
        return known

    def _verdict(self, state: State) -> bool | None:
        """What can be said without a search."""
        if not self._within(state):
            return False
        if self._accepts(state):
            return True
        if len(state.rests) == 1 and self._wanted and not state.is_zero:
            if self._leaves_multiple(state):
                return True
            if TIED not in (state.low, state.high if self._high else ABOVE):
                return False
        return None

    def _leaves_multiple(self, state: State) -> bool:
        """Whether digits that are free of the bounds can make a multiple: some d < 10^k with rest * 10^k + d = 0."""
        rest, scale, modulus = state.rests[0], self._scales[0], self._moduli[0]
        places = 0 if self._plain else scale
        for digits in self._free_digits(state):
            power: int = 10 ** (digits + places)
            if state.places >= 0:
                power = 10 ** (scale - state.places) if state.places < scale else 1
            if -(rest * power) % modulus < power:
                return True
        return False

    def _free_digits(self, state: State) -> Iterator[int]:
        """How many digits may still come before the point such that none of them is compared with a bound."""
        if state.places >= 0:
            if state.low == ABOVE and (self._high is None or state.high == BELOW):
                yield 0
            return
        low = len(self._low[0])
        high = self._most_whole if self._high is None else len(self._high[0])
        for whole in range(state.whole, high + 1):
            above = whole > low or (whole == low and state.low == ABOVE)
            below = self._high is None or whole < high or state.high == BELOW
            if above and below and (whole > state.whole or state.whole):
                yield whole - state.whole

    def _within(self, state: State) -> bool:
        if state.whole > self._most_whole or state.places > self._most_places:
            return False
        if state.places > 0 and (state.high == ABOVE or state.low == BELOW):
            return False
        if self._high is not None and state.places < 0 and not state.is_zero and state.whole > len(self._high[0]):
            return False
        return not (state.rests and self._wanted and state.rests[0] < 0)

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
