"""Which tokens a vocabulary has for filling in the middle (Bavarian et al. 2022): before the prefix, the suffix, and
the text to be written, in this order. Models that want the suffix first are not among these spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tokenizer import Tokenizer

SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
KEYS = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))  # GGUF: tokenizer.ggml.NAME_token_id


def fill_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any] | None = None) -> tuple[int, int, int] | None:
    """The three tokens, by a GGUF file's metadata or else by their spelling; None where the vocabulary lacks one."""
    named = [tuple((metadata or {}).get(f"tokenizer.ggml.{name}_token_id") for name in names) for names in KEYS]
    spelled = [tuple(tokenizer.token_id(piece) for piece in pieces) for pieces in SPELLINGS]
    for first, second, third in [*named, *spelled]:
        ids = [int(token) for token in (first, second, third) if token is not None]
        if len(set(ids)) == 3 and all(0 <= token < tokenizer.vocab_size for token in ids):
            return ids[0], ids[1], ids[2]
    return None
