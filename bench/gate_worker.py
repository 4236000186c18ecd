"""One side of bench.gate: the code of some revision, told by lines which case to run once, answering with seconds.

    python -P bench/gate_worker.py MODEL THREADS    in the folder of the revision, which PYTHONPATH names

Cases are those of bench/model.py, and products such as `Q8_0*64`: 64 tokens by one matrix of that format. It is run over
revisions that are older than this file, so it asks no more of them than it has to.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

OUTPUTS, INPUTS = 4096, 2048  # of the products' matrix


class Side:
    def __init__(self, model: Path, threads: int) -> None:
        from bench.model import Driver, load

        self.threads = threads
        self.driver = Driver(load(model, "cpu", threads))
        self.runs: dict[str, Callable[[], object]] = {}
        self.products: tuple[object, object] | None = None  # kernels and threads

    def run(self, name: str) -> float:
        """Seconds of one run; the first one of a case warms up."""
        if name not in self.runs:
            self.runs[name] = self._product(name) if "*" in name else self._case(name)
            self.runs[name]()
        began = time.perf_counter()
        self.runs[name]()
        return time.perf_counter() - began

    def _case(self, name: str) -> Callable[[], object]:
        from bench.model import Case

        case = Case.parse(name)
        sequences = self.driver.sequences(case)
        self.driver.prefill(sequences, case.depth)
        steps = {"pp": self.driver.prefill, "tg": self.driver.decode}[case.kind]

        def run() -> None:
            for seq in sequences:
                seq.computed = case.depth
            steps(sequences, case.depth + case.tokens)

        return run

    def _product(self, name: str) -> Callable[[], object]:
        from bench.cpu import Product
        from imp import settings
        from imp.cpu.cache import CompiledKernels
        from imp.cpu.simd import detect
        from imp.cpu.threads import Threads

        if self.products is None:
            kernels = CompiledKernels(settings.load([]).paths.cache, detect())
            self.products = kernels, Threads(self.threads, kernels)
        kernels, workers = self.products
        quant, _, tokens = name.partition("*")
        product = Product(kernels, workers, quant, outputs=OUTPUTS, inputs=INPUTS, tokens=int(tokens))
        repeats = max(8, 128 // int(tokens))  # one run of a small product is too short to be timed

        def run() -> None:
            for _ in range(repeats):
                product.run()

        return run


def main() -> None:
    side = Side(Path(sys.argv[1]), int(sys.argv[2]))
    gc.disable()  # there is little garbage, and a collection falls into whichever run it likes
    print("ready", flush=True)
    for line in sys.stdin:
        print(side.run(line.strip()), flush=True)


if __name__ == "__main__":
    main()
