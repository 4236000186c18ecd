"""A step's block of words: where each array is, that all of a step fits its bucket, and how attention is cut up."""

from __future__ import annotations

import numpy as np
import pytest

from imp.cuda import step
from imp.cuda.step import BUCKETS, PARTIAL_ROWS, SPLIT, Sections, Shape
from imp.model.inputs import StepInputs, packed
from imp.model.ops import StepLimits


def inputs_of(counts: list[int], contexts: list[int], wanted: list[int], pooled: list[int]) -> StepInputs:
    rng = np.random.default_rng(sum(counts))
    starts = np.cumsum([0, *counts])
    blocks = [-(-context // 16) for context in contexts]
    positions = [context - count + i for count, context in zip(counts, contexts, strict=True) for i in range(count)]
    return StepInputs(
        tokens=packed(rng.integers(0, 1000, starts[-1])),
        positions=packed(positions),
        slots=packed(rng.integers(0, 1000, starts[-1])),
        row_starts=packed(starts),
        contexts=packed(contexts),
        table_starts=packed(np.cumsum([0, *blocks])),
        table=packed(rng.integers(0, 99, sum(blocks))),
        wanted=packed(wanted),
        pooled=packed(pooled),
    )


def shape_of(inputs: StepInputs, room: int, tile_tokens: int) -> Shape:
    """With room for so much more of everything than there is."""
    return Shape(
        tokens=len(inputs.tokens) + room,
        wanted=len(inputs.wanted) + room,
        pooled=len(inputs.pooled) + room,
        rows=len(inputs.contexts) + room,
        tiles=len(step.tiles_of(inputs, tile_tokens)) + room,
        splits=1,
        tile_rows=16,
        tile_tokens=tile_tokens,
    )


@pytest.mark.parametrize("room", [0, 1, 7])
@pytest.mark.parametrize(
    "inputs",
    [
        inputs_of([1], [1], [0], []),
        inputs_of([1, 1, 1], [5, 900, 17], [0, 1, 2], []),
        inputs_of([40, 1, 5, 130], [40, 600, 5, 700], [39, 40], [45, 46]),
        inputs_of([64], [64], [], []),
    ],
    ids=str,
)
def test_every_array_is_where_its_section_says(inputs, room):
    shape = shape_of(inputs, room, 5)
    sections, words = Sections.of(shape), np.full(4000, -7, np.int32)
    used = step.write(inputs, shape, sections, words)
    for name in step.ARRAYS:
        values, start = getattr(inputs, name), getattr(sections, name)
        assert start % 4 == 0 and words[start : start + len(values)].tolist() == values.tolist(), name
    assert used == sections.table + len(inputs.table) and (words[used:] == -7).all()
    counts = len(inputs.tokens), len(inputs.contexts), len(inputs.wanted), len(inputs.pooled)
    assert tuple(words[:4]) == counts
    assert words[step.SPLITS] == -(-max(inputs.contexts) // SPLIT)


def test_tiles_cover_every_query_once():
    inputs = inputs_of([40, 1, 5, 130], [40, 600, 5, 700], [], [])
    covered = set()
    for row, first in step.tiles_of(inputs, 16).tolist():
        start, end = inputs.row_starts[row : row + 2]
        tokens = set(range(start + first, min(start + first + 16, end)))
        assert tokens and not tokens & covered and first % 16 == 0
        covered |= tokens
    assert covered == set(range(176))


def test_what_does_not_fit_is_refused():
    inputs = inputs_of([3, 2], [3, 2], [2, 4], [])
    words = np.zeros(400, np.int32)
    shape = shape_of(inputs, 0, 4)
    for name in ("tokens", "rows", "wanted", "tiles"):
        values = {field: getattr(shape, field) for field in Shape.__slots__} | {name: getattr(shape, name) - 1}
        with pytest.raises(AssertionError):
            step.write(inputs, Shape(**values), Sections.of(shape), words)


def test_the_largest_step_has_words_enough():
    limits = StepLimits(tokens=70, rows=9, logit_rows=64, context=1000, blocks=5000)
    inputs = inputs_of([8] * 7 + [7, 7], [1000] * 9, list(range(64)), list(range(70)))
    words = np.zeros(step.words_needed(limits), np.int32)
    shape = shape_of(inputs, 0, 1)
    assert step.write(inputs, shape, Sections.of(shape), words) <= len(words)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_with_more_room_than_there_are_rows_has_words_enough(bucket):
    limits = StepLimits(tokens=64, rows=2, logit_rows=64, context=1000, blocks=100)
    inputs = inputs_of([1, 1], [1000, 1000], [0], [])
    words = np.zeros(step.words_needed(limits), np.int32)
    room = Shape(bucket, bucket, 0, bucket, bucket, 1, 16, 1)
    if bucket > 1:
        assert step.write(inputs, room, Sections.of(room), words) <= len(words)
    assert Sections.of(room).table + 126 <= len(words)


def test_steps_go_to_the_smallest_bucket_they_fit_in():
    assert [step.bucket_of(tokens) for tokens in (1, 3, 16, 17, 64, 65)] == [1, 4, 16, 24, 64, None]
    assert list(BUCKETS) == sorted(BUCKETS)


@pytest.mark.parametrize(
    ("splits", "tokens", "bucket"), [(1, 1, 1), (3, 1, 4), (64, 8, 64), (65, 8, 128), (33, 64, 1), (32, 64, 32)]
)
def test_keys_are_split_while_there_are_few_tokens(splits, tokens, bucket):
    assert step.splits_bucket(splits, tokens) == bucket
    assert bucket == 1 or bucket * tokens <= PARTIAL_ROWS
