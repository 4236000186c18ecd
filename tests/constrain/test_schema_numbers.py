"""Sets of numbers: their laws over exact fractions, and their texts."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from imp.constrain.errors import Code
from imp.constrain.nfa import Nfa
from imp.constrain.reference import Reference
from imp.constrain.schema.number_text import emit_numbers, is_empty
from imp.constrain.schema.numbers import INTEGERS, Numbers, finite
from tests.constrain.schemas import refusal

STEPS = [Fraction(1, 4), Fraction(3), Fraction(1, 10), Fraction(7), Fraction(1, 1000), Fraction(100)]


def a_number(rng: random.Random) -> Fraction:
    return Fraction(rng.choice([rng.randint(-30, 30), rng.randint(-2000, 2000), Fraction(rng.randint(-3000, 3000), 10), Fraction(rng.randint(-300, 300), 1000)]))


def a_set(rng: random.Random) -> Numbers:
    numbers = Numbers()
    for _ in range(rng.randint(0, 4)):
        numbers &= rng.choice(
            [
                Numbers(low=a_number(rng), low_open=rng.random() < 0.5),
                Numbers(high=a_number(rng), high_open=rng.random() < 0.5),
                Numbers(step=rng.choice(STEPS)),
                INTEGERS,
                Numbers(unsteps=frozenset([rng.choice([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3), Fraction(3, 10), Fraction(21, 2), Fraction(997)])])),
                Numbers(excluded=frozenset([Fraction(rng.randint(-5, 5)), Fraction(1, 2)])),
                finite([a_number(rng), a_number(rng), Fraction(1)], plain=False),
            ]
        )
    return numbers


def points(rng: random.Random, numbers: Numbers) -> list[Fraction]:
    near = [p for p in (numbers.low, numbers.high, Fraction(0), Fraction(1), *(a_number(rng) for _ in range(8))) if p is not None]
    return near + [p + Fraction(1, 100) for p in near] + [p - Fraction(1, 10) for p in near]


def spelled(value: Fraction) -> str:
    """All digits, as Python's integers write them."""
    scaled = value * 10**6
    assert scaled.denominator == 1
    digits = str(abs(scaled.numerator)).rjust(7, "0")
    text = f"{digits[:-6]}.{digits[-6:]}".rstrip("0").rstrip(".")
    return "-" + text if value < 0 else text


def walked(reference: Reference, rng: random.Random) -> bytes:
    """A text of the language, byte by byte at random. Fails at a dead end."""
    state, written = reference.first, bytearray()
    while None not in state or (len(written) < 400 and rng.random() < 0.8):
        live = [byte for byte in b"0123456789.-+eE" if reference.advance(state, bytes([byte]))]
        if not live and None in state:
            break
        assert live, f"a dead end after {bytes(written)!r}"
        written.append(rng.choice(live))
        state = reference.advance(state, written[-1:])
    return bytes(written)


def accepts(reference: Reference | None, text: str) -> bool:
    return reference is not None and None in reference.advance(reference.first, text.encode())


@pytest.mark.parametrize("seed", range(60))
def test_texts_are_those_of_the_members(seed):
    rng = random.Random(seed)
    numbers = a_set(rng)
    nfa = Nfa()
    node = emit_numbers(nfa, numbers)
    assert (node is None) == is_empty(numbers)
    reference = None if node is None else Reference(nfa, node)
    for point in points(rng, numbers):
        assert accepts(reference, spelled(point)) == (point in numbers), (numbers, point)
    for text in ("01", ".5", "1.", "+1", "1e", "1e+", "-", "--1", "00", "-01", "1.5.5", "1e5.2", "", "0x1"):
        assert not accepts(reference, text), (numbers, text)


@pytest.mark.parametrize("seed", range(60))
def test_walks_end_in_members(seed):
    rng = random.Random(seed)
    numbers = a_set(rng)
    nfa = Nfa()
    node = emit_numbers(nfa, numbers)
    for _ in range(0 if node is None else 6):
        text = walked(Reference(nfa, node), rng).decode()
        assert Fraction(text) in numbers, (numbers, text)


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(step=Fraction(2147483647), low=Fraction(1), low_open=True, unsteps=frozenset([Fraction(3)])),
        Numbers(step=Fraction(10**30), low=Fraction(0), unsteps=frozenset([Fraction(3)]), plain=True),
        Numbers(step=Fraction(99991), unsteps=frozenset(Fraction(prime, 7) for prime in (2, 3, 5, 11, 13, 10**9 + 7)), plain=True),
        Numbers(step=Fraction(1, 10**9), unsteps=frozenset([Fraction(7, 10**8), Fraction(11, 10**9)]), high=Fraction(1)),
        Numbers(step=Fraction(3, 2), low=Fraction(10**19), high=Fraction(10**19 + 100), unsteps=frozenset([Fraction(2)])),
    ],
)
def test_steps_and_unsteps_that_leave_many_remainders(numbers):
    """What follows a digit is found by arithmetic: there is no search that could give up in the middle of a text."""
    nfa = Nfa()
    reference = Reference(nfa, emit_numbers(nfa, numbers))
    for seed in range(8):
        assert Fraction(walked(reference, random.Random(seed)).decode()) in numbers


def test_a_step_whose_multiples_are_all_excluded_has_no_numbers():
    for step, unstep in ((6, 3), (10**12, 10**6), (2147483648, 2)):
        assert is_empty(Numbers(step=Fraction(step), unsteps=frozenset([Fraction(unstep)]), low=Fraction(1)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "allOf": [{"not": {"multipleOf": prime}} for prime in range(101, 118)]},
        {"type": "number", "not": {"enum": list(range(257))}},
    ],
)
def test_more_exceptions_than_can_be_written_are_refused(schema):
    error = refusal(schema)
    assert error.code is Code.TOO_LARGE and "a number must be n" in error.message


@pytest.mark.parametrize("seed", range(60))
def test_complement_and_intersection(seed):
    rng = random.Random(1000 + seed)
    one, other = a_set(rng), a_set(rng)
    both, rest = one & other, one.complement()
    for point in points(rng, one) + points(rng, other):
        assert (point in both) == (point in one and point in other)
        assert any(point in part for part in rest) == (point not in one)
    if both.is_surely_empty:
        assert not any(point in both for point in points(rng, both))


@pytest.mark.parametrize("step", [Fraction(123456789, 10**9), Fraction(10**18 + 9), Fraction(99991), Fraction(1, 10**8)])
def test_large_and_fine_steps(step):
    nfa = Nfa()
    node = emit_numbers(nfa, Numbers(step=step, low=Fraction(1)))
    assert node is not None
    reference = Reference(nfa, node)
    for times in (7, 10**4, 10**7 + 1):
        value = step * times
        if 1 <= value < 10**20 and (value * 10**9).denominator == 1:
            text = f"{value.numerator // value.denominator}.{int(value % 1 * 10**9):09}"
            assert accepts(reference, text) and not accepts(reference, text + "1")
