"""One step as kernels see it: a block of int32 words, uploaded at once, and how large its arrays are. Owns no memory.

A shape says how many tokens, rows and so on there is room for. A program launched for a shape, or captured for it as a
graph, does every step that fits: how much there is of it kernels read from `counts`, and where each array lies follows
from the shape alone. The block table comes last, for only its length is not the shape's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..model.inputs import StepInputs
from ..model.ops import StepLimits

COUNTS = 8  # words
TOKENS, ROWS, WANTED, POOLED, TILES, SPLITS = range(6)  # words of the counts
SPLIT = 512  # keys that attention does before it merges, always the same ones of a sequence
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # tokens for which graphs are captured
PARTIAL_ROWS = 2048  # tokens times splits that are done side by side, at most
WORDS_ALIGNED = 4  # arrays begin at 16 bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is room for. wanted, pooled: positions whose logits or hidden states are.

    splits: parts of the keys that are attended to side by side; 1: each block does all, one after the other.
    tile_rows: of a block of attention.   tile_tokens: how many tokens that are.   adapted: some may have adapters.
    warp_groups: products are theirs (kernels/linear_wgmma.cu) where they can be."""

    tokens: int
    wanted: int
    pooled: int
    rows: int
    tiles: int
    splits: int
    tile_rows: int
    tile_tokens: int
    adapted: bool = False
    warp_groups: bool = False

    def count(self, word: int) -> int:
        return {TOKENS: self.tokens, WANTED: self.wanted, POOLED: self.pooled}[word]


@dataclass(frozen=True, slots=True)
class Sections:
    """Where a shape's arrays begin, in words. Arrays and counts are inputs.StepInputs'; tiles: [n, 2], the row of each
    tile of queries and its first token in the row; adapters: the slot of each token's, or -1."""

    tokens: int
    positions: int
    slots: int
    row_starts: int
    contexts: int
    table_starts: int
    wanted: int
    pooled: int
    tiles: int
    adapters: int
    table: int

    @classmethod
    def of(cls, shape: Shape) -> Sections:
        tokens, rows = shape.tokens, shape.rows
        sizes = [tokens] * 3 + [rows + 1, rows, rows + 1, shape.wanted, shape.pooled, 2 * shape.tiles]
        sizes.append(tokens if shape.adapted else 0)
        starts = [COUNTS]
        for size in sizes:
            starts.append(starts[-1] + -(-size // WORDS_ALIGNED) * WORDS_ALIGNED)
        return cls(*starts)


def words_needed(limits: StepLimits) -> int:
    """Of the largest step within the limits, and of every bucket, which may have room for more rows than there are."""
    tokens, rows = max(limits.tokens, BUCKETS[-1]), max(limits.rows, BUCKETS[-1])
    most = Shape(tokens, tokens, tokens, rows, tokens, 1, 1, 1, adapted=True)
    return Sections.of(most).table + limits.rows * -(-limits.context // limits.block_size)


def tiles_of(inputs: StepInputs, tile_tokens: int) -> np.ndarray:
    """int32 [n, 2]: row, and first token in the row."""
    counts = np.diff(inputs.row_starts)
    tiles = -(-counts // tile_tokens)
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), tiles)
    before = np.repeat(np.cumsum(tiles) - tiles, tiles)
    return np.stack([rows, (np.arange(len(rows)) - before) * tile_tokens], axis=1).astype(np.int32)


def splits_of(inputs: StepInputs) -> int:
    """Splits of the longest sequence."""
    return -(-int(inputs.contexts.max()) // SPLIT)


def bucket_of(tokens: int) -> int | None:
    """The smallest bucket a step of so many tokens fits in; None: it is too large for all."""
    return next((bucket for bucket in BUCKETS if tokens <= bucket), None)


def splits_bucket(splits: int, tokens: int) -> int:
    """How many splits a program has for steps of up to `splits`: a power of two, or 1 where there are tokens enough to
    fill the device."""
    bucket = 1
    while bucket < splits:
        bucket *= 2
    return bucket if bucket * tokens <= PARTIAL_ROWS else 1


def write(inputs: StepInputs, shape: Shape, sections: Sections, words: np.ndarray) -> int:
    """Put a step that fits the shape into `words`, int32; returns how many are used."""
    tiles = tiles_of(inputs, shape.tile_tokens)
    sizes = (len(inputs.tokens), len(inputs.contexts), len(inputs.wanted), len(inputs.pooled), len(tiles))
    assert sizes[TOKENS] <= shape.tokens and sizes[ROWS] <= shape.rows and sizes[TILES] <= shape.tiles
    assert sizes[WANTED] <= shape.wanted and sizes[POOLED] <= shape.pooled
    words[: TILES + 1] = sizes
    words[SPLITS] = splits_of(inputs)
    for name in ARRAYS:
        values, start = getattr(inputs, name), getattr(sections, name)
        words[start : start + len(values)] = values
    words[sections.tiles : sections.tiles + tiles.size] = tiles.reshape(-1)
    if shape.adapted:
        slots = words[sections.adapters : sections.adapters + len(inputs.tokens)]
        slots[:] = -1
        for first, after, slot in inputs.adapted.tolist():
            slots[first:after] = slot
    return sections.table + len(inputs.table)


OWN = ("tiles", "adapters")  # sections that are not an array of StepInputs
ARRAYS = tuple(field.name for field in fields(Sections) if field.name not in OWN)
