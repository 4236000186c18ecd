"""The plan half of plan/run: a Batch becomes the packed arrays a backend reads. Owns no state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..types import Batch, Pool, Row

BEYOND = 1 << 30  # more positions than any step has
SPAN = 128  # positions with one adapter that go together at most: threads share what is longer


def packed(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


NOTHING_ADAPTED = packed(()).reshape(0, 3)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step, packed. All arrays are int32 and contiguous; T positions, B rows, R wanted positions.

    Row b owns positions row_starts[b]:row_starts[b+1] of the T; they are consecutive positions of one sequence, and its
    keys after this step are positions 0 .. contexts[b]-1, kept in blocks table[table_starts[b] + p // block_size].

    Positions of outputs come first, then those of prompts. Which of both a position is, and so the arithmetic that a
    backend computes it in, depends on its request alone.
    """

    tokens: np.ndarray  # [T]
    positions: np.ndarray  # [T]
    slots: np.ndarray  # [T] block * block_size + offset: where this position's key and value go
    row_starts: np.ndarray  # [B + 1]
    contexts: np.ndarray  # [B]
    table_starts: np.ndarray  # [B + 1]
    table: np.ndarray  # [sum of blocks]
    wanted: np.ndarray  # [R] indices into T, ascending
    pooled: np.ndarray = field(default_factory=lambda: packed(()))  # [P] indices into T whose hidden states are wanted
    # [S, 3] spans of positions with one adapter: first, after the last, the adapter's slot
    adapted: np.ndarray = field(default_factory=lambda: NOTHING_ADAPTED)
    outputs: np.ndarray = field(default_factory=lambda: packed(()))  # [B] the position where each row's output begins
    prompts_from: int = BEYOND  # index into T of the first position of a prompt; T where there is none

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts_from", min(self.prompts_from, len(self.tokens)))


def prompt_inputs(
    tokens: Sequence[int], start: int, end: int, block_size: int, wanted: Sequence[int] = ()
) -> StepInputs:
    """Positions start to end - 1 of a prompt alone, whose keys and values are in the first blocks. wanted: as there."""
    blocks = -(-end // block_size)
    return StepInputs(
        tokens=packed(tokens[start:end]),
        positions=packed(range(start, end)),
        slots=packed(range(start, end)),
        row_starts=packed((0, end - start)),
        contexts=packed((end,)),
        table_starts=packed((0, blocks)),
        table=packed(range(blocks)),
        wanted=packed(wanted),
        prompts_from=0,
    )


def outputs_first(rows: Sequence[Row]) -> list[Row]:
    """The order in which `pack` takes rows."""
    return sorted(rows, key=_is_prompt)


def _is_prompt(row: Row) -> bool:
    return row.is_prompt


def _prompts_from(rows: Sequence[Row], row_starts: Sequence[int]) -> int:
    """StepInputs.prompts_from."""
    return row_starts[next((b for b, row in enumerate(rows) if row.is_prompt), len(rows))]


def wanted_count(row: Row) -> int:
    """How many positions of the row want logits."""
    if row.wants_prompt_logprobs:
        return row.count
    if row.seq.request.pool not in (None, Pool.SCORE):
        return 0
    return 1 + len(row.seq.draft) if row.reaches_end else 0


def pooled_positions(row: Row) -> range:
    """The positions of the row, counted from its first, whose hidden states the request's vector is made of."""
    pool = row.seq.request.pool
    if pool is Pool.MEAN:
        return range(row.count)
    if pool is Pool.FIRST:
        return range(0 if row.start else 1)
    return range(row.count - 1, row.count) if pool is Pool.LAST and row.reaches_end else range(0)


def adapted_spans(rows: Sequence[Row], row_starts: Sequence[int]) -> np.ndarray:
    """StepInputs.adapted. Neighbouring rows of one adapter are one span."""
    spans: list[tuple[int, int, int]] = []
    for row, start, end in zip(rows, row_starts, row_starts[1:], strict=False):
        slot = row.seq.request.adapter
        if slot is None:
            continue
        if spans and spans[-1][1:] == (start, slot):
            start = spans.pop()[0]
        spans += [(first, min(first + SPAN, end), slot) for first in range(start, end, SPAN)]
    return np.array(spans, np.int32) if spans else NOTHING_ADAPTED


def pack(batch: Batch, block_size: int, wants: Callable[[Row], int] = wanted_count) -> StepInputs:
    """Rows in the batch's order, in which those of outputs come first (`outputs_first`); of each, logits are wanted at
    the last `wants(row)` positions."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    table: list[int] = []
    wanted: list[int] = []
    pooled: list[int] = []
    row_starts, contexts, table_starts = [0], [], [0]
    for row in batch.rows:
        start, end, blocks = row.start, row.start + row.count, row.seq.blocks
        tokens += row.inputs
        table += blocks[: -(-end // block_size)]
        if row.count == 1:
            positions.append(start)
            slots.append(blocks[start // block_size] * block_size + start % block_size)
        else:
            span = range(start, end)
            positions += span
            slots += [blocks[p // block_size] * block_size + p % block_size for p in span]
        count = wants(row)
        wanted += range(len(tokens) - count, len(tokens))
        if row.seq.request.pool is not None:
            pooled += [row_starts[-1] + i for i in pooled_positions(row)]
        row_starts.append(len(tokens))
        contexts.append(end)
        table_starts.append(len(table))

    return StepInputs(
        tokens=packed(tokens),
        positions=packed(positions),
        slots=packed(slots),
        row_starts=packed(row_starts),
        contexts=packed(contexts),
        table_starts=packed(table_starts),
        table=packed(table),
        wanted=packed(wanted),
        pooled=packed(pooled),
        adapted=adapted_spans(batch.rows, row_starts),
        outputs=packed([len(row.seq.request.prompt) for row in batch.rows]),
        prompts_from=_prompts_from(batch.rows, row_starts),
    )
