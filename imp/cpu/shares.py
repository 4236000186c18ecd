"""How an op's rows are cut into units: by records of activations, and a record's rows by columns.

Two threads that wrote into one block of a record would take its lines from each other, which is slower than to wait for
one that writes it all. So a unit has all rows of a record. Where there are fewer records than threads, every thread has
some of their blocks, whole spans where these share what scales are made of.
"""

from __future__ import annotations

from ..jit import njit
from .activations import TILE, span_blocks
from .pack import BLOCK
from .program import STEP_THREADS, STEP_TOKENS, count
from .simd import word


@njit
def units_of(rows):
    """As many as records of activations."""
    return (rows + TILE - 1) // TILE


@njit
def span_of(unit, rows):
    """The rows of a unit."""
    return unit * TILE, min(unit * TILE + TILE, rows)


@njit
def rows_of_part(rows, most, step):
    """Of an op whose rows all threads have some of: whole records, `most` rows at most, and so many that every thread
    has as many parts, or all but the last."""
    threads = word(step, STEP_THREADS)
    parts = threads * ((rows + threads * most - 1) // (threads * most))
    return (rows + parts * TILE - 1) // (parts * TILE) * TILE


@count
def per_token(args, step):
    return units_of(word(step, STEP_TOKENS))


@njit
def _shares(records, columns, step):
    """Into how many units the columns of a record's rows are cut."""
    most = columns // (BLOCK * span_blocks())
    return max(1, min((word(step, STEP_THREADS) + records - 1) // max(records, 1), most))


@njit
def parts(rows, columns, step):
    """How many units an op over rows has whose columns can be written apart."""
    records = units_of(rows)
    return records * _shares(records, columns, step)


@njit
def part_of(unit, rows, columns, step):
    """Of such a unit: its first row, the row after, its first column, the column after. Columns are whole blocks, and
    spans of them, but for the last ones of a row."""
    width = BLOCK * span_blocks()
    shares, spans = _shares(units_of(rows), columns, step), columns // width
    first, stop = span_of(unit // shares, rows)
    share = unit % shares
    end = columns if share == shares - 1 else spans * (share + 1) // shares * width
    return first, stop, spans * share // shares * width, end
