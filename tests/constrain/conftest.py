"""Compiled code kept between runs, and vocabularies as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from imp.constrain.vocab import VocabTables
from imp.text.tokenizer import Tokenizer
from tests.text import toys


@pytest.fixture(scope="session")
def code_folder(kernel_folder: Path) -> Path:
    return kernel_folder


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    """50,257 tokens; skips where the vocabulary is not beside the project."""
    return toys.vocabulary("gpt-2")


@pytest.fixture(scope="session")
def gpt2_tables(gpt2: Tokenizer, code_folder: Path) -> VocabTables:
    return VocabTables.build(gpt2.byte_table, gpt2.special_ids, gpt2.eos_ids, code_folder)
