"""The merge list that makes byte-pair encoding reproduce SentencePiece's scores. Knows nothing of files.

SentencePiece merges the adjacent pair whose joined piece has the highest score, the leftmost of equals. A BPE encoder
does the same when its merges are all pairs of pieces that join to a piece, ordered by that piece's score. Among the
splits of one piece, the longest left part comes first, as in the tokenizer.json files made from SentencePiece models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2**64
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))


def merges_from_scores(pieces: Sequence[str], scores: np.ndarray, mergeable: np.ndarray) -> list[tuple[str, str]]:
    """All merges, first to last. scores: float [V]. mergeable: bool [V], which pieces a merge may produce."""
    cuts, token, first = _candidates(pieces, mergeable)
    rank = np.argsort(-scores.astype(np.float64), kind="stable")
    place = np.empty(len(rank), np.int64)
    place[rank] = np.arange(len(rank))
    left = cuts - first  # characters of the left part
    order = np.lexsort((-left, place[token]))
    # candidates are spans with the hash of a piece; should one ever not be a piece, building the encoder refuses it
    pairs = zip(map(pieces.__getitem__, token[order].tolist()), left[order].tolist(), strict=True)
    return [(piece[:size], piece[size:]) for piece, size in pairs]


def _candidates(pieces: Sequence[str], mergeable: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every cut of a mergeable piece whose two parts hash like pieces: (cut, token, where the token begins), int64 [N].

    Positions count characters of all pieces joined. A dictionary look-up for each part of each of a million cuts
    costs seconds in cache misses; hashes of all parts come from one running sum.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    codes = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    hashes = _SpanHashes(codes)
    known = np.sort(hashes.of(starts, ends))

    token = np.repeat(np.arange(len(pieces)), lengths)  # [C] the token each character belongs to
    cuts = np.arange(len(codes))
    inside = (cuts > starts[token]) & mergeable[token]
    cuts, token = cuts[inside], token[inside]
    left_known = _contains(known, hashes.of(starts[token], cuts))
    cuts, token = cuts[left_known], token[left_known]
    right_known = _contains(known, hashes.of(cuts, ends[token]))
    cuts, token = cuts[right_known], token[right_known]
    return cuts, token, starts[token]


class _SpanHashes:
    """Polynomial hashes modulo 2**64 of any span of a text, each in O(1)."""

    def __init__(self, codes: np.ndarray) -> None:
        """codes: uint64 [C]."""
        powers = np.full(len(codes) + 1, _BASE, np.uint64)
        inverses = np.full(len(codes) + 1, _INVERSE, np.uint64)
        powers[:1] = inverses[:1] = 1
        powers = np.cumprod(powers, dtype=np.uint64)
        self._inverses = np.cumprod(inverses, dtype=np.uint64)
        self._sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum((codes + np.uint64(1)) * powers[:-1], out=self._sums[1:])

    def of(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """uint64 [N], equal for equal spans [begin, end)."""
        return (self._sums[end] - self._sums[begin]) * self._inverses[begin]


def _contains(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """bool [N]. known: sorted, not empty."""
    at = np.searchsorted(known, values)
    return known[np.minimum(at, len(known) - 1)] == values
