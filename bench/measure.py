"""How things are timed here, and what figures are made of times. Knows nothing of models or servers."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of repeated runs of the same work. `work`: how much of it one run did (tokens, bytes, operations)."""

    seconds: tuple[float, ...]
    work: float

    @property
    def best(self) -> float:
        """Work per second of the fastest run: what the code can do, with the least of the machine's other business."""
        return self.work / min(self.seconds)

    @property
    def median(self) -> float:
        """Work per second of the median run: what a user gets."""
        return self.work / statistics.median(self.seconds)


def timed(run: Callable[[], object], work: float, repeats: int = 5, warm_up: int = 1) -> Timing:
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return Timing(tuple(seconds), work)


def ratio(ours: float, theirs: float) -> float:
    """How many times `theirs` we are; 0 where there is nothing to compare with."""
    return ours / theirs if theirs > 0 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank); nan for none."""
    if not values:
        return float("nan")
    rank = -(-len(values) * share // 1)
    return sorted(values)[max(0, int(rank) - 1)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first column is text, the others are figures."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        figures = [cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *figures]) + " |"

    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def machine() -> str:
    """The processor, its cores and what they can do, in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if flag in flags]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {cores} cores, {' '.join(known) or 'no AVX2'}"


def load_average() -> float:
    """Processes that wanted a core, over the last minute: how far figures of this run can be trusted."""
    return os.getloadavg()[0]
