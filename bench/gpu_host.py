"""What the host spends on a decoding step of the CUDA backend, without a GPU: `python -m bench.gpu_host`.

The driver is the tests' fake one, which checks and counts what it is asked for and runs no kernel here. The model has 32
layers and small matrices: the calls of a step are those of a large one."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.gpu import fake

LAYERS, STEPS, CONTEXT = 32, 2000, 120


def main() -> None:
    folder = Path(tempfile.gettempdir()) / "imp-gpu-host"
    fake.install(folder)
    from bench.gpu import decoder  # the driver is looked for when they are imported
    from bench.gpu_kernels import decoding
    from bench.gpu_lines import SMOKE
    from imp.cuda.ops import CudaBackend
    from imp.model.ops import StepLimits

    backend = CudaBackend(cache_dir=folder)
    limits = StepLimits(tokens=32, rows=32, logit_rows=32, context=256, blocks=512)
    backend.load(decoder(replace(SMOKE[-1], layers=LAYERS), "F16", 256), limits)
    fake.set_runs_kernels(False)
    for rows in (1, 8, 32):
        step, took = decoding(rows, CONTEXT), []
        backend.run(step)
        fake.reset()
        for _ in range(STEPS):
            began = time.perf_counter()
            backend.run(step)
            took.append(time.perf_counter() - began)
        counted = fake.counters()
        calls = f"{counted.graph_launches / STEPS:g} graphs, {counted.launches / STEPS:g} launches"
        calls += f", {counted.copies / STEPS:g} copies, {counted.allocations / STEPS:g} allocations"
        loaded = backend.loaded
        kernels = len(loaded._launches(loaded._shape(rows, rows, 0, 1)))
        print(f"{rows:3} rows: {1e6 * statistics.median(took):6.1f} us a step of {LAYERS} layers, {kernels} kernels; {calls}")


if __name__ == "__main__":
    main()
