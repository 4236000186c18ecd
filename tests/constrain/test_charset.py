"""Sets of code points against Python's sets, their bytes against Python's codecs and json, Unicode against `regex`."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest
import regex as judge
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain.charset import (
    ALL,
    DIGITS,
    NONE,
    SPACES,
    WORD,
    CharSet,
    Encoding,
    add_template,
    char_node,
    json_template,
    partition,
    template,
)
from imp.constrain.nfa import Nfa
from imp.constrain.unicode_sets import any_case, property_set, simple_fold

from . import simulate

EDGES = [0, 0x1F, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x10FFFF]
code_points = st.one_of(st.sampled_from(EDGES), st.integers(0, 0x10FFFF)).filter(lambda code: not 0xD800 <= code < 0xE000)
ranges = st.tuples(code_points, st.integers(0, 300)).map(lambda pair: (pair[0], min(pair[0] + pair[1], 0x10FFFF)))
sets = st.lists(ranges, max_size=4).map(lambda spans: CharSet.of(*spans))


def members(chars: CharSet) -> set[int]:
    return set(chars)


@settings(deadline=None)
@given(sets, sets)
def test_algebra_is_that_of_sets(left, right):
    a, b = members(left), members(right)
    assert members(left | right) == a | b
    assert members(left & right) == a & b
    assert members(left - right) == a - b
    assert len(left) == len(a) and bool(left) == bool(a)
    assert all((code in left) == (code in a) for code in [*EDGES, *b])


@settings(deadline=None)
@given(sets)
def test_a_complement_is_everything_else_and_equal_sets_are_equal(chars):
    assert ~~chars == chars
    assert chars | ~chars == ALL and chars & ~chars == NONE
    assert len(~chars) == 0x110000 - 2048 - len(chars)


def test_surrogates_are_in_no_set():
    assert CharSet.of((0xD700, 0xE001)).ranges == ((0xD700, 0xD7FF), (0xE000, 0xE001))
    assert not CharSet.of((0xD800, 0xDFFF))
    assert 0xD900 not in ALL


@settings(deadline=None)
@given(st.lists(sets, max_size=4))
def test_a_partition_is_disjoint_complete_and_knows_its_sets(given_sets):
    parts = partition(given_sets)
    assert sum(len(part) for part, _ in parts) == len(ALL)
    for i, chars in enumerate(given_sets):
        union = NONE
        for part, mask in parts:
            assert (part & chars) == (part if mask >> i & 1 else NONE)
            union |= part if mask >> i & 1 else NONE
        assert union == chars
    assert len({mask for _, mask in parts}) == len(parts)


def one_char(chars: CharSet, encoding: Encoding) -> tuple[Nfa, int]:
    nfa = Nfa()
    return nfa, char_node(nfa, chars, nfa.ret, encoding)


@settings(deadline=None)
@given(sets, st.lists(code_points, max_size=5))
def test_raw_bytes_are_the_utf8_of_exactly_the_members(chars, others):
    nfa, start = one_char(chars, Encoding.RAW)
    borders = [edge + by for span in chars.ranges for edge in span for by in (-1, 0, 1)]
    for code in [*others, *borders, *EDGES]:
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
            assert simulate.accepts(nfa, start, chr(code).encode()) == (code in chars)


@settings(deadline=None)
@given(sets, st.lists(code_points, max_size=5))
def test_json_bytes_are_what_json_dumps_writes(chars, others):
    nfa, start = one_char(chars, Encoding.JSON)
    borders = [edge + by for span in chars.ranges for edge in span for by in (-1, 0, 1)]
    for code in [*others, *borders, *range(0x20), *EDGES]:
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
            body = json.dumps(chr(code), ensure_ascii=False)[1:-1].encode()
            assert simulate.accepts(nfa, start, body) == (code in chars)


def test_wide_classes_are_a_handful_of_nodes():
    for chars in (ALL, ~CharSet.chars("\n"), ~CharSet.chars('"\\'), CharSet.of((0x4E00, 0x9FFF))):
        for encoding in Encoding:
            assert len(template(chars, encoding).nodes) <= 16
    letters = property_set("L")
    assert len(template(letters, Encoding.RAW).nodes) < len(letters.ranges)


def test_utf8_that_no_decoder_takes_is_never_read():
    nfa, start = one_char(ALL, Encoding.RAW)
    draw = random.Random(1)
    samples = [bytes(draw.choices([*range(0x70, 0x90), *range(0xBE, 0x100)], k=draw.randint(1, 4))) for _ in range(3000)]
    for data in [*samples, b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x8f\xbf\xbf"]:
        try:
            valid = len(data.decode()) == 1
        except UnicodeDecodeError:
            valid = False
        assert simulate.accepts(nfa, start, data) == valid, data


def test_every_json_spelling_is_one_that_json_reads_as_one_character():
    nfa = Nfa()
    start = nfa.byte()
    add_template(nfa, start, json_template(), nfa.ret)
    draw = random.Random(2)
    units = ["0000", "0041", "00e9", "D7FF", "e000", "ffff", "d83d", "DBFF", "de00", "DFFF", "dC00", "12g4", "123"]
    pieces = ["\\u" + unit for unit in units] + ['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\a", "\\", '"', "a", "é", "😀", "\n"]
    samples = pieces + ["".join(draw.choices(pieces, k=2)) for _ in range(2000)]
    for text in samples:
        try:
            value = json.loads(f'"{text}"')
            valid = len(value) == 1 and not 0xD800 <= ord(value) < 0xE000
        except (ValueError, TypeError):
            valid = False
        assert simulate.accepts(nfa, start, text.encode()) == valid, text


def test_named_sets():
    assert members(DIGITS) == set(b"0123456789")
    assert {code for code in range(0x3000) if judge.fullmatch(r"\w", chr(code), judge.ASCII)} == members(WORD)
    # ECMA-262 12.2 and 12.3: tab, VT, FF, the byte order mark, Zs, and the four line terminators
    white = {c for c in range(0x110000) if unicodedata.category(chr(c)) == "Zs"} | {9, 10, 11, 12, 13, 0xFEFF, 0x2028, 0x2029}
    assert members(SPACES) == white


@pytest.mark.parametrize("name", ["L", "Lu", "Uppercase_Letter", "gc=Nd", "General_Category=Punctuation", "Sm", "LC", "Z", "Cc"])
def test_categories_are_those_of_unicodedata(name):
    chars = property_set(name)
    short = {"Uppercase_Letter": "Lu", "gc=Nd": "Nd", "General_Category=Punctuation": "P"}.get(name, name)
    wanted = ("Lu", "Ll", "Lt") if short == "LC" else (short,)
    draw = random.Random(3)
    for code in [*range(0x3000), *(draw.randrange(0x110000) for _ in range(20_000))]:
        if not 0xD800 <= code < 0xE000:
            assert (code in chars) == unicodedata.category(chr(code)).startswith(wanted)


@pytest.mark.parametrize("name", ["Any", "ASCII", "Assigned", "White_Space", "Hex_Digit", "AHex", "Lowercase", "Upper", "XID_Start", "XIDC"])
def test_other_properties_are_those_of_the_regex_package(name):
    chars = property_set(name)
    pattern = judge.compile(rf"\p{{{name}}}")
    for code in range(0x2500):
        char = chr(code)
        if judge.match(rf"\p{{{unicodedata.category(char)}}}", char):  # not changed by the package's younger Unicode
            assert (code in chars) == bool(pattern.match(char)), hex(code)


@pytest.mark.parametrize("name", ["Script=Latin", "Han", "sc=Grek", "scx=Grek", "Emoji", "Alphabetic", "", "=", "gc=", "Lx", "gc=ASCII"])
def test_properties_that_are_not_exact_here_are_none(name):
    assert property_set(name) is None


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=3, alphabet="aZkKsSßẞéÉΣσςΐΐſtﬅﬆµ1_İıǅ"))
def test_any_case_joins_what_regex_calls_equal(text):
    chars = any_case(CharSet.chars(text))
    for code in [*range(0x600), 0x1E9E, 0x1FD3, 0x212A, 0xFB05, 0xFB06]:
        assert (code in chars) == any(simple_fold(ord(char)) == simple_fold(code) for char in text)


def test_simple_folding():
    # from CaseFolding.txt: C and S lines; U+0130 has only F and T, U+00DF only F
    known = {0x41: 0x61, 0x1E9E: 0xDF, 0xDF: 0xDF, 0x17F: 0x73, 0x212A: 0x6B, 0x130: 0x130, 0x131: 0x131, 0x3C2: 0x3C3}
    known |= {0x1F88: 0x1F80, 0xB5: 0x3BC, 0x13A0: 0x13A0, 0xAB70: 0x13A0, 0x1C4: 0x1C6, 0x10400: 0x10428, 0xFB05: 0xFB06}
    assert {code: simple_fold(code) for code in known} == known
