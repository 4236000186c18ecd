"""What each format of weights is kept as: bits a weight in the file, on the CPU and on a GPU, and what keeping costs.

    python -m bench.weights [--write-docs]

Nothing is timed, so the table is the same on every machine. Errors are of random codes with random scales: the root of
their mean square over that of the weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.lines import with_section
from bench.measure import table
from imp.cpu.pack import Packed as CpuPacked
from imp.cuda.layouts import Packed as CudaPacked
from imp.weights.checkpoint import Weight
from imp.weights.fields import BLOCK, Fields, reader
from imp.weights.quant import FORMATS
from tests.cpu.harness import weight
from tests.gpu.tiny import SMALL_FLOATS

DOCS = Path(__file__).resolve().parents[1] / "docs" / "WEIGHTS.md"
MARKS = ("<!-- bench.weights begins -->", "<!-- bench.weights ends -->")
HEADER = ("format", "bits in the file", "on the CPU", "bits", "error", "on a GPU", "bits")
ROWS, COLUMNS = 64, 1024
ZERO = {"int4": 8}  # the integer that stands for 0, where that is not 0


def values(kind: str, fields: Fields) -> np.ndarray:
    """float64 [rows, columns] of what a kind of fields.py is."""
    if "w" in fields:
        numbers = fields["w"]
        if kind == "bf16":
            return (numbers.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return numbers.view({"f16": np.float16, "f32": np.float32}[kind]).astype(np.float64)
    packed = np.ascontiguousarray(fields["q"]).view(np.uint8)
    if packed.shape[-1] < BLOCK:
        packed = np.concatenate([packed & 15, packed >> 4], axis=-1)
    signed = packed.view(np.int8) if kind in ("int8", "int8_halves") else packed
    integers = signed.astype(np.float64).reshape(*packed.shape[:2], 2, BLOCK // 2) - ZERO.get(kind, 0)
    d = np.stack([fields["d"], fields.get("d1", fields["d"])], axis=-1).astype(np.float64)
    minimum = fields["m"].astype(np.float64)[..., None, None] if "m" in fields else 0.0
    return (integers * d[..., None] + minimum).reshape(len(packed), -1)


def loss(given: Weight) -> float:
    """What the CPU backend's kind of it costs."""
    kind, read = reader(given)
    expected = given.float32().astype(np.float64)
    found = values(kind, read(given, slice(0, len(expected))))
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def examples() -> dict[str, Weight]:
    """A matrix of every format by its name."""
    rng = np.random.default_rng(0)
    found = {name: weight(name, ROWS, COLUMNS, rng) for name in FORMATS}
    normal = (rng.standard_normal((ROWS, COLUMNS)) * 0.05).astype(np.float32)
    return found | {name: make(name, normal) for name, make in SMALL_FLOATS.items()}


def row(name: str, given: Weight) -> tuple[str, ...]:
    count, error = ROWS * COLUMNS, loss(given)
    stored = given.data.nbytes + (given.scales.data.nbytes if given.scales else 0)
    cpu, cuda = CpuPacked(given), CudaPacked(given)
    own = f"{8 * cpu.size / count:.2f}", f"{8 * sum(cuda.sizes) / count:.2f}"
    return (name, f"{8 * stored / count:.2f}", reader(given)[0], own[0], f"{error:.0e}" if error else "none", cuda.kind, own[1])


def section() -> str:
    return "\n" + table(HEADER, [row(name, given) for name, given in examples().items()]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.weights", description=__doc__.splitlines()[0])
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/WEIGHTS.md")
    chosen = parser.parse_args()
    print(section())
    if chosen.write_docs:
        DOCS.write_text(with_section(DOCS.read_text(), section(), *MARKS))


if __name__ == "__main__":
    main()
