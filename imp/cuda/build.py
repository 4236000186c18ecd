"""Compile the kernels ahead, on any machine: `python -m imp.cuda.build --arch sm_90a,sm_120a,sm_89,sm_80`.

What is compiled is what models of common shapes take. A table of what every kernel needs is printed. Exit status 1
where one spills registers or does not compile.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .compile import Compiler, Resources, Source, resources
from .entries import Entry, common
from .modules import WORKERS


@dataclass(frozen=True, slots=True)
class Report:
    """What a kernel takes on an architecture. shared_bytes: static and dynamic."""

    architecture: str
    source: Source
    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


def build(entries: Iterable[Entry], architecture: str, folder: Path) -> Iterator[Report]:
    """Compile what is not in the cache under `folder`. Raises compile.CompileError."""
    compiler = Compiler(folder, architecture)
    by_source: dict[Source, list[Entry]] = {}
    for entry in entries:
        by_source.setdefault(entry.source, []).append(entry)
    with ThreadPoolExecutor(WORKERS) as pool:
        for source, compiled in zip(by_source, pool.map(compiler.compile, by_source), strict=True):
            found = {each.kernel: each for each in resources(compiled.report)}
            yield from (_report(entry, found[entry.name], architecture) for entry in by_source[source])


def _report(entry: Entry, found: Resources, architecture: str) -> Report:
    shared = found.shared_bytes + entry.shared_bytes
    return Report(
        architecture, entry.source, entry.name, found.registers, shared, found.spill_bytes, found.stack_bytes
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m imp.cuda.build", description="Compile CUDA kernels ahead.")
    parser.add_argument("--arch", default="sm_90a,sm_120a,sm_89,sm_80", help="architectures, with commas between them")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/imp"), help="where they are kept (IMP_CACHE_DIR)")
    given = parser.parse_args()
    print(f"{'arch':8} {'registers':>9} {'shared':>7} {'spills':>6} {'stack':>5}  kernel")
    spilled = 0
    for architecture in given.arch.split(","):
        for each in build(common(architecture), architecture, given.cache.expanduser()):
            sizes = f"{each.registers:9} {each.shared_bytes:7} {each.spill_bytes:6} {each.stack_bytes:5}"
            print(f"{architecture:8} {sizes}  {each.kernel} ({each.source})")
            spilled += bool(each.spill_bytes)
    print(f"{spilled} kernels spill registers")
    return int(spilled > 0)


if __name__ == "__main__":
    raise SystemExit(main())
