"""Incremental decoding equals decoding the whole, at every split, with every stop string."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from imp.text.decode import TextDecoder
from imp.text.tokenizer import Tokenizer

from .toys import byte_tokenizer, sentencepiece_metadata


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Of all matches, the one that starts first; of those, the shortest."""
    matches = [(text.find(stop), len(stop), stop) for stop in stops if stop and stop in text]
    return (min(matches)[0], min(matches)[2]) if matches else None


def whole(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    match = first_stop(text, stops)
    if match is None:
        return text, None
    start, stop = match
    return text[: start + len(stop) if include else start], stop


def run(decoder: TextDecoder, ids: Sequence[int]) -> list[str]:
    return [*(decoder.push(token) for token in ids), decoder.flush()]


def pieces(*texts: str | bytes) -> tuple[Tokenizer, list[int]]:
    tokenizer = byte_tokenizer(*texts)
    return tokenizer, list(range(259, 259 + len(texts)))


@pytest.mark.parametrize("text", ["🦊 ok", "👨‍👩‍👧‍👦!", "क्षत्रिय", "é漢🙂"])
def test_characters_split_over_tokens_arrive_whole(text: str) -> None:  # G01-03
    tokenizer = byte_tokenizer()
    deltas = run(TextDecoder(tokenizer), tokenizer.encode(text))
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas)
    assert all(len(delta) <= 1 for delta in deltas)


def test_generation_that_ends_inside_a_character_shows_one_replacement() -> None:  # G01-03
    tokenizer = byte_tokenizer()
    for size, tail in ((1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd"), (4, "🦊")):
        ids = tokenizer.encode("ab🦊")[: 2 + size]
        decoder = TextDecoder(tokenizer)
        deltas = run(decoder, ids)
        assert "".join(deltas) == "ab" + tail == tokenizer.decode(ids)
        assert (decoder.seen, decoder.shown) == (3, 3)
        assert decoder.flush() == ""


def test_invalid_bytes_are_replaced_as_python_does_seed_3() -> None:
    tokenizer = byte_tokenizer(b"\xf0\x9f", b"\xa6\x8ax", b"\xe2\x82", b"\xffa", b"\xc3\xc3")
    draw = random.Random(3)
    fragments = [*range(259, 264), 0xC3, 0xA9, 0xF0, 0x9F, 0x41, 0xED, 0xA0, 0x80, 0xF4, 0x90, 0xC0]
    for _ in range(3000):
        ids = [draw.choice(fragments) for _ in range(draw.randrange(12))]
        expected = b"".join(tokenizer.token_bytes(token) for token in ids).decode("utf-8", "replace")
        assert "".join(run(TextDecoder(tokenizer), ids)) == expected == tokenizer.decode(ids)


def test_a_stop_string_over_several_tokens_never_leaks() -> None:  # G01-04
    tokenizer, ids = pieces("one", " two", " ST", "OP", "ME", " three")
    decoder = TextDecoder(tokenizer, ["STOPME"])
    deltas = [decoder.push(token) for token in ids]
    assert deltas == ["one", " two", " ", "", "", ""]
    assert decoder.stopped == "STOPME"
    assert decoder.flush() == ""
    kept = TextDecoder(tokenizer, ["STOPME"], include_stop=True)
    assert "".join(run(kept, ids)) == "one two STOPME"


def test_a_beginning_that_comes_to_nothing_is_released_in_order() -> None:  # G01-04
    tokenizer, ids = pieces(" ST", "ART", " STO", "P")
    decoder = TextDecoder(tokenizer, ["STOPME"])
    assert [decoder.push(token) for token in ids] == [" ", "START", " ", ""]
    assert (decoder.seen, decoder.shown) == (11, 7)
    assert decoder.flush() == "STOP"
    assert (decoder.stopped, decoder.shown) == (None, 11)


def test_stop_strings_are_cut_at_the_character() -> None:  # G01-04
    tokenizer, ids = pieces("abcSTO", "Pdef", "more")
    decoder = TextDecoder(tokenizer, ["STOP"])
    assert [decoder.push(token) for token in ids] == ["abc", "", ""]
    assert decoder.stopped == "STOP"


def test_the_earliest_start_wins_and_waits_for_its_end() -> None:
    tokenizer, ids = pieces("xab", "c", "d", "e")
    decoder = TextDecoder(tokenizer, ["abcd", "bc"])
    assert [decoder.push(token) for token in ids] == ["x", "", "", ""]
    assert decoder.stopped == "abcd"
    decoder = TextDecoder(tokenizer, ["abcd", "bc"])
    assert [decoder.push(ids[0]), decoder.push(ids[1]), decoder.push(ids[3])] == ["x", "", "a"]
    assert decoder.stopped == "bc"
    decoder = TextDecoder(tokenizer, ["abcd", "bc"])
    assert [decoder.push(ids[0]), decoder.push(ids[1]), decoder.flush()] == ["x", "", "a"]
    assert decoder.stopped == "bc"


def test_of_stops_that_start_together_the_shorter_ends_at_once() -> None:
    tokenizer, ids = pieces("a\n", "\n")
    decoder = TextDecoder(tokenizer, ["\n\n", "\n"])
    assert decoder.push(ids[0]) == "a"
    assert decoder.stopped == "\n"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("alphabet", ["ab", "abc", "a🦊é"])
def test_any_split_equals_the_whole_text_seed_4(alphabet: str, include: bool) -> None:
    draw = random.Random(4)
    cases = [(split(draw, alphabet), some_stops(draw, alphabet)) for _ in range(1500)]
    chunks = sorted({chunk for parts, _ in cases for chunk in parts})
    tokenizer, ids = pieces(*chunks)
    token_of = dict(zip(chunks, ids, strict=True))
    met = 0
    for parts, stops in cases:
        expected, stop = whole(b"".join(parts).decode(), stops, include)
        decoder = TextDecoder(tokenizer, stops, include)
        shown = ""
        for part in parts:
            shown += decoder.push(token_of[part])
            assert expected.startswith(shown), (parts, stops)
            assert decoder.shown == len(shown)
        shown += decoder.flush()
        assert (shown, decoder.stopped) == (expected, stop), (parts, stops)
        met += stop is not None
    assert met > 300


def split(draw: random.Random, alphabet: str) -> list[bytes]:
    """A text in pieces, cut at any bytes."""
    data = "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 16))).encode()
    cuts = sorted(draw.sample(range(len(data) + 1), draw.randrange(min(6, len(data)))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def some_stops(draw: random.Random, alphabet: str) -> list[str]:
    return ["".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 6))) for _ in range(draw.randrange(4))]


def test_control_tokens_have_text_only_when_asked() -> None:
    tokenizer = byte_tokenizer()
    ids = [97, 258, 98, 257]
    assert "".join(run(TextDecoder(tokenizer), ids)) == "ab" == tokenizer.decode(ids, skip_special=True)
    shown = "".join(run(TextDecoder(tokenizer, skip_special=False), ids))
    assert shown == "a<|im_end|>b<|endoftext|>" == tokenizer.decode(ids)


def test_the_first_space_belongs_to_the_text_after_a_prompt() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    hello, world = tokenizer.token_id("▁hello"), tokenizer.token_id("▁world")
    assert hello is not None and world is not None
    ids = [hello, world]
    assert "".join(run(TextDecoder(tokenizer), ids)) == "hello world" == tokenizer.decode(ids)
    assert "".join(run(TextDecoder(tokenizer, prompt_tail=[1]), ids)) == "hello world"  # nothing but BOS
    assert "".join(run(TextDecoder(tokenizer, prompt_tail=[world]), ids)) == " hello world"
    assert "".join(run(TextDecoder(tokenizer, prompt_tail=[1, world]), ids)) == " hello world"
    assert tokenizer.decode([1, *ids], skip_special=True) == "hello world"


def test_tokens_beyond_the_vocabulary_add_no_text() -> None:
    assert run(TextDecoder(byte_tokenizer()), [97, 300_000, 98]) == ["a", "", "b", ""]


def test_a_push_costs_microseconds_however_long_the_text() -> None:
    """Measured: about 1 us, 3 us with four stop strings. The limit leaves room for a busy machine."""
    tokenizer = byte_tokenizer()
    decoder = TextDecoder(tokenizer, ["\n\nUser:", "###", "</answer>", "a" * 200 + "b"])
    start = time.process_time()
    for _ in range(20):
        for token in b"some text that goes on \nand on, #1 </a":
            decoder.push(token)
    short = time.process_time() - start
    for token in b"some text that goes on " * 2000:
        decoder.push(token)
    start = time.process_time()
    for _ in range(20):
        for token in b"some text that goes on \nand on, #1 </a":
            decoder.push(token)
    assert time.process_time() - start < 5 * short + 0.02
