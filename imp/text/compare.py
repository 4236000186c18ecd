"""Whether two vocabularies are one, so that token ids of one mean the same in the other."""

from __future__ import annotations

from .tokenizer import Tokenizer


def difference(one: Tokenizer, other: Tokenizer, names: tuple[str, str]) -> str | None:
    """The first thing that differs, as half a sentence in which they have these names; None where all is the same."""
    first, second = names
    if one.fingerprint() == other.fingerprint():
        return None
    for token, (mine, theirs) in enumerate(zip(one.byte_table, other.byte_table, strict=False)):
        if mine != theirs:
            return f"token {token} is {mine!r} for {first} and {theirs!r} for {second}"
        if (token in one.special_ids) != (token in other.special_ids):
            whose = first if token in one.special_ids else second
            return f"token {token}, {mine!r}, is a control token for {whose} alone"
    return f"{first} has {one.vocab_size} tokens and {second} {other.vocab_size}"
