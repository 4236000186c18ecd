"""A vocabulary as bytes and back, to cross from one process of ours to another. Never for bytes from anybody else.

Hundreds of thousands of strings travel as one, and are cut apart in loops of Python: a library that makes them all in
one call holds the interpreter's lock all that time.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from .vocabulary import AddedToken, Encoder, Vocabulary

_WHOLE = ("bos", "eos", "pad", "unk", "prefix", "suffix", "adds_space")


@dataclass(frozen=True, slots=True)
class _Packed:
    """sizes of pieces count characters, those of token_bytes bytes."""

    pieces: str
    piece_sizes: array[int]
    bytes: bytes
    bytes_sizes: array[int]
    ids: Sequence[tuple[str, int]]  # that do not follow from the pieces
    added: Sequence[tuple[Any, ...]]  # a token and the fields of its AddedToken
    special: Sequence[int]
    ends: Sequence[int]
    whole: Mapping[str, Any]


def pack(vocabulary: Vocabulary) -> bytes:
    """All of a vocabulary but its encoder. Equal for equal ones."""
    pieces, table = vocabulary.pieces, vocabulary.token_bytes
    known = _ids(pieces)
    packed = _Packed(
        pieces="".join(pieces),
        piece_sizes=array("I", map(len, pieces)),
        bytes=b"".join(table),
        bytes_sizes=array("I", map(len, table)),
        ids=sorted((piece, token) for piece, token in vocabulary.ids.items() if known.get(piece) != token),
        added=[
            (token, each.content, each.special, each.lstrip, each.rstrip, each.normalized, each.single_word)
            for token, each in sorted(vocabulary.added.items())
        ],
        special=sorted(vocabulary.special),
        ends=sorted(vocabulary.ends),
        whole={name: getattr(vocabulary, name) for name in _WHOLE},
    )
    return pickle.dumps(packed)


def unpack(data: bytes | bytearray, encoder: Encoder) -> Vocabulary:
    """What `pack` made these bytes of, with another encoder."""
    packed = pickle.loads(data)
    assert isinstance(packed, _Packed)
    text, table = packed.pieces, packed.bytes
    pieces = [text[start:end] for start, end in pairwise(accumulate(packed.piece_sizes, initial=0))]
    return Vocabulary(
        pieces=pieces,
        ids=_ids(pieces) | dict(packed.ids),
        token_bytes=[table[start:end] for start, end in pairwise(accumulate(packed.bytes_sizes, initial=0))],
        encoder=encoder,
        added={token: AddedToken(*fields) for token, *fields in packed.added},
        special=frozenset(packed.special),
        ends=frozenset(packed.ends),
        **packed.whole,
    )


def _ids(pieces: Sequence[str]) -> dict[str, int]:
    """Of two tokens with one spelling, the first; none for an empty one."""
    ids: dict[str, int] = {}
    for token, piece in enumerate(pieces):
        if piece and piece not in ids:
            ids[piece] = token
    return ids
