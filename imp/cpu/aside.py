"""A step that is computed a piece at a time: programs of its own, with buffers of their own, on the same threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.inputs import StepInputs
from ..model.ops import StepLimits
from .adapters import Adapters, Kept
from .ahead import Ahead
from .program import STEP_WORDS, Program, fill_header
from .threads import Place, Threads


@dataclass(frozen=True, slots=True)
class Programs:
    """Of one model: of steps without adapters, and with them."""

    plain: Program
    adapted: Program


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step in progress, and what its header points into."""

    program: Program
    joined: np.ndarray
    pooled: int  # positions whose hidden states are wanted
    adapters: Kept


class CpuAside:
    """model.ops.Aside on this machine's cores."""

    def __init__(
        self,
        limits: StepLimits,
        programs: Programs,
        threads: Threads,
        adapters: Adapters,
        hidden: np.ndarray,
        ahead: Ahead,
        apart: bool,
    ) -> None:
        """hidden: float32 [tokens of a step, D], where the programs leave hidden states. apart: see fill_header."""
        self.limits = limits
        self._programs, self._threads, self._adapters, self._hidden = programs, threads, adapters, hidden
        self._ahead = ahead
        self._apart = apart
        self._step = np.zeros(STEP_WORDS, np.int64)
        self._begun: _Begun | None = None
        self._place: Place | None = None  # where it goes on; None: it has ended

    def begin(self, inputs: StepInputs) -> None:
        limits = self.limits
        assert len(inputs.tokens) <= limits.tokens and len(inputs.contexts) <= limits.rows, "the step is too large"
        assert not len(inputs.wanted), "no logits are made aside"
        program = self._programs.adapted if len(inputs.adapted) else self._programs.plain
        joined = fill_header(self._step, inputs, self._apart)
        self._begun, self._place = _Begun(program, joined, len(inputs.pooled), self._adapters.kept), Place()
        self._ahead.used(inputs)
        self._begun.adapters.fill_header(self._step)

    def go_on(self, seconds: float) -> bool:
        assert self._begun is not None and self._place is not None, "begin comes first"
        self._place = self._threads.run_for(self._begun.program, self._step, self._place, seconds)
        return self._place is None

    def hidden(self) -> np.ndarray:
        assert self._begun is not None, "begin comes first"
        return self._hidden[: self._begun.pooled]
