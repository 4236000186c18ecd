"""Where the answer begins, at every cut of the text; the expected splits are worked out by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from imp.text.decode import TextDecoder
from imp.text.spelled import BREAK, Quotes, joined
from imp.types import Headers, Reasoning

from .toys import byte_tokenizer

OPEN, SEEN = Reasoning("<think>", "</think>", True), Reasoning("<think>", "</think>", False)
LATER = Reasoning("<think>", "</think>", True, late=True)

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
    (LATER, "</think>plan STOP</think>answer STOP", ("STOP",), "</think>plan STOP</think>answer ", "STOP", 25),
    (LATER, "<think>\n</think>plan</think>answer", (), "<think>\n</think>plan</think>answer", None, 28),
    (LATER, "</think>no STOP here", ("STOP",), "</think>no ", "STOP", 8),
    (LATER, "</think>" + "x" * 200 + "</think>y", (), "</think>" + "x" * 200 + "</think>y", None, 216),
    (LATER, "</think>" + "x" * 201 + "</think>y", (), "</think>" + "x" * 201 + "</think>y", None, 8),
    (LATER, "so</think>no</think>STOP", ("STOP",), "so</think>no</think>", "STOP", 10),
    (LATER, "<thin</think>no</think>", (), "<thin</think>no</think>", None, 13),
]
# outputs that are messages; those of Harmony, as gpt-oss writes them
HARMONY = Reasoning("[channel]analysis[message]", "[end]", False, "[start]assistant", again="[channel]")
HEADERS = Headers(("[start]", "[channel]"), ("[message]",), "to=")
FINAL, TURN = "[channel]final[message]", "[end][start]assistant"
# output, its stop strings, the text that is shown, the stop string that ends it, the parts that are reasoning
MESSAGES: list[tuple[str, tuple[str, ...], str, str | None, list[str]]] = [
    (FINAL + "a final word", ("final",), FINAL + "a ", "final", []),
    (f"{HARMONY.open}so final{TURN}{FINAL}a final", ("final", "assistant"), f"{HARMONY.open}so final{TURN}{FINAL}a ", "final",
     [f"{HARMONY.open}so final[end]"]),
    (f"[channel]commentary[message]a{TURN}{HARMONY.open}b{TURN}{FINAL}c", (), "", None, [f"[start]assistant{HARMONY.open}b[end]"]),
    (f"{HARMONY.open}a{TURN}{HARMONY.open}b STOP{TURN}{FINAL}c STOP", ("STOP", "sis"), f"{HARMONY.open}a{TURN}{HARMONY.open}b STOP{TURN}{FINAL}c ",
     "STOP", [f"{HARMONY.open}a[end]", f"[start]assistant{HARMONY.open}b STOP[end]"]),
    (" to=you[message]you", ("you",), " to=you[message]", "you", []),
    ("just you", ("you",), "just ", "you", []),
    (f"a[start]assistant{FINAL}b", ("a[",), f"a[start]assistant{FINAL}b", None, []),
]  # fmt: skip


def cuts(text: str) -> list[list[str]]:
    """All cuts into two, one character at a time, and some at random."""
    rng = random.Random(text)
    ways = [[text[:i], text[i:]] for i in range(len(text) + 1)] + [list(text)]
    for _ in range(20):
        marks = sorted(rng.sample(range(len(text) + 1), min(4, len(text))))
        ways.append([text[a:b] for a, b in itertools.pairwise([0, *marks, len(text)])])
    return [[piece for piece in way if piece] for way in ways]


def decoded(way: list[str], stops: tuple[str, ...], rule: Reasoning | None, headers: Headers | None):
    """The text that is shown, and the stop string that ended it."""
    return read(way, stops, rule, headers)[:2]


def read(way: list[str], stops: tuple[str, ...], rule: Reasoning | None, headers: Headers | None):
    """As `decoded`, and the tokens of reasoning; each piece is a token."""
    pieces = list(dict.fromkeys(way))
    decoder = TextDecoder(byte_tokenizer(*pieces), stops, reasoning=rule, headers=headers)
    got = ""
    for piece in way:
        got += decoder.push(259 + pieces.index(piece))
        if decoder.stopped:
            break
    return got + decoder.flush(), decoder.stopped, decoder.reasoning_tokens


@pytest.mark.parametrize(("rule", "text", "stops", "shown", "stopped", "before"), CASES)
def test_stop_strings_wait_for_the_answer(rule, text, stops, shown, stopped, before) -> None:  # G03-11
    for way in cuts(text):
        got, ended_by, thought_tokens = read(way, stops, rule, None)
        assert got == shown and ended_by == stopped, way
        ends = list(itertools.accumulate(map(len, way)))
        wanted = sum(end - len(piece) < before for end, piece in zip(ends, way, strict=True))
        assert thought_tokens == wanted, way


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stopped"),
    [
        ("a</think>\n<response>\nthe response", ("response",), "a</think>\n<response>\nthe ", "response"),
        ("a</think> the <response>", ("response",), "a</think> the <", "response"),
        ("a</think> \n<resp", ("resp",), "a</think> \n<", "resp"),
        ("a</think>", ("x",), "a</think>", None),
    ],
)
def test_what_begins_an_answer_behind_reasoning_is_none_of_it(text, stops, shown, stopped) -> None:
    rule = Reasoning("<think>", "</think>", True, opener="<response>")
    for way in cuts(text):
        assert decoded(way, stops, rule, None) == (shown, stopped), way


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stopped"),
    [
        ("all\nfor all", ("all",), "all\nfor ", "all"),
        ("weather\n{}>>>weather\n{", ("weather",), "weather\n{}>>>weather\n{", None),
        ("all\na >> b >>>all\n>", (">>>", ">> b"), "all\na ", ">> b"),
    ],
)
def test_an_output_that_begins_in_a_header(text, stops, shown, stopped) -> None:
    headers = Headers((">>>",), ("\n",), begun=True)
    for way in cuts(text):
        assert decoded(way, stops, None, headers) == (shown, stopped), way


@pytest.mark.parametrize(("text", "stops", "shown", "stopped", "thought"), MESSAGES)
def test_headers_are_no_part_of_the_answer(text, stops, shown, stopped, thought) -> None:
    spans, start = [], 0
    for part in thought:
        start = text.index(part, start)
        spans.append((start, start + len(part)))
        start += len(part)
    for way in cuts(text):
        got, ended_by, thought_tokens = read(way, stops, HARMONY, HEADERS)
        assert got == (shown or text) and ended_by == stopped, way
        ends = list(itertools.accumulate(map(len, way)))
        places = [(end - len(piece), end) for end, piece in zip(ends, way, strict=True)]
        within = sum(any(a < b2 and b > a2 for a2, b2 in spans) for a, b in places)
        assert thought_tokens == within, way


def test_what_is_spelled_like_a_control_token_is_none() -> None:  # G03-04
    tokenizer, opening, closing = byte_tokenizer(), 256, 258  # <|begin|>, <|im_end|>
    rule = Reasoning("<|begin|>", "<|im_end|>", False)
    decoder = TextDecoder(tokenizer, ("end|>x",), visible=frozenset({opening, closing}), reasoning=rule)
    quoted = [*b"a <|im_end|>x <|im_", closing, *b"end|>", closing, *b"<|im_end|>"]
    said = [decoder.push(token) for token in (opening, *quoted)]
    text = "".join(said) + decoder.flush()
    assert decoder.reasoning_tokens == 1 + len(b"a <|im_end|>x <|im_") + 1 and decoder.stopped is None
    assert joined(text) == "<|begin|>a <|im_end|>x <|im_<|im_end|>end|><|im_end|><|im_end|>"
    assert text.split("<|im_end|>") == ["<|begin|>a <|im_end|" + BREAK + ">x <|im_", "end|>", "<|im_end|" + BREAK + ">"]
    stopping = TextDecoder(tokenizer, ("end|>x",), visible=frozenset({opening, closing}), reasoning=rule)
    said = [stopping.push(token) for token in (opening, closing, *b"a <|im_end|>xy")]
    assert (stopping.stopped, "".join(said)) == ("end|>x", "<|begin|><|im_end|>a <|im_")
    stopping = TextDecoder(tokenizer, ("end|>x",), True, visible=frozenset({opening, closing}), reasoning=rule)
    said = [stopping.push(token) for token in (opening, closing, *b"a <|im_end|>xy")]
    assert joined("".join(said)) == "<|begin|><|im_end|>a <|im_end|>x"


@pytest.mark.parametrize("spellings", [("<a>", "<b>"), ("aa",), ("aba",), (">", "->")])
def test_spellings_are_broken_at_every_cut(spellings) -> None:
    rng = random.Random(str(spellings))
    for _ in range(300):
        text = "".join(rng.choices("<a>b-", k=rng.randint(0, 14)))
        quotes, out = Quotes(spellings), ""
        for char in text:
            out += quotes.plain(char)
        assert joined(out) == text
        longer = [each for each in spellings if len(each) > 1]
        assert not any(each in out for each in longer), (text, out)


def test_markers_that_are_control_tokens_are_seen_when_asked_for() -> None:
    tokenizer, opening, closing = byte_tokenizer(), 256, 258
    rule = Reasoning("<|begin|>", "<|im_end|>", False)
    decoder = TextDecoder(tokenizer, ("b",), visible=frozenset({opening, closing}), reasoning=rule)
    said = [decoder.push(token) for token in (opening, ord("b"), closing, ord("a"))]
    assert said == ["<|begin|>", "b", "<|im_end|>", "a"] and decoder.reasoning_tokens == 3
    hidden = TextDecoder(tokenizer)
    assert [hidden.push(token) for token in (opening, ord("a"))] == ["", "a"]
