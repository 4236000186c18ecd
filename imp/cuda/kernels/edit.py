"""Logits before a draw: steps 2 to 4 of imp/model/sampling.py. A block has a row; rows without bias, mask or penalties
are left out, for they are drawn from as they are."""

from __future__ import annotations

from typing import Any

import numba.cuda
from numba import types

from ..compile import PythonKernel

cuda: Any = numba.cuda  # what it has in a kernel is not what it has in Python
THREADS = 256
REPETITION, FREQUENCY, PRESENCE = 4, 5, 6  # rows of `floats`, as sample.cu has them
MASK_ROWS = 4  # row of `ints`
NOTHING = -float("inf")


def edit(
    raw, edited, floats, ints, bias_starts, bias_tokens, bias_values, seen_starts, seen_tokens, seen_counts,
    masks, mask_tokens, aliases, rows, ld, vocab, mask_words, mask_bits, alias_count,
):  # fmt: skip
    """edited [rows, ld] = raw with what the plan adds to it, tokens below `vocab`. Grid (rows), 256 threads.

    raw, edited: float32. floats [12, rows], ints [5, rows]; the others as SamplingPlan has them. Sums are float64's."""
    r, thread = cuda.blockIdx.x, cuda.threadIdx.x
    mask = ints[MASK_ROWS * rows + r]
    bias, bias_end, seen, seen_end = bias_starts[r], bias_starts[r + 1], seen_starts[r], seen_starts[r + 1]
    if mask < 0 and bias == bias_end and seen == seen_end:
        return
    row = types.int64(r) * ld
    for t in range(thread, vocab, THREADS):
        edited[row + t] = raw[row + t] if mask < 0 else types.float32(NOTHING)
    cuda.syncthreads()
    if mask >= 0:
        words = types.int64(mask) * mask_words
        for bit in range(thread, mask_bits, THREADS):
            t = mask_tokens[bit]
            if (masks[words + bit // 32] >> types.uint32(bit % 32)) & types.uint32(1) and t < vocab:
                edited[row + t] = raw[row + t]
        for i in range(thread, alias_count, THREADS):
            t, bit = aliases[2 * i], aliases[2 * i + 1]
            if (masks[words + bit // 32] >> types.uint32(bit % 32)) & types.uint32(1) and t < vocab:
                edited[row + t] = raw[row + t]
        cuda.syncthreads()
    for i in range(bias + thread, bias_end, THREADS):
        t = bias_tokens[i]
        if t < vocab:
            edited[row + t] = types.float32(types.float64(edited[row + t]) + types.float64(bias_values[i]))
    cuda.syncthreads()
    repetition = types.float64(floats[REPETITION * rows + r])
    frequency = types.float64(floats[FREQUENCY * rows + r])
    presence = types.float64(floats[PRESENCE * rows + r])
    for i in range(seen + thread, seen_end, THREADS):
        t = seen_tokens[i]
        if t < vocab:
            v = types.float64(edited[row + t])
            v = v / repetition if v > 0.0 else v * repetition
            count = seen_counts[i]
            v -= frequency * count
            if count > 0:
                v -= presence
            edited[row + t] = types.float32(v)


_F32, _I32, _U32 = (types.CPointer(each) for each in (types.float32, types.int32, types.uint32))
EDIT = PythonKernel(
    "edit",
    edit,
    (_F32, _F32, _F32, _I32, _I32, _I32, _F32, _I32, _I32, _I32, _U32, _I32, _I32, *(types.int32,) * 6),
    THREADS,
)
