"""What bench.gpu measures: shapes, how much, a line of the result, and how long a graph takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from imp.cuda.driver import Event, Stream

GB = 1e9


@dataclass(frozen=True)
class Sizes:
    """Of a model; a published one's shapes."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0  # of each layer; `inner` is one's
    chosen: int = 0


MODELS = (
    Sizes("1B (Llama 3.2)", 16, 2048, 8192, 32, 8, 64, 128256),
    Sizes("30B-A3B (Qwen 3)", 48, 2048, 768, 32, 4, 128, 151936, experts=128, chosen=8),
    Sizes("8B (Llama 3.1)", 32, 4096, 14336, 32, 8, 128, 128256),
)
SMOKE = (Sizes("smoke of experts", 1, 128, 64, 4, 2, 32, 320, experts=4, chosen=2), Sizes("smoke", 2, 128, 128, 4, 2, 32, 320))


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    models: tuple[Sizes, ...]
    formats: tuple[str, ...]
    tokens: tuple[int, ...]  # of products
    batches: tuple[int, ...]
    context: int
    rotated_bytes: int  # more than the cache holds
    repeats: int
    copied_bytes: int


FULL = Scale(
    MODELS, ("BF16", "F16", "Q8_0", "Q4_K", "Q4_0", "FP8", "NVFP4", "MXFP4"), (1, 8, 32, 128, 512, 2048), (1, 8, 32, 128, 256),
    2048, 256 << 20, 50, 1 << 30,
)  # fmt: skip
LITTLE = Scale(SMOKE, ("F16", "NVFP4"), (1, 40), (1, 3), 40, 1 << 16, 3, 1 << 20)


@dataclass(frozen=True)
class Line:
    """A measurement: `part` is of the ceiling. target: what a first version and a good one reach, of `part` where there is
    one, else of `value`."""

    what: str
    value: float
    unit: str
    part: float | None = None
    target: tuple[float, float] | None = None

    def __str__(self) -> str:
        share = " " * 9 if self.part is None else f"  {100 * self.part:5.1f} %"
        line = f"  {self.what:58} {self.value:10.2f} {self.unit:8}{share}"
        if self.target is None:
            return line.rstrip()
        first, good = (f"{100 * t:.0f} %" if self.part is not None else f"{t:g}" for t in self.target)
        return f"{line}  (first {first}, good {good})"


def seconds(stream: Stream, work: Callable[[], None], repeats: int, inner: int = 1) -> float:
    """Of one of the `inner` things a graph of `work` does: the median."""
    work()
    stream.synchronize()
    with stream.capturing() as captured:
        work()
    first, last = Event(timed=True), Event(timed=True)
    found = []
    for _ in range(repeats):
        stream.record(first)
        stream.replay(captured[0])
        stream.record(last)
        last.wait()
        found.append(last.since(first) / inner)
    captured[0].destroy()
    return max(statistics.median(found), 1e-9)
