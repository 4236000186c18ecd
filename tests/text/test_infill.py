"""The tokens for filling in the middle, by metadata and by spelling."""

from __future__ import annotations

from typing import Any

import pytest

from imp.text.infill import SPELLINGS, fill_tokens


class Pieces:
    """A vocabulary of these pieces."""

    def __init__(self, *pieces: str):
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.vocab_size = len(pieces)

    def token_id(self, piece: str) -> int | None:
        return self.ids.get(piece)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_found_in_its_order(spelling: tuple[str, str, str]) -> None:
    third, first, second = spelling[2], spelling[0], spelling[1]
    assert fill_tokens(Pieces("a", third, first, second)) == (2, 3, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "metadata, found",
    [
        ({"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}, (1, 2, 3)),
        ({"prefix": 3, "suffix": 1, "middle": 2}, (3, 1, 2)),
        ({"fim_pre": 1, "fim_suf": 2}, None),
        ({"fim_pre": 1, "fim_suf": 1, "fim_mid": 3}, None),
        ({"fim_pre": 1, "fim_suf": 2, "fim_mid": 99}, None),
        ({}, None),
    ],
)
def test_metadata_names_them(metadata: dict[str, int], found: Any) -> None:
    named = {f"tokenizer.ggml.{name}_token_id": token for name, token in metadata.items()}
    assert fill_tokens(Pieces("a", "b", "c", "d"), named) == found  # type: ignore[arg-type]


def test_two_of_three_are_not_enough() -> None:
    assert fill_tokens(Pieces("<PRE>", "<SUF>")) is None  # type: ignore[arg-type]
