"""Canonical JSON texts of single values."""

from __future__ import annotations

import json

from .number_text import text
from .shape import Shape


def quoted(string: str) -> bytes:
    """A JSON string in its canonical spelling: only what must be escaped is."""
    return json.dumps(string, ensure_ascii=False).encode()


def scalar_texts(shape: Shape, limit: int) -> list[bytes] | None:
    """All values of the shape as JSON, if they are scalars and at most `limit`; else None."""
    if shape.arrays or shape.objects:
        return None
    texts = dict.fromkeys([b"null"] if shape.null else [])
    texts.update(dict.fromkeys(str(value).lower().encode() for value in sorted(shape.booleans)))
    for numbers in shape.numbers:
        members = numbers.finite(limit)
        if members is None:
            return None
        texts.update(dict.fromkeys(text(value).encode() for value in members))
    for strings in shape.strings:
        members_ = strings.finite(limit)
        if members_ is None:
            return None
        texts.update(dict.fromkeys(map(quoted, members_)))
    return list(texts) if len(texts) <= limit else None
