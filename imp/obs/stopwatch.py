"""diagnostics.step_timing: which part of a step the time goes to."""

from __future__ import annotations

import time

from imp.obs.metrics import Labels, Metrics

# pack: arrays are made of the batch.  forward: the model runs.  sample: masks, and tokens are drawn.
PHASES = ("plan", "pack", "forward", "sample", "apply", "deliver")
IDLE = ""


class Stopwatch:
    """Runs on the engine thread, which says what it does next; the sums may be read anywhere."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._phase = IDLE
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """What is done from now on; IDLE: nothing."""
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
        self.steps += phase == "apply"

    def connect(self, metrics: Metrics) -> None:
        """Let the sums be read at a scrape."""
        metrics.read("imp_step_phase_seconds_total", self._by_phase)
        metrics.read("imp_steps_timed_total", lambda: self.steps)

    def _by_phase(self) -> dict[Labels, float]:
        return {(phase,): seconds for phase, seconds in self.seconds.items()}
