"""Where the time of a step goes: every phase of the CPU backend's program launched by itself, and added up by kernel.

    python -m bench.phases --model GGUF [--cases pp128,pp512,tg64,tg32x8@16,tg32@2048] [--threads 2] [--reps 3]

The phases of a step still follow each other as in a run, so that caches hold what they would hold; what launching them
one by one costs is taken off. Ops of one phase run side by side and are named together. The share of the table's sum
says where the time goes; `whole` is a run in one launch, as the server does it, for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from bench.measure import load_average, machine, table
from bench.model import Case, Driver, blocks_for, load
from imp.cpu.program import Op, Program
from imp.cpu.threads import Threads

DEFAULT = "pp128,pp512,tg64,tg32x8@16,tg32@2048"
LEAST_SHARE = 0.005  # of a step; what takes less is one row together


class Phases:
    """Stands in for a backend's Threads: `run` does what theirs does, a phase at a time, and notes the seconds."""

    def __init__(self, threads: Threads) -> None:
        self.threads, self.step = threads, threads.step
        self.seconds: dict[str, float] = defaultdict(float)
        self._empty_s = self._launch_s()

    def run(self, program: Program) -> None:
        names = [thing.kernel.name for thing in program.keep if isinstance(thing, Op)]
        first = 0
        while first < len(program.table):
            after = first + int(program.table[first, 3])
            part = Program(program.table[first:after], (), 0)
            began = time.perf_counter()
            self.threads.run(part)
            took = time.perf_counter() - began - self._empty_s
            self.seconds[" + ".join(sorted(set(names[first:after])))] += max(0.0, took)
            first = after

    def close(self) -> None:
        self.threads.close()

    def _launch_s(self) -> float:
        """What a launch costs that has nothing to do."""
        nothing = Program(np.zeros((0, 4), np.int64), (), 0)
        seconds = []
        for _ in range(200):
            began = time.perf_counter()
            self.threads.run(nothing)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def parts(driver: Driver, case: Case, reps: int) -> tuple[float, dict[str, float]]:
    """(seconds of the case in one launch a step, seconds by kernel when its phases are launched one by one)."""
    whole = statistics.median(driver.measure(case, reps).seconds)
    threads = driver.backend._threads
    driver.backend._threads = phases = Phases(threads)
    try:
        sequences = driver.ready(case)
        run = {"pp": driver.prefill, "tg": driver.decode}[case.kind]
        for rep in range(reps + 1):
            if rep == 1:  # the first one met memory that nobody had touched
                phases.seconds.clear()
            for seq in sequences:
                seq.computed = case.depth
            run(sequences, case.depth + case.tokens)
    finally:
        driver.backend._threads = threads
    return whole, {name: seconds / reps for name, seconds in phases.seconds.items()}


def shares(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """Names and shares of the sum, the largest first; the small ones together at the end."""
    whole = sum(seconds.values())
    found = sorted(((name, took / whole) for name, took in seconds.items()), key=lambda each: -each[1])
    large = [each for each in found if each[1] >= LEAST_SHARE]
    rest = sum(share for _, share in found[len(large) :])
    return [*large, ("all others", rest)] if rest else large


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.phases", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cases", default=DEFAULT, help="see bench/model.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    chosen = parser.parse_args()
    cases = [Case.parse(text) for text in chosen.cases.split(",")]
    loaded = load(chosen.model, "cpu", chosen.threads, blocks=blocks_for(cases))
    driver = Driver(loaded)
    print(f"{machine()}; load average {load_average():.1f}")
    for case in cases:
        whole, seconds = parts(driver, case, chosen.reps)
        each = 1e3 / (case.tokens if case.kind == "tg" else 1)  # ms of a step, or of the prompt
        rows = [
            [name, f"{share:.1%}", f"{share * sum(seconds.values()) * each:.3f}"] for name, share in shares(seconds)
        ]
        print(f"\n{case}: whole {whole * each:.3f} ms, phases one by one {sum(seconds.values()) * each:.3f} ms")
        print(table(["kernel", "share", "ms"], rows), flush=True)
    loaded.close()


if __name__ == "__main__":
    main()
