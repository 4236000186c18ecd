"""A server whose model has scores for every token, made of all tokens before: everything behind the model is real."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np

from imp.model.runner import ModelRunner
from tests.http.scripted import EOS, Harness, PieceTokenizer, serving
from tests.toylogits import Taste, ToyLogits

BLOCK = 16
LETTERS = list(b"abcdefghijklmnopqrstuvwxyz ")


def letters(row: np.ndarray, last: int) -> None:
    """Letters and blanks, which are a token each, and seldom the end."""
    row[LETTERS] += 10.0
    row[EOS] = row.max() - 2.5


def endless(row: np.ndarray, last: int) -> None:
    letters(row, last)
    row[EOS] = -50.0


def sampled(taste: Taste = endless, **options: Any) -> AbstractAsyncContextManager[Harness]:
    """options: of `serving`."""

    def model(tokenizer: PieceTokenizer, blocks: int) -> ModelRunner:
        backend = ToyLogits(blocks, taste, tokenizer.vocab_size, BLOCK)
        return ModelRunner(backend, tokenizer.vocab_size, BLOCK)  # type: ignore[arg-type]

    return serving([], model=model, template="{{ messages[-1].content }}", **options)
