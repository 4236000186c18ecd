"""Where the answer begins, at every cut of the text; the expected splits are worked out by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from imp.text.decode import TextDecoder
from imp.types import Reasoning

from .toys import byte_tokenizer

OPEN, SEEN = Reasoning("<think>", "</think>", True), Reasoning("<think>", "</think>", False)

# rule, output, its stop strings, the text that is shown, the stop string that ends it, characters before the answer
CASES: list[tuple[Reasoning, str, tuple[str, ...], str, str | None, int]] = [
    (OPEN, "a\n\nb</think>c\n\nd", ("\n\n",), "a\n\nb</think>c", "\n\n", 12),
    (OPEN, "so STOP it</think>go STOP now", ("STOP",), "so STOP it</think>go ", "STOP", 18),
    (OPEN, "never closed STOP", ("STOP",), "never closed STOP", None, 17),
    (OPEN, "</think>STOP", ("STOP",), "</think>", "STOP", 8),
    (OPEN, "</thin</think>x", ("</thin",), "</thin</think>x", None, 14),
    (OPEN, "a</think>b</think>c", ("</think>",), "a</think>b", "</think>", 9),
    (SEEN, "hello STOP", ("STOP",), "hello ", "STOP", 0),
    (SEEN, "<think>x STOP</think>y STOP", ("STOP",), "<think>x STOP</think>y ", "STOP", 21),
    (SEEN, "\n <think>x</think>y", (), "\n <think>x</think>y", None, 18),
    (SEEN, "<thin ice STOP", ("STOP",), "<thin ice ", "STOP", 0),
    (SEEN, "<thin", (), "<thin", None, 0),
    (SEEN, "  ", (), "  ", None, 0),
    (SEEN, "say <think>STOP", ("STOP",), "say <think>", "STOP", 0),
    (SEEN, "", (), "", None, 0),
]


def cuts(text: str) -> list[list[str]]:
    """All cuts into two, one character at a time, and some at random."""
    rng = random.Random(text)
    ways = [[text[:i], text[i:]] for i in range(len(text) + 1)] + [list(text)]
    for _ in range(20):
        marks = sorted(rng.sample(range(len(text) + 1), min(4, len(text))))
        ways.append([text[a:b] for a, b in itertools.pairwise([0, *marks, len(text)])])
    return [[piece for piece in way if piece] for way in ways]


@pytest.mark.parametrize(("rule", "text", "stops", "shown", "stopped", "before"), CASES)
def test_stop_strings_wait_for_the_answer(rule, text, stops, shown, stopped, before) -> None:  # G03-11
    for way in cuts(text):
        tokenizer = byte_tokenizer(*dict.fromkeys(way))
        ids = [259 + list(dict.fromkeys(way)).index(piece) for piece in way]
        decoder = TextDecoder(tokenizer, stops, reasoning=rule)
        got = ""
        for token in ids:
            got += decoder.push(token)
            if decoder.stopped:
                break
        assert got + decoder.flush() == shown and decoder.stopped == stopped, way
        ends = list(itertools.accumulate(map(len, way)))
        wanted = sum(end - len(piece) < before for end, piece in zip(ends, way, strict=True))
        assert decoder.reasoning_tokens == wanted, way


def test_markers_that_are_control_tokens_are_seen_when_asked_for() -> None:
    tokenizer, opening, closing = byte_tokenizer(), 256, 258
    rule = Reasoning("<|begin|>", "<|im_end|>", False)
    decoder = TextDecoder(tokenizer, ("b",), visible=frozenset({opening, closing}), reasoning=rule)
    said = [decoder.push(token) for token in (opening, ord("b"), closing, ord("a"))]
    assert said == ["<|begin|>", "b", "<|im_end|>", "a"] and decoder.reasoning_tokens == 3
    hidden = TextDecoder(tokenizer)
    assert [hidden.push(token) for token in (opening, ord("a"))] == ["", "a"]
