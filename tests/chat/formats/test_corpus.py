"""Every format's corpus of outputs: read whole, by characters, by the tokens of three vocabularies, and cut at random."""

from __future__ import annotations

import codecs
import itertools
import json
import random
from typing import Any

import pytest

from imp.chat.formats.registry import FORMATS
from imp.text.tokenizer import Tokenizer
from tests.chat.formats.corpus import Case, of_format
from tests.chat.formats.harness import Part, read
from tests.text import toys

VOCABULARIES = ("qwen2", "llama-bpe", "deepseek-llm")


def parts(case: Case, pieces: list[str]) -> list[Part]:
    return read(pieces, case.format, case.tools, case.thinking, case.started)


def by_tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = [decoder.decode(tokenizer.token_bytes(token)) for token in tokenizer.encode(text, add_special=False)]
    assert "".join(pieces) == text
    return pieces


def at_random(text: str, ways: int = 4) -> list[list[str]]:
    rng = random.Random(f"11{text}")
    cuts = [sorted(rng.sample(range(len(text) + 1), min(rng.randrange(1, 9), len(text) + 1))) for _ in range(ways)]
    return [[text[a:b] for a, b in itertools.pairwise([0, *marks, len(text)])] for marks in cuts]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_a_corpus(name: str):
    cases = of_format(FORMATS[name])
    with_calls = {case.output for case in cases if any(part[0] == "tool" and not part[3] for part in case.parts)}
    assert len(with_calls) >= 15, len(with_calls)


@pytest.mark.parametrize("name", FORMATS)
def test_an_output_is_read_as_expected_however_it_is_cut_seed_11(name: str):
    tokenizers = [toys.vocabulary(vocabulary) for vocabulary in VOCABULARIES]
    for case in of_format(FORMATS[name]):
        text, whole = case.output, parts(case, [case.output])
        assert whole == case.parts or (case.by_value and values(whole) == values(case.parts)), case.name
        for pieces in [list(text), *(by_tokens(text, tokenizer) for tokenizer in tokenizers), *at_random(text)]:
            assert parts(case, pieces) == whole, (case.name, pieces)


def values(found: list[Part]) -> list[Any]:
    """With the values of arguments in the place of their texts."""
    return [
        (channel, name, json.loads(text) if channel == "tool" else text, cut) for channel, name, text, cut in found
    ]
