"""Whether this tree is as fast as it was: its speed over that of an earlier revision, case by case.

    python -m bench.gate [--base REVISION] [--cases pp128,tg24] [--rounds 3]    (make bench-gate)

Both revisions run at the same time, each in a process of its own that sleeps while the other one works, and take turns
case by case, some tenths of a second each: whatever else the machine does meets both alike. Of a pair of processes the
fastest quarter of each side's turns counts, of several pairs the median. Where that looks like a loss, more pairs are asked
before it is called one; a loss of more than 10 % fails (exit code 1). No figure here depends on how fast the machine is.

The default base is BASE, the revision whose speed is kept. Move it when something has become faster, which this says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.lines import ROOT
from bench.measure import load_average, machine, table
from tests import realmodel

BASE = "34849f8ddc06"
CASES = (
    *("pp128", "tg24", "tg6x8@16", "tg8@512"),
    *("Q4_0*1", "Q8_0*1", "Q4_K*1", "Q4_0*64", "Q8_0*64", "Q4_K*64"),
)
LEAST = 0.9  # of the base's speed
FASTER = 1.1  # from here on the base wants to be moved
TURNS = 12
ROUNDS, MOST_ROUNDS = 3, 7  # pairs of processes; the latter for cases that are under suspicion

Measure = Callable[[Sequence[str]], dict[str, float]]  # cases -> speed over the base's, of one pair of processes


def judged(measure: Measure, cases: Sequence[str], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Ratios of every case by pair of processes: `rounds` of them, more where they look like a loss."""
    ratios: dict[str, list[float]] = {case: [] for case in cases}
    asked: Sequence[str] = cases
    done = 0
    while asked and done < max(rounds, MOST_ROUNDS):
        for case, ratio in measure(asked).items():
            ratios[case].append(ratio)
        done += 1
        if done >= rounds:
            asked = lost(ratios)
    return ratios


def lost(ratios: dict[str, list[float]]) -> list[str]:
    """The cases that have lost more than they may."""
    return [case for case, found in ratios.items() if statistics.median(found) < LEAST]


def turn_ratio(base_s: Sequence[float], new_s: Sequence[float]) -> float:
    """The new speed over the base's, by the quarter of turns that were fastest: what disturbs a turn makes it slower."""
    return undisturbed(base_s) / undisturbed(new_s)


def undisturbed(seconds: Sequence[float]) -> float:
    return statistics.mean(sorted(seconds)[: -(-len(seconds) // 4)])


class Worker:
    """A revision in a process of its own (bench/gate_worker.py)."""

    def __init__(self, tree: Path, model: Path, threads: int) -> None:
        command = [sys.executable, "-P", ROOT / "bench" / "gate_worker.py", model, threads]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the side of {self.process.args} ended with status {self.process.wait()}")
        return line.strip()

    def run(self, case: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return float(self.answer())


def measure_pair(base: Path, model: Path, threads: int, cases: Sequence[str]) -> dict[str, float]:
    with ExitStack() as stack:
        old, new = (stack.enter_context(Worker(tree, model, threads)) for tree in (base, ROOT))
        assert old.answer() == new.answer() == "ready"
        return {case: _turns(old, new, case) for case in cases}


def _turns(old: Worker, new: Worker, case: str) -> float:
    seconds: dict[Worker, list[float]] = {old: [], new: []}
    for turn in range(TURNS):
        for side in (old, new) if turn % 2 == 0 else (new, old):  # neither is always first
            seconds[side].append(side.run(case))
    return turn_ratio(seconds[old], seconds[new])


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """The files of a revision in a folder that goes away again."""
    with tempfile.TemporaryDirectory(prefix="imp-gate-") as folder:
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(folder, filter="data")
        if archive.wait():
            raise RuntimeError(f"git archive {revision} failed")
        yield Path(folder)


def known(revision: str) -> bool:
    """Whether this clone has the revision."""
    command = ["git", "cat-file", "-e", revision + "^{commit}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def unchanged(revision: str) -> bool:
    """Whether imp/ is what it was then."""
    command = ["git", "diff", "--quiet", revision, "--", "imp"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def report(ratios: dict[str, list[float]]) -> str:
    rows = [
        [case, f"{statistics.median(found):.2f}", f"{min(found):.2f}-{max(found):.2f}", str(len(found))]
        for case, found in ratios.items()
    ]
    return table(["case", "speed", "range", "pairs"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.gate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--base", default=BASE, help="the revision to compare with")
    parser.add_argument("--model", type=Path, help="default: the server's default model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of processes")
    parser.add_argument("--cases", default=",".join(CASES), help="some of them")
    parser.add_argument("--same", action="store_true", help="measure even where imp/ is the same in both")
    chosen = parser.parse_args()
    if not known(chosen.base):
        print(f"NOT COMPARED: this clone has no revision {chosen.base}; a shallow one wants git fetch --unshallow")
        return 0
    if unchanged(chosen.base) and not chosen.same:
        print(f"imp/ is what it was in {chosen.base}: nothing to compare")
        return 0
    model = chosen.model or realmodel.smollm2()
    with tree_of(chosen.base) as base:
        ratios = judged(
            lambda cases: measure_pair(base, model, chosen.threads, cases), chosen.cases.split(","), chosen.rounds
        )
    print(f"{machine()}; load average {load_average():.1f}\nspeed over that of {chosen.base}\n{report(ratios)}")
    if faster := [case for case, found in ratios.items() if statistics.median(found) > FASTER]:
        print(f"faster: {', '.join(faster)}; move BASE in bench/gate.py to keep it")
    for case in lost(ratios):
        print(f"LOST: {case} has {statistics.median(ratios[case]):.2f} of its speed, at least {LEAST} is asked for")
    return 1 if lost(ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
