"""One matrix product, or one layer's attention, of the CPU backend by itself, as a program of its own."""

from __future__ import annotations

import numpy as np

from imp.cpu.attention import AttentionWork
from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.kept import BLOCK
from imp.cpu.kv import KEPT
from imp.cpu.ops import Recorder
from imp.cpu.pack import Arena
from imp.cpu.program import STEP_PROMPTS, STEP_TOKENS, build, fill_header
from imp.cpu.threads import Threads
from imp.model.buffers import Buffer
from imp.model.inputs import StepInputs
from imp.model.ops import Attention, KVLayer, Linear, StepLimits
from tests.cpu.harness import weight


class Product:
    """x [tokens, inputs] by a random matrix of a format; its packing and recording are not part of `run`.

    The activations are zeros: the kernels take the same time whatever the values, and quantising them is left in, as
    in a model."""

    def __init__(
        self,
        kernels: CompiledKernels,
        threads: Threads,
        name: str,
        *,
        outputs: int,
        inputs: int,
        tokens: int,
        prompts: bool = False,
    ) -> None:
        """prompts: the tokens are those of prompts."""
        self.threads, self.tokens, self.prompts = threads, tokens, prompts
        matrix = weight(name, outputs, inputs, np.random.default_rng(1))
        self.weight_bytes, self.multiply_adds = matrix.data.nbytes, outputs * inputs * tokens
        limits, kind = StepLimits(tokens, 1, 1, tokens, 1), kernels.variant
        recorder = Recorder(limits, threads.count, [], np.zeros((1, 1), np.float32), kind=kind, apart=prompts)
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
        self.threads.step[STEP_PROMPTS] = 0 if self.prompts else self.tokens
        self.threads.run(self._program)


class Attended:
    """The last `tokens` positions of each of `rows` sequences of `context`, in one layer, over keys and values that are
    random halves."""

    def __init__(
        self, kernels: CompiledKernels, threads: Threads, shape: Attention, *, tokens: int, context: int, rows: int = 1
    ) -> None:
        self.threads, kept, rng = threads, KEPT["fp16"], np.random.default_rng(1)
        blocks, heads = -(-context // BLOCK), shape.heads * shape.head_dim
        limits = StepLimits(tokens * rows, rows, 1, context, blocks * rows)
        block_bytes = kept.block_bytes(KVLayer(shape.kv_heads, shape.head_dim), BLOCK)
        self._cache = rng.standard_normal((blocks * rows, block_bytes // 2)).astype(np.float16)
        work, q = AttentionWork.sized(limits, kernels.variant), Buffer(tokens * rows * heads * 4, "q")
        ops, out = work.attended(q, shape, self._cache, block_bytes, kept)
        ops = [work.planned(), *ops]
        self._program = build(ops, compile_all(kernels, [op.kernel for op in ops]), (q, out))
        self._inputs = _last_positions(tokens, context, rng.permutation(blocks * rows).reshape(rows, blocks))
        keys = context - (tokens - 1) / 2  # of a position, on average
        self.multiply_adds = 2 * heads * tokens * rows * keys

    def run(self) -> None:
        self._joined = fill_header(self.threads.step, self._inputs)
        self.threads.run(self._program)


def _last_positions(tokens: int, context: int, tables: np.ndarray) -> StepInputs:
    """tables: the blocks of each row."""
    rows = len(tables)
    positions = np.tile(np.arange(context - tokens, context), rows)
    nothing = np.zeros(len(positions))
    starts, table_starts = np.arange(rows + 1) * tokens, np.arange(rows + 1) * tables.shape[1]
    given = (nothing, positions, nothing, starts, np.full(rows, context), table_starts, tables.ravel(), nothing[:0])
    return StepInputs(*(np.ascontiguousarray(array, np.int32) for array in given))
