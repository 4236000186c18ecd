"""Numbers of binary floating-point formats by exact fractions, written from the formats' definitions alone."""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """IEEE-like, or with `finite_nan` the top exponent is of numbers too and only all ones are NaN (e4m3)."""

    exponent_bits: int
    mantissa_bits: int
    finite_nan: bool = False
    has_special: bool = True        # infinities and NaN, or without finite_nan none at all (e2m1)

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def largest(self) -> int:
        """Bits of the largest number."""
        everything = self.sign_bit - 1
        if self.finite_nan:
            return everything - 1
        return everything - (1 << self.mantissa_bits) if self.has_special else everything

    def value(self, bits: int) -> Fraction | float:
        magnitude = bits & (self.sign_bit - 1)
        sign = -1 if bits & self.sign_bit else 1
        if magnitude > self.largest:
            return sign * math.inf if magnitude == self.largest + 1 and not self.finite_nan else math.nan
        exponent, mantissa = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        unit = Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa_bits)
        return sign * unit * (mantissa + ((1 << self.mantissa_bits) if exponent else 0))

    def rounded(self, x: Fraction, mode: str = "even", saturates: bool = False) -> int:
        """Bits of x rounded: mode even, away, zero, down or up. Past the largest: infinity, or the largest if `saturates`."""
        negative = x < 0
        magnitude = abs(x)
        low, high = 0, self.largest
        while low < high:                       # the greatest number that is not above
            middle = (low + high + 1) // 2
            if self.value(middle) <= magnitude:
                low = middle
            else:
                high = middle - 1
        bits = low + self._goes_up(low, magnitude, negative, mode)
        if bits > self.largest:
            bits = self.largest if saturates or mode == "zero" else self.largest + 1
        return bits | (self.sign_bit if negative else 0)

    def _goes_up(self, low: int, magnitude: Fraction, negative: bool, mode: str) -> bool:
        below = self.value(low)
        if below == magnitude or mode == "zero":
            return False
        if mode in ("down", "up"):
            return (mode == "down") == negative
        unit = Fraction(2) ** (max(low >> self.mantissa_bits, 1) - self.bias - self.mantissa_bits)
        twice = 2 * (magnitude - below)
        return twice > unit or (twice == unit and (mode == "away" or low & 1 == 1))


F16 = Format(5, 10)
BF16 = Format(8, 7)
TF32 = Format(8, 10)
F32 = Format(8, 23)
E4M3 = Format(4, 3, finite_nan=True)
E5M2 = Format(5, 2)
E2M1 = Format(2, 1, has_special=False)
