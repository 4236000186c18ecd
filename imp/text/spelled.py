"""Ordinary text that is spelled like a control token, kept apart from the token: the model that quotes a marker means
no marker.

A character that no text has is put into such a spelling before its last character, so nothing has to be held back. Who
reads parts of an answer takes it out again (`joined`).
"""

from __future__ import annotations

from collections.abc import Iterable

BREAK = "\U0010fffd"  # a private-use character at the very end of Unicode


class Quotes:
    """Follows one text. Belongs to one thread."""

    def __init__(self, spellings: Iterable[str]) -> None:
        """spellings: of control tokens, none empty."""
        self._spellings = tuple(dict.fromkeys(spellings))
        self._last = "".join({spelling[-1] for spelling in self._spellings})
        self._keep = max(map(len, self._spellings), default=1) - 1
        self._tail = ""

    def control(self) -> None:
        """A control token came: what is spelled does not go on behind it."""
        self._tail = ""

    def plain(self, text: str) -> str:
        """Text of an ordinary token, with a BREAK in each spelling that it completes. One that it holds from its
        beginning to its end is left: no tokenizer makes such tokens, but scripts have them."""
        text = text.replace(BREAK, "\ufffd")
        known = self._tail + text
        if any(last in text for last in self._last):
            before = len(self._tail)
            found = ((end, end - len(spelling)) for spelling in self._spellings for end in _ends(known, spelling))
            ends = {end - 1 for end, start in found if start < before < end}
            text = "".join(BREAK + char if before + i in ends else char for i, char in enumerate(text))
        self._tail = known[-self._keep :] if self._keep else ""
        return text


def _ends(text: str, spelling: str) -> Iterable[int]:
    """Where the spelling ends in the text, each time."""
    at = text.find(spelling)
    while at >= 0:
        yield at + len(spelling)
        at = text.find(spelling, at + 1)


def joined(text: str) -> str:
    """The text as its author wrote it."""
    return text.replace(BREAK, "") if BREAK in text else text


def place(text: str, at: int) -> int:
    """Where in a text with BREAKs the character stands that is the one at `at` without them."""
    for index, char in enumerate(text):
        if char != BREAK:
            if at == 0:
                return index
            at -= 1
    return len(text)
