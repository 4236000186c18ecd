"""What is compared with peers: models, the cases measured on each, and how many times the peer's rate ours must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.model import Case
from tests import realmodel

CASES: dict[str, tuple[str, ...]] = {
    "prefill": ("pp128", "pp512"),
    "decode": ("tg64",),
    "batch": ("tg32x2@16", "tg32x4@16", "tg32x8@16", "tg32x16@16", "tg32x32@16"),
    "long": ("pp2048", "tg32@2048"),
    "deep": ("tg16x2@2048", "tg16x4@2048", "tg16x8@2048", "tg16x16@2048", "tg16x32@2048"),
}
BESIDE = "neighbour"  # decoding while another process wants one of the cores
HTTP = "http"  # the whole server
WHAT = (*CASES, BESIDE, HTTP)
FAIR = ("prefill", "decode", "batch", "long", HTTP)  # of the model where both sides have fast kernels

HTTP_TARGETS = {"http x1": 1.5, "http x8": 2.0, "http x16": 2.0}
LATENCY_TARGET = 1.0  # of TTFT and the longest gaps, at every concurrency


@dataclass(frozen=True, slots=True)
class Subject:
    """A model file that both sides run."""

    name: str
    source: Callable[[], Path]
    format: str | None = None  # that the source has not: llama-quantize makes it
    what: tuple[str, ...] = ("prefill", "decode", "batch")
    targets: Mapping[str, float] = field(default_factory=dict)  # by case

    def cases(self, what: tuple[str, ...]) -> list[Case]:
        return [Case.parse(case) for group in what if group in CASES for case in CASES[group]]


def _targets(decode: float, batch: float, prefill: float) -> dict[str, float]:
    return {"tg64": decode, "tg32x8@16": batch, "tg32x16@16": batch, "pp128": prefill, "pp512": prefill}


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("Q4_0", realmodel.smollm2, "Q4_0", FAIR, _targets(2.0, 2.5, 2.0) | {"pp2048": 1.8, "tg32@2048": 2.5}),
        Subject("Q4_1", realmodel.smollm2, targets=_targets(2.2, 3.5, 4.0)),
        Subject("Q8_0", realmodel.smollm2, "Q8_0", targets=_targets(1.8, 2.2, 1.8)),
        Subject(
            "gemma3", realmodel.gemma3, what=("prefill", "decode"), targets={"tg64": 1.8, "pp128": 1.8, "pp512": 1.8}
        ),
    )
}


def find(name: str) -> Subject:
    """A subject of the table, or any GGUF file by its path, without targets. Raises ValueError."""
    if name in SUBJECTS:
        return SUBJECTS[name]
    if not Path(name).is_file():
        raise ValueError(f"{name!r} is neither a file nor one of {', '.join(SUBJECTS)}")
    return Subject(Path(name).stem, lambda: Path(name))
