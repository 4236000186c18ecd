"""Masks as bits: ranges and single ones set and cleared, rows of the pool."""

from __future__ import annotations

import numpy as np

from . import layout
from .layout import CHUNK_ROWS, WORDS, jitted, words_at

chunks_of = layout.vector(layout.CHUNKS, np.int64)
vocabulary_of = layout.vector(layout.VOCABULARY, np.int64)


@jitted
def row_words(context: np.ndarray, row: int) -> np.ndarray:
    vocabulary = vocabulary_of(context)
    words, chunk = vocabulary[WORDS], vocabulary[CHUNK_ROWS]
    return words_at(chunks_of(context)[row // chunk] + (row % chunk) * words * 4, words)


@jitted
def copy_words(mask: np.ndarray, words: np.ndarray) -> None:
    """A slice's assignment would take memory where the two overlap, which no kernel may."""
    for word in range(len(mask)):
        mask[word] = words[word]


@jitted
def set_bit(mask: np.ndarray, rank: int) -> None:
    mask[rank >> 5] |= np.uint32(1) << np.uint32(rank & 31)


@jitted
def set_range(mask: np.ndarray, first: int, last: int) -> None:
    """Bits first .. last - 1."""
    if first >= last:
        return
    low, high = first >> 5, (last - 1) >> 5
    from_first = np.uint32(0xFFFFFFFF) << np.uint32(first & 31)
    to_last = np.uint32(0xFFFFFFFF) >> np.uint32(31 - ((last - 1) & 31))
    if low == high:
        mask[low] |= from_first & to_last
        return
    mask[low] |= from_first
    for word in range(low + 1, high):
        mask[word] = np.uint32(0xFFFFFFFF)
    mask[high] |= to_last


@jitted
def clear_range(mask: np.ndarray, first: int, last: int) -> None:
    """Not bits first .. last - 1."""
    if first >= last:
        return
    low, high = first >> 5, (last - 1) >> 5
    from_first = np.uint32(0xFFFFFFFF) << np.uint32(first & 31)
    to_last = np.uint32(0xFFFFFFFF) >> np.uint32(31 - ((last - 1) & 31))
    if low == high:
        mask[low] &= ~(from_first & to_last)
        return
    mask[low] &= ~from_first
    for word in range(low + 1, high):
        mask[word] = np.uint32(0)
    mask[high] &= ~to_last
