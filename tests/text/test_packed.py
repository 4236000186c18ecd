"""Vocabularies packed and unpacked: nothing of them is lost, whatever their pieces are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from imp.text.gguf_vocab import read_gguf_vocabulary
from imp.text.packed import pack, unpack
from imp.text.vocabulary import Vocabulary

from . import toys
from .toys import P, byte_level_metadata, sentencepiece_metadata


def assert_same(vocabulary: Vocabulary, other: Vocabulary) -> None:
    for field in fields(Vocabulary):
        value, others = getattr(vocabulary, field.name), getattr(other, field.name)
        if field.name in ("pieces", "token_bytes"):
            assert len(others) == len(value) and list(others) == list(value), field.name
            assert [others[each] for each in (0, -1, len(value) // 2)] == [value[0], value[-1], value[len(value) // 2]]
            assert others[3:9] == value[3:9]
            with pytest.raises(IndexError):
                others[len(value)]
        elif field.name != "encoder":
            assert others == value, field.name


ODD = byte_level_metadata("twice", "twice", "", "a\0b", "\uffff", "漢字", "😀", b"\xff\xfe", pre="llama-bpe")
TOYS = {"bytes": byte_level_metadata(), "pieces": sentencepiece_metadata(), "odd": ODD}


@pytest.mark.parametrize("metadata", TOYS.values(), ids=TOYS)
def test_nothing_is_lost(metadata: dict[str, Any]) -> None:
    vocabulary = read_gguf_vocabulary(metadata)
    assert_same(vocabulary, unpack(pack(vocabulary), vocabulary.encoder))


@pytest.mark.parametrize("name", toys.vocabulary_names())
def test_nothing_of_the_published_ones_is_lost(name: str) -> None:
    vocabulary = toys.vocabulary(name)._vocabulary
    assert_same(vocabulary, unpack(pack(vocabulary), vocabulary.encoder))


def test_equal_ones_are_packed_equally_and_others_are_not() -> None:
    packed = pack(read_gguf_vocabulary(byte_level_metadata("ab")))
    assert packed == pack(read_gguf_vocabulary(byte_level_metadata("ab")))
    others = [byte_level_metadata("ac"), byte_level_metadata("ab", token_type=[1] * 255 + [3] * 5)]
    others.append(byte_level_metadata("ab", **{"bos_token_id": 257}))
    assert P + "bos_token_id" in others[-1]
    assert all(packed != pack(read_gguf_vocabulary(each)) for each in others)
