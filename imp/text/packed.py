"""A vocabulary as bytes and back, to cross from one process of ours to another. Never for bytes from anybody else.

Hundreds of thousands of strings travel as one, and are made into objects one by one: a library that makes them all in
one call holds the interpreter's lock all that time.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, overload

from .vocabulary import AddedToken, Encoder, Vocabulary

_FLAGS = ("special", "lstrip", "rstrip", "normalized", "single_word")  # of an AddedToken
_WHOLE = ("bos", "eos", "pad", "unk", "prefix", "suffix", "adds_space")


class ByteTable(Sequence[bytes]):
    """Byte strings that become objects when they are asked for."""

    __slots__ = ("_data", "_starts")

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._data = b"".join(strings)
        self._starts = array("I", accumulate(map(len, strings), initial=0))  # where each begins, and one more would

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        starts = self._starts
        if index >= 0:
            return self._data[starts[index] : starts[index + 1]]
        return self._data[starts[index - 1] : starts[index]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        for start, end in pairwise(self._starts):
            yield data[start:end]


class TextTable(Sequence[str]):
    """Strings likewise."""

    __slots__ = ("_table",)

    def __init__(self, strings: Sequence[str]) -> None:
        self._table = ByteTable([each.encode() for each in strings])

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [each.decode() for each in self._table[index]]
        return self._table[index].decode()


@dataclass(frozen=True, slots=True)
class _Packed:
    pieces: TextTable
    token_bytes: ByteTable
    added: array[int]  # tokens
    added_contents: TextTable
    added_flags: Sequence[int]  # a bit for each of _FLAGS
    special: Sequence[int]
    ends: Sequence[int]
    whole: Mapping[str, Any]


def pack(vocabulary: Vocabulary) -> bytes:
    """All of a vocabulary but its encoder. Equal for equal ones."""
    added = dict(sorted(vocabulary.added.items()))
    packed = _Packed(
        pieces=TextTable(vocabulary.pieces),
        token_bytes=ByteTable(vocabulary.token_bytes),
        added=array("I", added),
        added_contents=TextTable([each.content for each in added.values()]),
        added_flags=bytes(
            sum(bool(getattr(each, name)) << bit for bit, name in enumerate(_FLAGS)) for each in added.values()
        ),
        special=sorted(vocabulary.special),
        ends=sorted(vocabulary.ends),
        whole={name: getattr(vocabulary, name) for name in _WHOLE},
    )
    return pickle.dumps(packed)


def unpack(data: bytes | bytearray, encoder: Encoder) -> Vocabulary:
    """What `pack` made these bytes of, with another encoder."""
    packed = pickle.loads(data)
    assert isinstance(packed, _Packed)
    return Vocabulary(
        pieces=packed.pieces,
        token_bytes=list(packed.token_bytes),  # looked up for every token there is
        encoder=encoder,
        added={
            token: AddedToken(content, **{name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)})
            for token, content, flags in zip(packed.added, packed.added_contents, packed.added_flags, strict=True)
        },
        special=frozenset(packed.special),
        ends=frozenset(packed.ends),
        **packed.whole,
    )
