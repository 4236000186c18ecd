"""imp-server beside llama.cpp: the same GGUF, the same threads, the same minutes, taking turns.

    python -m bench.peer [--models Q4_0,Q4_1,Q8_0,gemma3] [--what prefill,decode,batch,long,deep,neighbour,http]
                         [--reps 5] [--threads 2] [--llama DIR] [--out FILE] [--write-docs] [--check] [--priority]

Models are those of bench/subjects.py, each with its cases and targets, or paths of GGUF files. DIR holds llama.cpp's
programs; without it they are built in a scratch folder (bench/llama.py). Each repetition runs every case on both, one
after the other, each in a fresh process; the table shows medians of the repetitions and their ratio, which is the figure
to trust on a machine that does other things too. --check fails below the targets; --priority gives both sides real-time
scheduling, for a machine that is never quiet (wants the right to do so).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path

from bench import client, llama, subjects
from bench.lines import ROOT, Lines, conclude
from bench.measure import load_average, machine
from bench.model import Case
from bench.neighbour import busy
from bench.subjects import Subject
from imp import __version__
from tests.real.process import ServerProcess

MARKS = ("<!-- bench.peer begins -->", "<!-- bench.peer ends -->")
CONCURRENCY = (1, 4, 8, 16)
PROMPT_WORDS, OUTPUT_TOKENS = 100, 64


@dataclass(frozen=True, slots=True)
class Run:
    """How everything is measured."""

    programs: Path  # llama.cpp's
    scratch: Path
    reps: int
    threads: int

    def file(self, subject: Subject) -> Path:
        source = subject.source()
        if subject.format is None:
            return source
        return llama.quantized(self.programs, source, subject.format, self.scratch, self.threads)


def compare(lines: Lines, run: Run, subject: Subject, what: tuple[str, ...]) -> None:
    """Everything of one model, into `lines`."""
    file = run.file(subject)
    if cases := subject.cases(what):
        compare_cases(lines, run, subject, file, cases)
    if subjects.BESIDE in what:
        decode = subject.cases(("decode",))
        compare_cases(lines, run, subject, file, decode, busy, " beside a busy process")
    if subjects.HTTP in what:
        compare_http(lines, run, subject.name, file)


def compare_cases(
    lines: Lines,
    run: Run,
    subject: Subject,
    file: Path,
    cases: list[Case],
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    suffix: str = "",
) -> None:
    """beside: what goes on as long as a side is measured; suffix: how the lines' names say so. No targets then."""
    for rep in range(run.reps):
        say(f"{subject.name}{suffix}: repetition {rep + 1} of {run.reps}")
        sides: list[Callable[[], dict[str, float]]] = [
            lambda: llama.measure(run.programs, file, cases, run.threads),
            lambda: our_rates(file, cases, run.threads),
        ]
        results: list[dict[str, float]] = [{}, {}]
        for side in (0, 1) if rep % 2 == 0 else (1, 0):  # neither is always first
            with beside():
                results[side] = sides[side]()
        theirs, ours = results
        for case in map(str, cases):
            target = None if suffix else subject.targets.get(case)
            line = lines.line(f"{subject.name} {case}{suffix}", "tokens/s", target)
            line.theirs.append(theirs[case])
            line.ours.append(ours[case])


def our_rates(model: Path, cases: list[Case], threads: int) -> dict[str, float]:
    """bench.model in a process of its own; once each, after a warm-up, as llama-bench does it."""
    names = ",".join(map(str, cases))
    command = [sys.executable, "-m", "bench.model", "--model", model, "--cases", names, "--threads", threads]
    done = subprocess.run(
        [*map(str, command), "--reps", "1", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"bench.model failed: {done.stderr[-1000:]}")
    return {name: case["tokens_per_s"] for name, case in json.loads(done.stdout)["cases"].items()}


def compare_http(lines: Lines, run: Run, name: str, model: Path) -> None:
    for rep in range(run.reps):
        say(f"{name} http: repetition {rep + 1} of {run.reps}")
        for side in ("theirs", "ours") if rep % 2 == 0 else ("ours", "theirs"):
            began = time.monotonic()
            if side == "theirs":
                with llama.server(run.programs, model, run.threads, max(CONCURRENCY)) as (url, process):
                    _http_side(lines, side, name, url, process.pid, time.monotonic() - began, rep)
            else:
                process = ServerProcess("--model", str(model), "--set", f"runtime.threads={run.threads}").wait()
                try:
                    _http_side(lines, side, name, process.url, process.process.pid, process.ready_after_s, rep)
                finally:
                    process.stop()


def _http_side(lines: Lines, side: str, name: str, url: str, pid: int, ready_s: float, rep: int) -> None:
    """One server's figures at every concurrency, into the `side` lists."""

    def note(what: str, unit: str, value: float, target: float | None = None, lower: bool = True) -> None:
        getattr(lines.line(f"{name} {what}", unit, target, lower), side).append(value)

    note("start", "s", ready_s)
    asyncio.run(client.streams(url, 1, 1, PROMPT_WORDS, 8, seed=999))  # the first request is nobody's
    for concurrency in CONCURRENCY:
        requests = max(4, 2 * concurrency)
        seed = 1000 * rep + concurrency
        got = asyncio.run(client.streams(url, concurrency, requests, PROMPT_WORDS, OUTPUT_TOKENS, seed))
        at = f"http x{concurrency}"
        note(at, "tokens/s", got.tokens_per_s, subjects.HTTP_TARGETS.get(at), lower=False)
        note(f"{at} TTFT p50", "ms", got.ttft_p50_s * 1e3, subjects.LATENCY_TARGET)
        note(f"{at} TTFT p99", "ms", got.ttft_p99_s * 1e3, subjects.LATENCY_TARGET)
        note(f"{at} ITL p50", "ms", got.itl_p50_s * 1e3)
        note(f"{at} ITL p99", "ms", got.itl_p99_s * 1e3, subjects.LATENCY_TARGET)
    note("RSS", "MiB", rss_bytes(pid) / 2**20)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def conditions(run: Run, files: list[Path]) -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "models": ", ".join(file.name for file in files),
        "threads": str(run.threads),
        "repetitions": str(run.reps),
        "load average": f"{load_average():.1f}",
        "imp": f"{__version__}, Python {platform.python_version()}, numba {installed('numba')}",
        "llama.cpp": f"{llama.version(run.programs)}, built with {llama.features(run.programs)}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.peer", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--llama", type=Path, help="folder of llama.cpp's programs; default: build them")
    parser.add_argument("--scratch", type=Path, default=Path.home() / ".cache" / "imp" / "bench", help="build there")
    parser.add_argument("--models", default=",".join(subjects.SUBJECTS), help="of bench/subjects.py, or GGUF files")
    parser.add_argument("--what", help=f"of {', '.join(subjects.WHAT)}; default: what bench/subjects.py has for each")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench-peer.json"), help="figures as JSON")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/PERFORMANCE.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a target is missed")
    parser.add_argument("--priority", action="store_true", help="real-time scheduling for both sides")
    chosen = parser.parse_args()
    what = tuple(chosen.what.split(",")) if chosen.what else None
    if unknown := set(what or ()) - set(subjects.WHAT):
        parser.error(f"--what: unknown {', '.join(sorted(unknown))}")
    wanted = [subjects.find(name) for name in chosen.models.split(",")]
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    run = Run(chosen.llama or llama.build(chosen.scratch), chosen.scratch, chosen.reps, chosen.threads)
    if chosen.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # what is started from here inherits it
    lines = Lines("llama.cpp")
    for subject in wanted:
        compare(lines, run, subject, what or subject.what)
    about = conditions(run, [run.file(subject) for subject in wanted])
    return conclude(about, lines, chosen.out, MARKS if chosen.write_docs else None, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
