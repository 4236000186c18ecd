"""The result of a comparison with a peer: lines of both sides' repetitions, their ratio, and the page they are put into.

Knows nothing of who is compared or how.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import ratio, table

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "PERFORMANCE.md"


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

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.by_name: dict[str, Line] = {}

    def line(self, name: str, unit: str, target: float | None = None, lower_is_better: bool = False) -> Line:
        return self.by_name.setdefault(name, Line(name, unit, target=target, lower_is_better=lower_is_better))

    def missed(self) -> list[Line]:
        return [line for line in self.by_name.values() if line.missed]

    def table(self) -> str:
        header = ["what", "unit", self.peer, "imp", "times", "target"]
        return table(header, [line.cells() for line in self.by_name.values()])

    def values(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [asdict(line) | {"times": line.times, "missed": line.missed} for line in self.by_name.values()]


def section(about: dict[str, str], lines: Lines) -> str:
    """A generated part of docs/PERFORMANCE.md."""
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    return f"{facts}\n\n{lines.table()}\n\nMedian of the repetitions (range in brackets).\n"


def conclude(about: dict[str, str], lines: Lines, out: Path | None, marks: tuple[str, str] | None, check: bool) -> int:
    """Print the result and what of it is below its target. out: a file for the figures, as JSON. marks: of the part of
    the page that is replaced. Returns the exit code: 1 where `check` and a target is missed."""
    text = section(about, lines)
    print(text)
    if out:
        out.write_text(json.dumps({"about": about, "lines": lines.values()}, indent=1))
    if marks:
        DOCS.write_text(with_section(DOCS.read_text(), text, *marks))
    missed = lines.missed()
    for line in missed:
        below = f"below the target: {line.name} is {line.times:.2f} times {lines.peer}, wanted {line.target:g}"
        print(below, file=sys.stderr, flush=True)
    return 1 if check and missed else 0


def with_section(page: str, text: str, begins: str, ends: str) -> str:
    """The page with what is between the two markers replaced."""
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"the page lacks {begins} or {ends}")
    return f"{before}{begin}\n{text}{end}{after}"
