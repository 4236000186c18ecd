"""Fixtures of the benchmarks, and the table of figures `make bench` ends with.

Seconds are pytest-benchmark's business; a figure here is a rate, and where there is something to compare it with, its
share of what the machine could do in the same minute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import calibration
from bench.measure import Timing, load_average, machine, ratio, table
from bench.model import Case, Driver, blocks_for, load
from tests.conftest import smollm2_path

__all__ = ["smollm2_path"]


@dataclass(slots=True)
class Figure:
    name: str
    rate: float
    unit: str
    best_of: str = ""  # what `share` is a share of
    share: float | None = None


@dataclass(slots=True)
class Figures:
    """What the benchmarks found, for the table at the end; also in their extra_info, so in --benchmark-json."""

    found: list[Figure] = field(default_factory=list)

    def note(self, benchmark, name: str, rate: float, unit: str, best_of: str = "", possible: float = 0.0) -> None:
        """rate: in `unit`; possible: what the machine could do, in the same unit."""
        share = ratio(rate, possible) if best_of else None
        self.found.append(Figure(name, rate, unit, best_of, share))
        benchmark.extra_info |= {name: rate, "unit": unit}
        if share is not None:
            benchmark.extra_info |= {f"possible: {best_of}": possible, "share of it": share}

    def table(self) -> str:
        rows = [
            [f.name, f"{f.rate:.4g}", f.unit, "" if f.share is None else f"{f.share:.0%} of {f.best_of}"]
            for f in self.found
        ]
        return table(["what", "rate", "unit", "share"], rows)


FIGURES = Figures()


@pytest.fixture(scope="session")
def figures() -> Figures:
    return FIGURES


@pytest.fixture(scope="session")
def threads() -> int:
    return len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def driver(smollm2_path: Path, threads: int) -> Iterator[Driver]:
    """SmolLM2 on the CPU backend."""
    loaded = load(smollm2_path, "cpu", threads, blocks=blocks_for([Case("tg", 16, 32, 2048)]))
    yield Driver(loaded)
    loaded.close()


class Limit:
    """What the machine can do: measured when asked, in the test that asks; the most of what was seen in it."""

    def __init__(self, measure: Callable[[int], Timing], threads: int) -> None:
        self.measure, self.threads, self.seen = measure, threads, 0.0
        self.now()

    def now(self) -> float:
        self.seen = max(self.seen, self.measure(self.threads).best)
        return self.seen


@pytest.fixture
def bandwidth(threads: int) -> Limit:
    """Bytes per second read from memory by all threads."""
    return Limit(calibration.read_bandwidth, threads)


@pytest.fixture
def multiply_adds(threads: int) -> Limit:
    """float32 multiply-adds per second of all threads."""
    return Limit(calibration.multiply_add_rate, threads)


@pytest.fixture
def byte_products(threads: int) -> Limit:
    """Products of bytes that are added up, per second, of all threads."""
    return Limit(calibration.byte_rate, threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES.found:
        terminalreporter.section("figures (best of the rounds)")
        terminalreporter.line(f"{machine()}; load average {load_average():.1f}")
        terminalreporter.line(FIGURES.table())
