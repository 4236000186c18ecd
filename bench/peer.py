"""imp-server beside llama.cpp: the same GGUF, the same threads, the same minutes, taking turns.

    python -m bench.peer [--llama DIR] [--model GGUF] [--formats Q4_1,Q4_0,Q8_0] [--what prefill,decode,batch,http]
                         [--reps 5] [--threads 2] [--out FILE] [--write-docs] [--check] [--priority]

DIR holds llama.cpp's programs; without it they are built in a scratch folder (bench/llama.py). Each repetition runs
every case on both, one after the other, each in a fresh process; the table shows medians of the repetitions and their
ratio, which is the figure to trust on a machine that does other things too. --check fails below the targets;
--priority gives both sides real-time scheduling, for a machine that is never quiet (wants the right to do so).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as installed
from pathlib import Path

from bench import client, llama
from bench.measure import load_average, machine, ratio, table
from bench.model import Case
from imp import __version__
from tests import realmodel
from tests.real.process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "PERFORMANCE.md"
BEGIN, END = "<!-- bench.peer begins -->", "<!-- bench.peer ends -->"

WHAT: dict[str, tuple[str, ...]] = {
    "prefill": ("pp128", "pp512"),
    "decode": ("tg64",),
    "batch": ("tg32x8@16",),
    "long": ("pp2048", "tg32@2048"),
}
CONCURRENCY = (1, 4, 8, 16)
PROMPT_WORDS, OUTPUT_TOKENS = 100, 64

# How many times llama.cpp's rate ours must be, by format and line; another format of four bits counts as Q4_1
TARGETS: dict[str, dict[str, float]] = {
    "Q4_0": {"pp128": 1.5, "pp512": 1.5, "tg64": 1.6, "tg32x8@16": 2.0, "pp2048": 1.5, "tg32@2048": 2.0},
    "Q4_1": {"pp128": 3.0, "pp512": 3.0, "tg64": 1.6, "tg32x8@16": 3.0, "pp2048": 1.5, "tg32@2048": 2.0},
    "Q8_0": {"pp128": 1.5, "pp512": 1.5, "tg64": 1.5, "tg32x8@16": 1.8, "pp2048": 1.5, "tg32@2048": 2.0},
}
HTTP_TARGETS = {"http x8": 1.5, "http x16": 1.5}


@dataclass(frozen=True, slots=True)
class Run:
    """How everything is measured."""

    programs: Path  # llama.cpp's
    scratch: Path
    reps: int
    threads: int


@dataclass(slots=True)
class Line:
    """One row of the result: the repetitions of both sides."""

    name: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    target: float | None = None  # of `times`
    lower_is_better: bool = False

    @property
    def times(self) -> float:
        """How many times better than the peer we are, by the medians."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return ratio(theirs, ours) if self.lower_is_better else ratio(ours, theirs)

    @property
    def missed(self) -> bool:
        return self.target is not None and self.times < self.target

    def cells(self) -> list[str]:
        target = "" if self.target is None else f">= {self.target:g}"
        return [self.name, self.unit, shown(self.theirs), shown(self.ours), f"{self.times:.2f}", target]


def shown(values: list[float]) -> str:
    """The median, and the range where there is one: 151 (140-163)."""
    digits = 0 if statistics.median(values) >= 100 else 1 if statistics.median(values) >= 10 else 2
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


class Lines:
    """Lines by name, in the order they were first met."""

    def __init__(self) -> None:
        self.by_name: dict[str, Line] = {}

    def line(self, name: str, unit: str, target: float | None = None, lower_is_better: bool = False) -> Line:
        return self.by_name.setdefault(name, Line(name, unit, target=target, lower_is_better=lower_is_better))

    def table(self) -> str:
        header = ["what", "unit", "llama.cpp", "imp", "times", "target"]
        return table(header, [line.cells() for line in self.by_name.values()])


def compare_cases(lines: Lines, run: Run, name: str, model: Path, cases: list[Case]) -> None:
    for rep in range(run.reps):
        say(f"{name}: repetition {rep + 1} of {run.reps}")
        sides: list[Callable[[], dict[str, float]]] = [
            lambda: llama.measure(run.programs, model, cases, run.threads),
            lambda: our_rates(model, cases, run.threads),
        ]
        results = [None, None]
        for side in (0, 1) if rep % 2 == 0 else (1, 0):  # neither is always first
            results[side] = sides[side]()
        theirs, ours = results
        for case in map(str, cases):
            line = lines.line(f"{name} {case}", "tokens/s", TARGETS.get(name, TARGETS["Q4_1"]).get(case))
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
        note(at, "tokens/s", got.tokens_per_s, HTTP_TARGETS.get(at), lower=False)
        note(f"{at} TTFT p50", "ms", got.ttft_p50_s * 1e3, 1.0)
        note(f"{at} TTFT p99", "ms", got.ttft_p99_s * 1e3)
        note(f"{at} ITL p50", "ms", got.itl_p50_s * 1e3)
        note(f"{at} ITL p99", "ms", got.itl_p99_s * 1e3)
    note("RSS", "MiB", rss_bytes(pid) / 2**20)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def conditions(run: Run, model: Path) -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "model": model.name,
        "threads": str(run.threads),
        "repetitions": str(run.reps),
        "load average": f"{load_average():.1f}",
        "imp": f"{__version__}, Python {platform.python_version()}, numba {installed('numba')}",
        "llama.cpp": llama.version(run.programs),
    }


def section(about: dict[str, str], lines: Lines) -> str:
    """The generated part of docs/PERFORMANCE.md."""
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    return f"{facts}\n\n{lines.table()}\n\nMedian of the repetitions (range in brackets).\n"


def with_section(page: str, text: str, begins: str = BEGIN, ends: str = END) -> str:
    """The page with what is between the two markers replaced."""
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"the page lacks {begins} or {ends}")
    return f"{before}{begin}\n{text}{end}{after}"


def source_format(model: Path) -> str:
    """As the file's name has it: SmolLM2-135M-Instruct.Q4_1.gguf -> Q4_1."""
    known = [name for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K_M") if name in model.stem.upper()]
    return known[0] if known else "Q4_1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.peer", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--llama", type=Path, help="folder of llama.cpp's programs; default: build them")
    parser.add_argument("--scratch", type=Path, default=Path.home() / ".cache" / "imp" / "bench", help="build there")
    parser.add_argument("--model", type=Path, help="default: the server's default model")
    parser.add_argument("--formats", help="comma-separated; others than the model's own are made by llama-quantize")
    parser.add_argument("--what", default="prefill,decode,batch,http", help=f"of {', '.join(WHAT)}, http")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench-peer.json"), help="figures as JSON")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/PERFORMANCE.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a target is missed")
    parser.add_argument("--priority", action="store_true", help="real-time scheduling for both sides")
    chosen = parser.parse_args()
    wanted = chosen.what.split(",")
    if unknown := set(wanted) - {*WHAT, "http"}:
        parser.error(f"--what: unknown {', '.join(sorted(unknown))}")
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    run = Run(chosen.llama or llama.build(chosen.scratch), chosen.scratch, chosen.reps, chosen.threads)
    if chosen.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # what is started from here inherits it
    model = chosen.model or realmodel.smollm2()
    lines = Lines()
    own = source_format(model)
    cases = [Case.parse(case) for what in wanted if what in WHAT for case in WHAT[what]]
    for name in (chosen.formats or own).split(","):
        file = model if name == own else llama.quantized(run.programs, model, name, run.scratch, run.threads)
        if cases:
            compare_cases(lines, run, name, file, cases)
        if "http" in wanted:
            compare_http(lines, run, name, file)
    about = conditions(run, model)
    chosen.out.write_text(json.dumps({"about": about, "lines": [asdict(x) for x in lines.by_name.values()]}, indent=1))
    text = section(about, lines)
    print(text)
    if chosen.write_docs:
        DOCS.write_text(with_section(DOCS.read_text(), text))
    missed = [line for line in lines.by_name.values() if line.missed]
    for line in missed:
        say(f"below the target: {line.name} is {line.times:.2f} times llama.cpp, wanted {line.target:g}")
    return 1 if chosen.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
