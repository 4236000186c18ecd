"""A vocabulary for a script: every byte, the template's control tokens, and one token for each different piece.

It is read by the ordinary tokenizer, so all above it works as with a real model. Text is encoded byte by byte: nothing
merges, and a piece occurs in output only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from imp.text.tokenizer import Tokenizer
from imp.text.vocabulary import byte_alphabet

END = "<|endoftext|>"  # always there

# spellings of control tokens in known families' templates
_CONTROL = re.compile(
    r"<\|[^|<>\s'\"]{1,64}\|>|<｜[^<>｜'\"]{1,64}｜>|<(?:start|end)_of_\w{1,32}>|<extra_id_\d+>|</?s>|<[be]os>"
    r"|\[/?[A-Z][A-Z_]{2,32}\]"
)


def control_tokens(template: str) -> list[str]:
    """What a template's source spells like a control token, in order."""
    return list(dict.fromkeys(_CONTROL.findall(template)))


def tokenizer(template: str, control: Iterable[str], pieces: Iterable[bytes]) -> Tokenizer:
    """template: a Jinja source.  control: more control tokens.  A piece spelled like a control token is that token."""
    to_char = byte_alphabet()
    words = {to_char[byte]: byte for byte in range(256)}
    added = list(dict.fromkeys([END, *control_tokens(template), *control]))
    spelled = set(added)
    for piece in pieces:
        if piece.decode("utf-8", "replace") not in spelled:
            words.setdefault(_spell(piece, to_char), len(words))
    first = len(words)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    made: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": first + i, "content": text, **flags} for i, text in enumerate(added)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "vocab": words, "merges": []},
    }
    return Tokenizer.from_json(json.dumps(made).encode(), {"eos_token": END})


def token_ids(pieces: Sequence[bytes], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token of each piece, in a vocabulary that was made with them."""
    to_char = byte_alphabet()
    ids = []
    for piece in pieces:
        token = tokenizer.token_id(piece.decode("utf-8", "replace"))
        if token is None or token not in tokenizer.special_ids:
            token = tokenizer.token_id(_spell(piece, to_char))
        assert token is not None
        ids.append(token)
    return tuple(ids)


def _spell(piece: bytes, to_char: dict[int, str]) -> str:
    return "".join(to_char[byte] for byte in piece)
