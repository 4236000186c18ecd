"""The reader's methods give the same whatever the cuts, and consume what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from imp.chat.reader import Feed, Reader, Reading

METHODS: dict[str, tuple[Callable[[Reader, list[str]], Reading[Any]], str, Any, str]] = {
    # what is read, of which text, the result and what was handed on, and what is left
    "until": (lambda r, out: r.until(("<b>",), out.append), "a<<b>c", ("<b>", "a<"), "c"),
    "before": (lambda r, out: r.before(("<b>", "<bc>"), out.append), "a<bc>d", ("<bc>", "a"), "<bc>d"),
    "before, the end": (lambda r, out: r.before(("<b>",), out.append), "a<b", ("", "a<b"), ""),
    "characters": (lambda r, out: r.characters("0123", 4), "01231z", ("0123", ""), "1z"),
    "characters, few": (lambda r, out: r.characters("0123", 4), "01z", ("01", ""), "z"),
    "word": (lambda r, out: r.word("<"), "ab<c", ("ab", ""), "<c"),
    "first of": (lambda r, out: r.first_of(("a", "abc")), "abx", ("a", ""), "bx"),
    "comes": (lambda r, out: r.comes("ab"), "abx", (True, ""), "abx"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_the_same_at_every_cut(name):
    method, text, expected, left = METHODS[name]
    for pieces in ([text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))):
        out: list[str] = []
        results: list[Any] = []

        def steps(reader: Reader, out: list[str] = out, results: list[Any] = results) -> Reading[None]:
            results.append((yield from method(reader, out)))

        feed = Feed(steps)
        for piece in pieces:
            feed.push(piece)
        feed.close()
        assert (results[0], "".join(out)) == expected, pieces
        assert feed.reader.text == left


def test_what_is_kept_is_what_was_consumed_since():
    reader = Reader()
    reader.text = "abcdef"
    reader.take(1)
    reader.keep("<x>")
    reader.take(2)
    assert reader.kept() == "<x>bc" and reader.kept() == ""
    reader.take(1)
    assert reader.kept() == "" and reader.text == "ef"
