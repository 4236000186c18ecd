"""Regular languages: laws of the algebra, membership against the `regex` package, and strings by brute force."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import regex as judge
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain.charset import Encoding
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.language import Language
from imp.constrain.nfa import UNBOUNDED, Kind, Nfa

from . import simulate

# characters of sets one after the other, which are written straight down: only the last one's number is open
CHAINS = ["^a{2}b{1,3}$", "^[ab]{3}$", "^ab*$", "^a?$", "^[^a]{2,}$", r"^[\s\S]{0,4}$", r"^[\s\S]{2,}$", r"^[\s\S]*$", "^(?:ab)b{0,2}$", '^[a"]b{2}$']
RUNS = ["^[a-z]{4}-?$", '^(?:[a-z]{4}|")b?$', '^b?[a-z]{4}"?$', '^(?:"|b[a-z]{4})$', '^"?[^"]{4}$', "^[a-z]{4}[^b]$", "^(?:[a-z]{4}b)?$"]
PATTERNS = [*CHAINS, *RUNS, "", "a", "^a", "b$", "^a*$", "^(ab)*$", "a|b", "^[^a]*$", "^a{2,4}$", "^(a|ba)+$", "aa|bb", "^(aa)*$", "^(aaa)*b?$", "[]", "^.$", "^$"]
TEXTS = ["".join(chars) for size in range(6) for chars in itertools.product('ab"', repeat=size)]
languages = st.sampled_from(PATTERNS).map(Language.pattern)
small = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_search(pattern):
    judged = "(?!)" if pattern == "[]" else pattern
    for text in TEXTS:
        assert Language.pattern(pattern).accepts(text) == bool(judge.search(judged, text)), text
        assert Language.pattern(pattern, search=False).accepts(text) == bool(judge.fullmatch(judged, text)), text


@small
@given(languages, languages, languages)
def test_laws_of_the_algebra(a, b, c):
    assert a & b == b & a and a | b == b | a
    assert (a & b) & c == a & (b & c)
    assert a & (b | c) == (a & b) | (a & c)
    assert ~(a & b) == ~a | ~b
    assert ~~a == a and a - b == a & ~b
    assert (a & ~a).is_empty and (a | ~a).is_everything
    assert (a <= b) == ((a | b) == b)
    assert hash(a & b) == hash(b & a)


@small
@given(languages, languages)
def test_operations_are_those_on_sets(a, b):
    for text in TEXTS:
        one, other = a.accepts(text), b.accepts(text)
        assert (a & b).accepts(text) == (one and other)
        assert (a | b).accepts(text) == (one or other)
        assert (a - b).accepts(text) == (one and not other)


@pytest.mark.parametrize("pattern", CHAINS)
def test_chains_are_in_the_canonical_form_of_all_languages(pattern):
    assert Language.pattern(pattern) == Language.pattern(f"{pattern}|[]") == ~~Language.pattern(f"{pattern}|{pattern}")


def test_equal_languages_are_one_value():
    assert Language.pattern("^(a|b)*$") == Language.pattern("^[ab]*$") == Language.pattern("^(?:b*a*)*?$")
    assert Language.pattern("") == Language.everything()
    assert Language.pattern("a^b") == Language.nothing() == Language.of([])
    assert Language.of(["b", "a", "b"]) == Language.pattern("^[ab]$")
    assert Language.lengths(2, 3) == Language.pattern("^[^]{2,3}$")


def test_surrogates_are_in_no_language():
    assert not Language.everything().accepts("\ud800")
    assert Language.of(["\udc00", "x"]).finite(5) == ("x",)


def test_finite_languages_are_listed():
    assert Language.pattern("^(a|b){1,2}$").finite(10) == ("a", "aa", "ab", "b", "ba", "bb")
    assert Language.pattern("^(a|b){1,2}$").finite(5) is None
    assert Language.pattern("^a*$").finite(1000) is None
    assert Language.pattern("^[^a]$").finite(1000) is None
    assert Language.nothing().finite(0) == ()
    assert Language.of(["zażółć", ""]).finite(2) == ("", "zażółć")


def test_lengths():
    assert (Language.nothing().min_length, Language.nothing().max_length) == (None, 0)
    assert (Language.everything().min_length, Language.everything().max_length) == (0, UNBOUNDED)
    ab = Language.pattern("^(abc){2,3}d?$")
    assert (ab.min_length, ab.max_length) == (6, 10)
    for low, high in itertools.product(range(12), range(13)):
        assert ab.has_length(low, high) == any(low <= n <= high for n in (6, 7, 9, 10))
    loops = Language.pattern("^(a{5})*(b{7})*$")
    lengths = {5 * i + 7 * j for i in range(20) for j in range(20)}
    for low, high in itertools.product(range(40), range(40)):
        assert loops.has_length(low, high) == any(low <= n <= high for n in lengths), (low, high)
    assert loops.has_length(10**6) and not ab.has_length(11)


def emitted(language: Language, encoding: Encoding, low: int, high: int, escapes: bool = False) -> tuple[Nfa, int]:
    nfa = Nfa()
    return nfa, language.emit(nfa, nfa.literal(b'"', nfa.ret), encoding, low, high, escapes)


BOUNDS = [(0, UNBOUNDED), (0, 3), (2, 4), (3, 3), (4, UNBOUNDED), (0, 0)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("encoding", list(Encoding))
def test_emitted_strings_are_exact_and_without_dead_ends(pattern, encoding):
    language = Language.pattern(pattern) & Language.pattern('^[ab"]*$')
    texts = [text for text in TEXTS if judge.search("(?!)" if pattern == "[]" else pattern, text)]
    for low, high in BOUNDS:
        fitting = {text for text in texts if low <= len(text) and (high == UNBOUNDED or len(text) <= high)}
        try:
            nfa, start = emitted(language, encoding, low, high)
        except ConstraintError as error:
            assert error.code is Code.UNSATISFIABLE and not fitting
            continue
        for text in TEXTS:
            body = text if encoding is Encoding.RAW else json.dumps(text)[1:-1]
            assert simulate.accepts(nfa, start, body.encode() + b'"') == (text in fitting), (text, low, high)
        assert simulate.dead_ends(nfa, start) == 0


def test_long_runs_are_counted():
    """A state for each of the characters would be walked by masks token by token."""
    nfa, start = emitted(Language.pattern("^[0-9A-Za-z]{200}-[0-9A-Za-z]{100}$"), Encoding.JSON, 0, UNBOUNDED)
    assert len(nfa.nodes) < 400 and sum(node.kind is Kind.TEST for node in nfa.nodes) == 2
    good = b"aZ09" * 50 + b"-" + b"x" * 100
    for body in (good, good[1:], good + b"x", b"a" + good, good.replace(b"-", b"a"), good.replace(b"Z", b"-", 1)):
        assert simulate.accepts(nfa, start, body + b'"') == (body == good)


def test_scattered_lengths_are_exact_too():
    """Lengths that only multiples of three can have."""
    language = Language.pattern("^(?:a{3})*$")
    for low, high in ((0, 1000), (999, 999), (401, 402), (299, 300)):
        nfa, start = emitted(language, Encoding.RAW, low, high)
        for count in (0, 3, 4, 298, 299, 300, 399, 400, 402, 999, 1000, 1002):
            wanted = count % 3 == 0 and low <= count <= high
            assert simulate.accepts(nfa, start, b"a" * count + b'"') == wanted, (count, low, high)
        assert simulate.dead_ends(nfa, start) == 0


def test_free_strings_count_an_escape_as_one_character():
    nfa, start = emitted(Language.everything(), Encoding.JSON, 2, 3, escapes=True)
    bodies = ["a", "ab", "abc", "abcd", "\\u00e9\\ud83d\\ude00", "\\ud83d\\ude00", "\\ud83dx", "😀é", "\\n\\/\\\\", "\\n\\/\\\\x", 'a"', "a\n", "\\q1"]
    for body in bodies:
        try:
            value = json.loads(f'"{body}"')
            good = 2 <= len(value) <= 3 and not any(0xD800 <= ord(c) < 0xE000 for c in value)
        except ValueError:
            good = False
        assert simulate.accepts(nfa, start, body.encode() + b'"') == good, body


def test_a_pattern_and_a_length_are_both_kept():
    """xgrammar#895: pattern and maxLength together. Every text the automaton can end with fulfils both."""
    language = Language.pattern("[0-9]+$")
    nfa, start = emitted(language, Encoding.JSON, 3, 5)
    draw = random.Random(4)
    for _ in range(200):
        state, body = simulate.begin(nfa, start), bytearray()
        while simulate.ACCEPT not in state:
            body.append(draw.choice(sorted(simulate.live_bytes(nfa, state))))
            state = simulate.step(nfa, state, body[-1])
        value = json.loads(b'"' + body)
        assert 3 <= len(value) <= 5 and judge.search(r"[0-9]+\Z", value)


def test_huge_bounds_need_no_states():
    nfa, _ = emitted(Language.everything(), Encoding.JSON, 0, 100_000_000, escapes=True)
    assert len(nfa.nodes) < 60
    nfa, _ = emitted(Language.pattern("^[a-z ]*$"), Encoding.JSON, 10, 65_536)
    assert len(nfa.nodes) < 60


@pytest.mark.parametrize(
    "build",
    [
        lambda: Language.pattern("a.{40}$"),
        lambda: Language.pattern("^(?:.{1,1000}x){1,1000}$"),
        lambda: Language.pattern("^(?:a{100000})$"),
        lambda: Language.of(["x" * 30_000]),
        lambda: Language.of([chr(0x4E00 + i) * 100 for i in range(2000)]),
        lambda: Language.lengths(0, 10**8),
        lambda: Language.pattern("^(?:a|b{2}){0,9000}$"),
        lambda: Language.pattern("^(?:(?:a{997})*|(?:b|a){991})*$") & Language.pattern("^(?:a{953})*$"),
        lambda: emitted(Language.pattern("^(?:(?:a{97})+|(?:a{101})+|(?:a{103})+|(?:a{107})+)$"), Encoding.RAW, 0, 10**7),
    ],
)
def test_what_is_too_large_says_so(build):
    try:
        build()
    except ConstraintError as error:
        assert error.code is Code.TOO_LARGE
