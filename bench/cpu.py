"""One matrix product of the CPU backend by itself, as a program of one op."""

from __future__ import annotations

import numpy as np

from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.ops import Recorder
from imp.cpu.pack import Arena
from imp.cpu.program import STEP_TOKENS, build
from imp.cpu.threads import Threads
from imp.model.ops import Linear, StepLimits
from tests.cpu.harness import weight


class Product:
    """x [tokens, inputs] by a random matrix of a format; its packing and recording are not part of `run`.

    The activations are zeros: the kernels take the same time whatever the values, and quantising them is left in, as
    in a model."""

    def __init__(
        self, kernels: CompiledKernels, threads: Threads, name: str, *, outputs: int, inputs: int, tokens: int
    ) -> None:
        self.threads, self.tokens = threads, tokens
        matrix = weight(name, outputs, inputs, np.random.default_rng(1))
        self.weight_bytes, self.multiply_adds = matrix.data.nbytes, outputs * inputs * tokens
        limits, kind = StepLimits(tokens, 1, 1, tokens, 1), kernels.variant
        recorder = Recorder(limits, threads.count, [], np.zeros((1, 1), np.float32), kind=kind)
        recorder.ops.clear()  # no attention here
        given = recorder._floats(inputs, "given")
        result = recorder.linear(given, Linear((matrix,)))
        self._arena = Arena(sum(packed.size for packed in recorder.weights.values()))
        for packed in recorder.weights.values():
            self._arena.pack(packed)
        pinned = [buffer for buffer in (given.floats, result.floats) if buffer is not None]
        self._program = build(recorder.ops, compile_all(kernels, [op.kernel for op in recorder.ops]), pinned)

    def run(self) -> None:
        self.threads.step[STEP_TOKENS] = self.tokens
        self.threads.run(self._program)
