"""What our own server is held to, with no peer beside it: starting, memory, bandwidth, a neighbour that wants a core.

    python -m bench.limits [--what start,cold,bandwidth,neighbour] [--reps 5] [--threads 2] [--model GGUF] [--out FILE]
                           [--write-docs] [--check]

Starting is from the command to /ready, with everything on disk that an earlier start leaves there (`start`), or with no
compiled kernels (`cold`). `bandwidth` is what decoding reads over what two threads that do nothing else read in the same
second, `neighbour` the throughput beside a process that never sleeps over that without it: both are taken in turns, so
that they mean something on a machine that does other things. --check exits with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import calibration
from bench.gate import Worker
from bench.lines import DOCS, ROOT, shown, with_section
from bench.measure import load_average, machine, table
from bench.neighbour import busy
from tests import realmodel
from tests.real.process import ServerProcess

MARKS = ("<!-- bench.limits begins -->", "<!-- bench.limits ends -->")
DECODE = "tg24"
BESIDE = (DECODE, "tg6x8@16", "pp128")  # what a neighbour disturbs
SPELL_S = 1.0  # of one turn beside the neighbour, and of one without


@dataclass(slots=True)
class Figure:
    """One row: the repetitions, whose median is held to `limit`: at most, or at least."""

    name: str
    unit: str
    limit: float | None = None
    at_least: bool = False
    values: list[float] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        if self.limit is None:
            return False
        middle = statistics.median(self.values)
        return middle < self.limit if self.at_least else middle > self.limit

    def cells(self) -> list[str]:
        if self.limit is None:
            return [self.name, self.unit, shown(self.values), "", ""]
        sign = ">=" if self.at_least else "<="
        return [self.name, self.unit, shown(self.values), f"{sign} {self.limit:g}", "no" if self.missed else "yes"]


@dataclass(frozen=True, slots=True)
class Run:
    model: Path
    threads: int
    reps: int


def start(run: Run) -> list[Figure]:
    """A server that was started before: once more to make sure of it, then `reps` times."""
    ready = Figure("start to /ready, kernels on disk", "s", 1.5)
    resident = Figure("resident memory when ready", "MiB", 400)
    answering = Figure("resident memory after a prompt of 2,000 tokens", "MiB")
    _started(run, _environment()).stop()
    for _ in range(run.reps):
        process = _started(run, _environment())
        ready.values.append(process.ready_after_s)
        resident.values.append(process.rss_bytes() / 2**20)
        _long_prompt(process)
        answering.values.append(process.rss_bytes() / 2**20)
        process.stop()
    return [ready, resident, answering]


def cold(run: Run) -> list[Figure]:
    """A server that has to compile its kernels, with its progress on the terminal."""
    ready = Figure("start to /ready, no kernels on disk", "s", 45)
    said = Figure("lines of progress meanwhile", "lines", 10, at_least=True)
    for _ in range(min(3, run.reps)):
        with tempfile.TemporaryDirectory(prefix="imp-cold-") as folder:
            process = _started(run, _environment() | {"IMP_CACHE_DIR": folder})
            ready.values.append(process.ready_after_s)
            said.values.append(sum("compiling kernels" in line for line in process.lines))
            process.stop()
    return [ready, said]


def bandwidth(run: Run) -> list[Figure]:
    """What a decoding step reads: every weight once."""
    share = Figure("decoding one sequence: share of the bandwidth two threads read with", "", 0.7, at_least=True)
    with Worker(ROOT, run.model, run.threads) as worker:
        worker.answer()
        read = _weights_bytes(run.model) * int(DECODE.removeprefix("tg"))
        worker.run(DECODE)
        for _ in range(run.reps):
            possible = calibration.read_bandwidth(run.threads, repeats=3).best
            best = min(worker.run(DECODE) for _ in range(5))
            possible = max(possible, calibration.read_bandwidth(run.threads, repeats=3).best)
            share.values.append(read / best / possible)
    return [share]


def neighbour(run: Run) -> list[Figure]:
    figures = []
    with Worker(ROOT, run.model, run.threads) as worker:
        worker.answer()
        for case in BESIDE:
            figure = Figure(f"{case} beside a busy process: share of the undisturbed rate", "", 0.6, at_least=True)
            for rep in range(run.reps):
                spells = {}
                for disturbed in (False, True) if rep % 2 == 0 else (True, False):
                    with busy() if disturbed else nullcontext():
                        spells[disturbed] = _mean_s(worker, case)
                figure.values.append(spells[False] / spells[True])
            figures.append(figure)
    return figures


def _mean_s(worker: Worker, case: str) -> float:
    """Seconds of one run, over as many as fit into a spell: throughput, not what luck allows."""
    worker.run(case)
    seconds = []
    until = time.monotonic() + SPELL_S
    while time.monotonic() < until:
        seconds.append(worker.run(case))
    return statistics.mean(seconds)


def _environment() -> dict[str, str]:
    """Ours, with byte code written and found as anywhere else."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _started(run: Run, environment: dict[str, str]) -> ServerProcess:
    options = ("--model", str(run.model), "--set", f"runtime.threads={run.threads}")
    return ServerProcess(*options, env=environment).wait()


def _long_prompt(process: ServerProcess) -> None:
    import httpx

    body = {"prompt": "time " * 2000, "max_tokens": 8, "ignore_eos": True}
    httpx.post(process.url + "/v1/completions", json=body, timeout=120).raise_for_status()


def _weights_bytes(model: Path) -> int:
    """What the backend packs: every matrix, the embedding once."""
    from bench.model import load

    loaded = load(model, "cpu", 1)
    size = loaded.memory.weights_bytes
    loaded.close()
    return size


WHAT: dict[str, Callable[[Run], list[Figure]]] = {
    "start": start,
    "cold": cold,
    "bandwidth": bandwidth,
    "neighbour": neighbour,
}


def section(about: dict[str, str], figures: list[Figure]) -> str:
    """The generated part of docs/PERFORMANCE.md."""
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    rows = table(["what", "unit", "median (range)", "limit", "met"], [figure.cells() for figure in figures])
    return f"{facts}\n\n{rows}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.limits", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--what", default=",".join(WHAT))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="default: the server's default model")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/PERFORMANCE.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is missed")
    chosen = parser.parse_args()
    if unknown := set(chosen.what.split(",")) - set(WHAT):
        parser.error(f"--what: unknown {', '.join(sorted(unknown))}")
    run = Run(chosen.model or realmodel.smollm2(), chosen.threads, chosen.reps)
    figures = [figure for name in chosen.what.split(",") for figure in WHAT[name](run)]
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "model": run.model.name,
        "threads": str(run.threads),
        "repetitions": str(run.reps),
        "load average": f"{load_average():.1f}",
    }
    text = section(about, figures)
    print(text)
    if chosen.out:
        values = [asdict(figure) | {"missed": figure.missed} for figure in figures]
        chosen.out.write_text(json.dumps({"about": about, "figures": values}, indent=1))
    if chosen.write_docs:
        DOCS.write_text(with_section(DOCS.read_text(), text, *MARKS))
    return 1 if chosen.check and any(figure.missed for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
