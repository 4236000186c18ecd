"""Single ops of the CPU backend on given arrays, weights in every format, and steps made by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.ops import Activation, Recorder
from imp.cpu.pack import Arena
from imp.cpu.program import (
    STEP_POSITIONS,
    STEP_PROMPTS,
    STEP_SLOTS,
    STEP_TOKEN_IDS,
    STEP_TOKENS,
    STEP_WANTED,
    STEP_WANTED_IDS,
    build,
)
from imp.cpu.threads import Threads
from imp.cpu.variants import sums_bytes
from imp.model.buffers import Buffer
from imp.model.inputs import StepInputs
from imp.model.ops import StepLimits
from imp.weights.checkpoint import Weight
from imp.weights.quant import FORMATS

BLOCK = 16

FLOATS = ("F32", "F16", "BF16")
SMALL = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "MXFP4")  # integers of at most 5 bits

# byte offsets of the float16 scales in a block
HALVES = {
    **{"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "IQ4_XS": [0]},
    **{"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]},
}


def weight(name: str, outputs: int, inputs: int, rng: np.random.Generator) -> Weight:
    """Random bytes with sane scales: every bit pattern of the integers is met."""
    form = FORMATS[name]
    if form.block == 1:
        values = (rng.standard_normal((outputs, inputs)) * 0.1).astype(np.float32)
        raw = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }
        data = raw[name].view(np.uint8)
    else:
        blocks = rng.integers(0, 256, (outputs, inputs // form.block, form.size), dtype=np.uint8)
        for at in HALVES.get(name, []):
            scales = rng.uniform(0.001, 0.02, blocks.shape[:2]).astype(np.float16)
            blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
        if name == "MXFP4":
            blocks[..., 0] = rng.integers(118, 124, blocks.shape[:2])
        data = blocks.reshape(outputs, -1)
    return Weight(f"random {name}", data, form, (outputs, inputs))


def values(w: Weight) -> np.ndarray:
    """float64, by the gguf package."""
    name, data = w.format.name, np.ascontiguousarray(w.data)
    if name in ("F32", "F16"):
        return data.view({"F32": np.float32, "F16": np.float16}[name]).astype(np.float64)
    return gguf.dequantize(data, GGMLQuantizationType[name]).astype(np.float64)


def quantised(x: np.ndarray, kind: str, name: str, span: int = 1 << 20) -> np.ndarray:
    """x as products with weights of this format have it in code of this kind, in float64: int8 with a scale for every
    16 columns, which below the kind vnni is a multiple of 1/32767 of the largest of `span` columns, rounded up; there
    int16 with one scale for these, where weights have 8 bits."""
    if name in FLOATS:
        return x.astype(np.float64)
    if sums_bytes(kind):
        return _in_integers(x.astype(np.float64), 16, lambda blocks: np.abs(blocks).max(axis=-1, keepdims=True) / 127)
    return np.concatenate([_of_span(part, name) for part in _spans(x, span)], axis=1)


def _spans(x: np.ndarray, width: int) -> list[np.ndarray]:
    return [x[:, first : first + width].astype(np.float32) for first in range(0, x.shape[1], width)]


def _of_span(x: np.ndarray, name: str) -> np.ndarray:
    """Where a number is between two integers is decided in float32."""
    top = np.maximum(np.abs(x).max(axis=1), np.float32(1e-30))[:, None, None]
    if name not in SMALL:
        scale = top * np.float32(1 / 32767)
        return _in_integers(x, x.shape[1], lambda _: scale, np.float32(32767) / top)

    def scales(blocks: np.ndarray) -> np.ndarray:
        steps = np.ceil(np.abs(blocks).max(axis=-1, keepdims=True) * (np.float32(32767) / top))
        return np.clip(steps, np.float32(1), np.float32(32767)) * (top * np.float32(1 / (127 * 32767)))

    return _in_integers(x, 16, scales)


def _in_integers(
    x: np.ndarray, width: int, scales: Callable[[np.ndarray], np.ndarray], inverse: np.ndarray | None = None
) -> np.ndarray:
    blocks = x.reshape(len(x), -1, width)
    scale = scales(blocks)
    if inverse is None:
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(blocks * inverse).astype(np.float64) * scale.astype(np.float64)).reshape(x.shape)


class Workbench:
    """Records some ops over given arrays, runs them once, and reads the result."""

    def __init__(self, kernels: CompiledKernels, threads: Threads) -> None:
        self.kernels, self.threads = kernels, threads

    def run(
        self,
        record: Callable[..., Activation | None],
        *given: np.ndarray,
        inputs: StepInputs | None = None,
        cache: np.ndarray | None = None,
        logits: np.ndarray | None = None,
        prompts_from: int | None = None,
    ) -> np.ndarray:
        """record(recorder, *activations of `given`) -> the activation to read, [T, n]; None: the logits. prompts_from:
        the first position that is multiplied as prompts are."""
        tokens = len(given[0]) if given else len(inputs.tokens)
        out = np.zeros((tokens, 1), np.float32) if logits is None else logits
        limits = StepLimits(tokens, 1, len(out), tokens, 1)
        planes = [] if cache is None else [(cache.ctypes.data, cache[0].nbytes)]
        kind, apart = self.kernels.variant, prompts_from is not None
        recorder = Recorder(limits, self.threads.count, planes, out, kind=kind, apart=apart)
        recorder.ops.clear()  # no attention here
        sources = [recorder._floats(x.shape[1], "given") for x in given]
        result = record(recorder, *sources)
        pinned = [source.floats for source in sources]
        if result is not None:
            pinned.append(recorder._as_floats(result))
        arena = Arena(sum(packed.size for packed in recorder.weights.values()))
        for packed in recorder.weights.values():
            arena.pack(packed)
        program = build(recorder.ops, compile_all(self.kernels, [op.kernel for op in recorder.ops]), pinned)
        for source, x in zip(sources, given, strict=True):
            rows = _memory(source.floats, tokens, source.stride)
            rows[:] = np.nan  # what is behind a row must not matter
            rows[:, : x.shape[1]] = x
        self._fill_step(tokens, inputs)
        self.threads.step[STEP_PROMPTS] = tokens if prompts_from is None else prompts_from
        self.threads.run(program)
        if result is None:
            return out
        return _memory(result.floats, tokens, result.stride)[:, : result.columns].copy()

    def _fill_step(self, tokens: int, inputs: StepInputs | None) -> None:
        step = self.threads.step
        step[:] = 0
        step[STEP_TOKENS] = tokens
        if inputs is not None:
            step[STEP_WANTED] = len(inputs.wanted)
            for at, array in (
                (STEP_TOKEN_IDS, inputs.tokens),
                (STEP_POSITIONS, inputs.positions),
                (STEP_SLOTS, inputs.slots),
                (STEP_WANTED_IDS, inputs.wanted),
            ):
                step[at] = array.ctypes.data


def _memory(buffer: Buffer, rows: int, stride: int) -> np.ndarray:
    """A view of a placed buffer: float32 [rows, stride / 4]."""
    raw = (ctypes.c_uint8 * (rows * stride)).from_address(buffer.address)
    return np.frombuffer(raw, np.float32).reshape(rows, -1)


Row = tuple[Sequence[int], int, Sequence[int]]  # tokens, position of the first, blocks of the sequence


def step(rows: list[Row], wanted: Sequence[int] | None = None) -> StepInputs:
    """`wanted`: indices into T; None: the last position of every row."""
    counts = [len(tokens) for tokens, _, _ in rows]
    ends = np.cumsum([0, *counts])
    contexts = [start + len(tokens) for tokens, start, _ in rows]
    tables = [list(blocks[: -(-context // BLOCK)]) for (_, _, blocks), context in zip(rows, contexts, strict=True)]
    positions = [np.arange(start, start + len(tokens)) for tokens, start, _ in rows]
    slots = [np.array(b)[p // BLOCK] * BLOCK + p % BLOCK for (_, _, b), p in zip(rows, positions, strict=True)]
    return StepInputs(
        *(
            np.ascontiguousarray(array, np.int32)
            for array in (
                np.concatenate([tokens for tokens, _, _ in rows]),
                np.concatenate(positions),
                np.concatenate(slots),
                ends,
                contexts,
                np.cumsum([0, *map(len, tables)]),
                np.concatenate(tables),
                ends[1:] - 1 if wanted is None else wanted,
            )
        )
    )
