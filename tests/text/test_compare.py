"""The difference between two vocabularies is named by the first token in which they differ."""

from __future__ import annotations

import pytest

from imp.text.compare import difference
from tests.text.toys import byte_tokenizer

NAMES = ("the model", "the draft model")


def test_equal_vocabularies_do_not_differ():
    assert difference(byte_tokenizer("ab", "cd"), byte_tokenizer("ab", "cd"), NAMES) is None


@pytest.mark.parametrize(
    "other, says",
    [
        (("ab", "ce"), "token 260 is b'cd' for the model and b'ce' for the draft model"),
        (("ab",), "the model has 261 tokens and the draft model 260"),
        (("ab", "cd", "ef"), "the model has 261 tokens and the draft model 262"),
    ],
)
def test_the_first_difference_is_named(other, says):
    assert difference(byte_tokenizer("ab", "cd"), byte_tokenizer(*other), NAMES) == says


def test_control_tokens_are_told_apart_from_text_that_looks_alike():
    types = [1] * 256 + [3] * 3 + [1, 3]
    found = difference(byte_tokenizer("ab", "cd"), byte_tokenizer("ab", "cd", token_type=types), NAMES)
    assert found == "token 260, b'cd', is a control token for the draft model alone"
