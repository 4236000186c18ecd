"""Small vocabularies written in the test, as GGUF metadata, and the vocabulary files beside the project."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from imp.text.tokenizer import Tokenizer
from imp.text.vocabulary import byte_alphabet
from imp.weights.gguf_file import parse
from imp.weights.mapped import map_file

VOCABULARIES = Path(__file__).resolve().parents[3] / "shared/data/vocab"
BEGIN, END, TURN = "<|begin|>", "<|endoftext|>", "<|im_end|>"
P = "tokenizer.ggml."


def spelled(data: bytes) -> str:
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in data)


def byte_level_metadata(*extra: str | bytes, **keys: Any) -> dict[str, Any]:
    """Tokens 0..255 are the bytes, 256..258 BEGIN, END and TURN, then `extra`, which no merge makes."""
    words = [spelled(text.encode() if isinstance(text, str) else text) for text in extra]
    return {
        P + "model": "gpt2",
        P + "pre": "gpt-2",
        P + "tokens": [*byte_alphabet_in_order(), BEGIN, END, TURN, *words],
        P + "token_type": [1] * 256 + [3] * 3 + [1] * len(words),
        P + "merges": [],
        P + "bos_token_id": 256,
        P + "eos_token_id": 257,
        **{P + name: value for name, value in keys.items()},
    }


def byte_alphabet_in_order() -> list[str]:
    alphabet = byte_alphabet()
    return [alphabet[byte] for byte in range(256)]


def byte_tokenizer(*extra: str | bytes, **keys: Any) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata(*extra, **keys))


def sentencepiece_metadata(**keys: Any) -> dict[str, Any]:
    """Control tokens, the 256 byte tokens, letters, and a few words over them."""
    letters = ["▁", *"abcdehlorw<>/s"]
    words = ["he", "ll", "llo", "hello", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "aa", "aaa", "s>", "</", "</s>x"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    return {
        P + "model": "llama",
        P + "tokens": tokens,
        P + "scores": [0.0] * 259 + [-1000.0] * len(letters) + [-float(n) for n in range(len(words))],
        P + "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(letters) + len(words)),
        P + "bos_token_id": 1,
        P + "eos_token_id": 2,
        P + "unknown_token_id": 0,
        **{P + name: value for name, value in keys.items()},
    }


@cache
def metadata_of(path: Path) -> dict[str, Any]:
    return parse(map_file(path)).metadata


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of(path))


def vocabulary_names() -> list[str]:
    return sorted(path.name[len("ggml-vocab-") : -len(".gguf")] for path in VOCABULARIES.glob("ggml-vocab-*.gguf"))


def vocabulary(name: str) -> Tokenizer:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"the vocabulary files are not beside the project ({VOCABULARIES.name})")
    return tokenizer_of(path)
