"""How long a step will take, learnt from the steps there were. Seconds come from outside; there is no clock here.

    seconds = decode + prompt
    decode  = a + b * positions + c * keys          of the rows that decode, and of the keys they read
    prompt  = d * positions + e * keys + f          f: only where nothing decodes, or it is in `decode` already

Steps without prompts teach the first line, all others the second. Weights are read once a step whatever it computes,
which is a and f; b and d are arithmetic, c and e attention. What little is known at first is put down to positions, so
that they are taken for too dear rather than for too cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST = 16  # prompt positions of a step where nothing is known of what they cost
FIRST_S = 0.005  # seconds aside where nothing is known of what a step takes
LEAST = 1  # prompt positions of any step, whatever they cost: prompts get on
LEAST_SHARE = 0.12  # of a step that may be spent aside, however short it should be
AIM = 0.45  # of the bound: predictions are not exact, and the bound is to hold
AIM_ASIDE = 0.28  # the same for what is computed aside, whose pieces end when a unit of work does, some time late
SHORT = 256  # prompt positions that are over soon: few steps are longer for them, and who waits for them waits less
AIM_SHORT = 0.6  # as AIM_ASIDE, where no prompt aside has more left
AIM_GUESSES = 0.5  # of the bound, for rows with their guesses; where short prompts wait, there are none
IDLE_STEPS = 4.0  # the bound, where none is set: in steps without prompts
ALONE_S = 0.03  # seconds of a step where nothing decodes: whoever comes while it runs waits for its end
ALONE_LEAST = 64  # its prompt positions at least, whatever they cost: with fewer, weights are read for too little
STALE = 256  # steps with prompts until one without them is made to learn from
KEPT = 0.97  # weight of what was known after each step
KEYS = 1024.0  # keys are counted in units that are about as dear as a position
SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Load:
    """What a step computes: positions, and the keys they read, of rows that decode and of prompts."""

    decode_positions: int = 0
    decode_keys: int = 0
    prompt_positions: int = 0
    prompt_keys: int = 0


@dataclass(frozen=True, slots=True)
class Decode:
    """The rows that decode in a step: positions and the keys these read."""

    positions: int = 0  # guesses included
    keys: int = 0
    rows: int = 0  # positions without guesses
    row_keys: int = 0


class Fit:
    """Coefficients, none below 0, with the least squares of relative errors, over the latest steps above all.

    Where several would do, the first features explain the most."""

    def __init__(self, size: int) -> None:
        self._products = [[0.0] * size for _ in range(size)]
        self._sums = [0.0] * size
        self._values = [0.0] * size
        self._settled = True
        self.known = False

    def add(self, features: tuple[float, ...], seconds: float) -> None:
        weight = 1.0 / (seconds * seconds)
        for i, x in enumerate(features):
            row = self._products[i]
            for j, y in enumerate(features):
                row[j] = row[j] * KEPT + weight * x * y
            self._sums[i] = self._sums[i] * KEPT + weight * x * seconds
        self._settled = False
        self.known = True

    @property
    def values(self) -> list[float]:
        """Found by coordinate descent, which goes on where it stood before."""
        if not self._settled:
            values, sums = self._values, self._sums
            for _ in range(SWEEPS):
                for i, row in enumerate(self._products):
                    if row[i] > 0.0:
                        rest = sums[i] - sum(map(float.__mul__, row, values)) + row[i] * values[i]
                        values[i] = max(0.0, rest / row[i])
            self._settled = True
        return self._values

    def predict(self, features: tuple[float, ...]) -> float:
        return sum(map(float.__mul__, self.values, features))


class Pace:
    """Belongs to the scheduler."""

    def __init__(self, max_stall_s: float | None = None) -> None:
        """max_stall_s: rows that decode are not to wait longer for a step; None: four times as long as for one that
        has no prompts."""
        self.max_stall_s = max_stall_s
        self._decode, self._prompt = Fit(3), Fit(3)
        self._since_decode = 0  # steps with prompts since the last one without
        self._largest = 0  # prompt positions there have been in a step

    def learn(self, load: Load, seconds: float) -> None:
        """A step has taken so long."""
        if seconds <= 0.0:
            return
        if not load.prompt_positions:
            self._decode.add(_decode_features(load), seconds)
            self._since_decode = 0
            return
        decode = self._decode.predict(_decode_features(load)) if load.decode_positions else 0.0
        alone = 0.0 if load.decode_positions else 1.0
        features = (float(load.prompt_positions), load.prompt_keys / KEYS, alone)
        # what the decode rows are said to take more than the whole step is an error of that, and no time of prompts
        self._prompt.add(features, max(seconds - decode, seconds * 0.05))
        self._largest = max(self._largest, load.prompt_positions)
        self._since_decode += load.decode_positions > 0

    @property
    def wants_to_learn(self) -> bool:
        """A step without prompts should be made, now that there is one to be made: nothing else tells what it takes."""
        if self._decode.known:
            return self._since_decode >= STALE
        return self._prompt.known

    def stretch(self, rows: int, row_keys: int, left: int) -> float:
        """How many times as long as rows that decode take without guesses they may take with them.

        left: positions that the longest of the prompts that wait has still to compute; 0: none waits."""
        if 0 < left <= SHORT:
            return 1.0  # all the time there is goes to the prompts, which are over the sooner
        if self.max_stall_s is None:
            return AIM_GUESSES * IDLE_STEPS
        idle = self._decode_s(rows, row_keys)
        return AIM_GUESSES * self.max_stall_s / idle if idle else math.inf

    def piece(self, decode: Decode, left: int) -> float:
        """Seconds that what is computed aside may take beside these rows.

        left: positions that the longest of the prompts aside has still to compute."""
        if not self._decode.known:
            return FIRST_S
        idle = self._decode_s(decode.rows, decode.row_keys)
        aim = AIM_SHORT if left <= SHORT else AIM_ASIDE
        return max(self._left(aim, decode), idle * LEAST_SHARE)

    def chunk(self, decode: Decode, start: int) -> int | None:
        """Prompt positions that may go with these rows; None: nothing is known of time, so nothing is limited by it.

        start: positions of the longest of the prompts that are computed already.
        """
        if not self._decode.known:
            return None
        if not self._prompt.known:
            return FIRST
        return max(LEAST, self._positions(self._left(AIM, decode), start))

    def _left(self, aim: float, decode: Decode) -> float:
        """Seconds of this share of the bound that these rows leave. Guesses make no bound longer."""
        idle = self._decode_s(decode.rows, decode.row_keys)
        return aim * self._bound(idle) - self._decode_s(decode.positions, decode.keys)

    def _bound(self, idle: float) -> float:
        """Seconds that a step may take whose rows take so many without guesses."""
        return IDLE_STEPS * idle if self.max_stall_s is None else self.max_stall_s

    def _decode_s(self, positions: int, keys: int) -> float:
        return self._decode.predict(_decode_features(Load(positions, keys)))

    def portion(self, start: int) -> int | None:
        """Prompt positions of a step where nothing decodes; None: nothing is known of what they take.

        start: as for chunk().
        """
        if not self._prompt.known:
            return None
        return max(ALONE_LEAST, self._positions(ALONE_S - self._prompt.values[2], start))

    def _positions(self, left: float, start: int) -> int:
        """Prompt positions that are computed in so many seconds; no more than twice as many as ever were in a step:
        no further than was seen to be true."""
        position, keys, _ = self._prompt.values
        # left = n * position + keys * n * (start + n / 2), keys in units
        linear, square = position + keys * start / KEYS, keys / KEYS / 2
        if left <= 0.0:
            return 0
        if square > 0.0:
            n = (math.sqrt(linear * linear + 4.0 * square * left) - linear) / (2.0 * square)
        else:
            n = left / linear if linear > 0.0 else math.inf
        return int(min(n, 2 * self._largest))


def _decode_features(load: Load) -> tuple[float, ...]:
    return (1.0, float(load.decode_positions), load.decode_keys / KEYS)
