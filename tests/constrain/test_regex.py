"""Regular expressions: the dialect, what is refused and where, and random patterns against the `regex` package."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import regex as judge
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.language import Language

CASES = Path(__file__).parents[3] / "shared/spec/constrain_cases.json"


def cases(*kinds: str):
    """Cases of the specification, as parameters; one that skips where the file is not there."""
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="shared/spec is not here"))]
    return [pytest.param(case, id=case["id"]) for case in json.loads(CASES.read_text()) if case["kind"] in kinds]


def matches(pattern: str, text: str) -> bool:
    return Language.pattern(pattern, search=False).accepts(text)


def refusal(pattern: str) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        Language.pattern(pattern)
    return caught.value


DIALECT = [
    # (pattern, whole matches, others)
    (r"\d", "09", "٣a"),
    (r"\w", "aZ0_", "éſ-"),
    (r"\W", "éſ- ", "a_"),
    (r"\s", " \t\n\v\f\r\u00a0\ufeff\u2028\u3000", "a\u0085\u200b"),
    (r".", "aé😀\t", "\n\r\u2028\u2029"),
    (r"(?s).", "a\n\u2028", ""),
    (r"(?s:.).", [], ["\n\n", "\n"]),
    (r"(?s:.).", ["\na", "ab"], ["a\n"]),
    (r"[^]", "a\n😀", ""),
    (r"[]", "", "a"),
    (r"[^a]", "b\né", "a"),
    (r"[\]\-\\^]", "]-\\^", "a"),
    (r"[a\-c]", "a-c", "b"),
    (r"[-a]|[a-]", "-a", "b"),
    (r"[\w-.]", "a-.", "/"),
    (r"[a-\d]", "a-5", "b"),
    (r"[\b]", "\b", "b"),
    (r"[\d\s]", "5 ", "a"),
    (r"[^\D]", "5", "a"),
    (r"\x41|\u0042|\u{1F600}|\U0001F601|\cJ|\0", "AB😀😁\n\0", "C"),
    (r"\ud83d\ude00", "😀", "a"),
    (r"[\ud83d\ude00-\ud83d\ude02]", "😀😁😂", "😃"),
    (r"\t\n\v\f\r\a", ["\t\n\v\f\r\a"], []),
    (r"\.\*\+\?\(\)\[\]\{\}\^\$\|\/\-\_\@\ \"\'\#\&\~\`\%\,\:\;\<\>\=\!", [r""".*+?()[]{}^$|/-_@ "'#&~`%,:;<>=!"""], []),
    (r"a{2}|b{2,}|c{1,2}|d{,2}", ["aa", "bbb", "c", "cc", "", "d"], ["a", "b", "ccc", "ddd"]),
    (r"a{|b{x}|c{1,2,3}|{|}|]", ["a{", "b{x}", "c{1,2,3}", "{", "}", "]"], ["a"]),
    (r"a{,}", ["", "aaa"], ["b"]),
    (r"a*?b+?c??d{1,2}?", ["bd", "aabbcdd"], ["a"]),
    (r"(?<year>\d)(?P<m_1>x)(?:y)", ["1xy"], ["1x"]),
    (r"a(?#no matter)b", ["ab"], ["a"]),
    (r"(?i)straSSe", ["STRASSE", "ſtraſſe"], ["straße"]),
    (r"(?i)[k-l]\w", ["Kk", "KK", "lſ"], ["mk"]),
    (r"(?i)[^k]", "a", ["k", "K", "K"]),
    (r"(?i)é|Σ", "éÉσςΣ", "e"),
    (r"(?i:a)b", ["Ab", "ab"], ["aB"]),
    (r"a(?i)b|c", ["ab", "aB", "c", "C"], ["Ab"]),
    (r"(?i-s:A.)", ["ab"], ["a\n"]),
    (r"(?is-i:A.)", ["A\n"], ["aa"]),
    (r"(?x) a b # comment ) [" + "\n" + r"c\ [ ] {2}", ["abc   "], ["abc"]),
    (r"(?x: a +) b", ["aa b"], ["a +b"]),
    (r"(?m)^a$\n^b$", ["a\nb"], ["ab"]),
    (r"a$\n^b", [], ["a\nb"]),
    (r"\Aa\Z|^b\z", ["a", "b"], ["a\n"]),
    (r"(^|x)a($|y)", ["a", "xa", "ay", "xay"], ["ya"]),
    (r"^^a$$", ["a"], ["b"]),
    (r"^(|.*)$", ["", "abc"], ["\n"]),
    (r"|a|", ["", "a"], ["b"]),
    (r"", [""], ["a"]),
    (r"\bab\b", ["ab"], []),
    (r"\b(?:a|-)\b", ["a"], ["-"]),
    (r"\B-\B|\Ba", ["-"], ["a"]),
    (r"\p{Lu}\P{L}", ["A1", "Ż-"], ["a1", "AA"]),
    (r"[\p{Nd}_]", "5٣_", "a"),
    (r"(?i)\p{Lu}", "aA", "1"),
    (r"((((((((((a))))))))))", ["a"], ["aa"]),
    (r"[一-鿿]", "中", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "good", "bad"), DIALECT)
def test_the_dialect(pattern, good, bad):
    for text in good:
        assert matches(pattern, text), text
    for text in bad:
        assert not matches(pattern, text), text


REFUSED = [
    ("foo(?=bar)", Code.UNSUPPORTED, 3, "lookahead"),
    ("foo(?!bar)", Code.UNSUPPORTED, 3, "lookahead"),
    ("(?<=x)y", Code.UNSUPPORTED, 0, "lookbehind"),
    ("a(?<!x)y", Code.UNSUPPORTED, 1, "lookbehind"),
    (r"(a|b)\1", Code.UNSUPPORTED, 5, "backreference"),
    (r"\1", Code.UNSUPPORTED, 0, "backreference"),
    (r"(?<n>a)\k<n>", Code.UNSUPPORTED, 7, "backreference"),
    ("(?P<n>a)(?P=n)", Code.UNSUPPORTED, 8, "backreference"),
    (r"foo\b bar", Code.UNSUPPORTED, 3, "word boundary"),
    (r"(a\b)*", Code.UNSUPPORTED, 2, "word boundary"),
    (r"a(x|\B)b", Code.UNSUPPORTED, 4, "word boundary"),
    ("(?>a)", Code.UNSUPPORTED, 0, "atomic"),
    ("a++", Code.UNSUPPORTED, 2, "possessive"),
    ("a{2}+", Code.UNSUPPORTED, 4, "possessive"),
    ("(a)(?(1)b)", Code.UNSUPPORTED, 3, "conditional"),
    (r"x\p{Script=Greek}", Code.UNSUPPORTED, 1, "Script=Greek"),
    (r"\p{Emoji}", Code.UNSUPPORTED, 0, "Emoji"),
    ("[[:alpha:]]", Code.UNSUPPORTED, 1, "POSIX"),
    ("[a-", Code.INVALID, 0, "unclosed '['"),
    ("x[", Code.INVALID, 1, "unclosed '['"),
    ("[a\\", Code.INVALID, 0, "unclosed '['"),
    ("(?P<", Code.INVALID, 0, "unclosed group name"),
    ("(?P<>a)", Code.INVALID, 4, "group name"),
    ("(?<1>a)", Code.INVALID, 3, "group name"),
    ("a(b", Code.INVALID, 1, "unclosed '('"),
    ("a)b", Code.INVALID, 1, "unmatched ')'"),
    ("(?#x", Code.INVALID, 0, "unclosed comment"),
    ("(?y:a)", Code.INVALID, 2, "unknown group"),
    ("(?i", Code.INVALID, 0, "unclosed '('"),
    ("(?)", Code.INVALID, 2, "unknown group"),
    ("*a", Code.INVALID, 0, "nothing to repeat"),
    ("a|+", Code.INVALID, 2, "nothing to repeat"),
    ("({2})", Code.INVALID, 1, "nothing to repeat"),
    ("^*", Code.INVALID, 0, "nothing to repeat"),
    ("a**", Code.INVALID, 2, "multiple repeat"),
    ("a{1000}{1000}", Code.INVALID, 7, "multiple repeat"),
    ("a{3,2}", Code.INVALID, 1, "out of order"),
    ("[z-a]", Code.INVALID, 2, "out of order"),
    ("[]a]", Code.INVALID, 3, "empty class"),
    ("a\\", Code.INVALID, 1, "ends in a backslash"),
    (r"\y", Code.INVALID, 0, "unknown escape"),
    (r"[\1]", Code.INVALID, 1, "unknown escape"),
    (r"\07", Code.INVALID, 0, "octal"),
    (r"a\u12", Code.INVALID, 1, "hexadecimal"),
    (r"\u{110000}", Code.INVALID, 0, "hexadecimal"),
    (r"\u{", Code.INVALID, 0, "unclosed"),
    (r"\x{41}", Code.INVALID, 0, "hexadecimal"),
    (r"\c1", Code.INVALID, 0, "letter"),
    (r"\pL", Code.INVALID, 0, "property"),
    (r"\p{L", Code.INVALID, 0, "unclosed"),
    ("a{9999999999}", Code.TOO_LARGE, 1, "digits"),
    ("(" * 1000 + ")" * 1000, Code.TOO_LARGE, 256, "nesting"),
    ("a" * 200_000, Code.TOO_LARGE, 100_000, "longer"),
]


@pytest.mark.parametrize(("pattern", "code", "offset", "mention"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_is_refused_says_what_and_where(pattern, code, offset, mention):
    error = refusal(pattern)
    assert (error.code, error.where) == (code, f"offset {offset}")
    assert mention in error.reason


@pytest.mark.parametrize("case", cases("regex"))
def test_cases_of_the_specification(case):
    for text in case["accept"]:
        assert matches(case["spec"], text), text
    for text in case["reject"]:
        assert not matches(case["spec"], text), text


@pytest.mark.parametrize("case", cases("regex_refuse"))
def test_refused_cases_of_the_specification(case):
    error = refusal(case["spec"])
    assert case["must_mention"] in error.message and error.where


# --- random patterns ----------------------------------------------------------------------------------------------------

LEAVES = ["a", "b", "ab", ".", r"\d", r"\s", r"\W", "[ab]", "[^a]", r"[\w-]", "[^\\s\\d]", "é", "1", " ", "\\n", "^", "$", "(?i:a)", "(?m:^)", "(?m:$)", "", r"\-"]  # fmt: skip
QUANTIFIERS = ["*", "+", "?", "*?", "{2}", "{1,2}", "{0,3}?", "{2,}"]
CHARS = "aabbAB1 é\n-"


def random_pattern(draw: random.Random, depth: int) -> str:
    choice = draw.random()
    if depth == 0 or choice < 0.3:
        return draw.choice(LEAVES)
    if choice < 0.55:
        return "".join(random_pattern(draw, depth - 1) for _ in range(draw.randint(2, 3)))
    if choice < 0.75:
        return "(?:" + "|".join(random_pattern(draw, depth - 1) for _ in range(draw.randint(2, 3))) + ")"
    return f"({random_pattern(draw, depth - 1)}){draw.choice(QUANTIFIERS)}"


def judged(pattern: str) -> str:
    """In the words of the regex package: its `.` is narrower, its `$` also stands before a last newline."""
    atoms = {r"\d": "[0-9]", r"\W": "[^0-9A-Za-z_]", r"[\w-]": "[0-9A-Za-z_-]", "[^\\s\\d]": "[^\\s0-9]", "(?m:^)": "(?:(?<=\\n)|\\A)", "(?m:$)": "(?=\\n|\\Z)", "^": "\\A", "$": "\\Z"}  # fmt: skip
    tokens = re.compile("|".join(re.escape(token) for token in sorted([*atoms, "[^a]"], key=len, reverse=True)))
    return tokens.sub(lambda match: atoms.get(match[0], match[0]), pattern)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_random_patterns_match_what_the_regex_package_matches(seed):
    draw = random.Random(seed)
    pattern = random_pattern(draw, 3)
    found, whole = judge.compile(judged(pattern)), Language.pattern(pattern, search=False)
    anywhere = Language.pattern(pattern)
    for _ in range(30):
        text = "".join(draw.choices(CHARS, k=draw.randint(0, 7)))
        assert whole.accepts(text) == bool(found.fullmatch(text)), (pattern, text)
        assert anywhere.accepts(text) == bool(found.search(text)), (pattern, text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab01^$.|()[]{}*+?\\-,:=!<>PdwsbBAZku1xpLi#\n ", max_size=30))
def test_any_text_is_a_pattern_or_refused(text):
    try:
        Language.pattern(text)
    except ConstraintError as error:
        assert error.message


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+" * 20 + "$",
        "(((a{0,9}){0,9}){0,9}){0,9}",
        "((((((a*)*)*)*)*)*)*b",
        "(x+x+)+y",
        "|" * 50_000,
        "a" * 8_000,
        "(?:" * 255 + "a" + ")*" * 255,
        "[" + "".join(chr(0x4E00 + 2 * i) for i in range(9000)) + "]",
        "(?i)" + "".join(f"[{chr(0x100 + i)}-{chr(0x400 + i)}]" for i in range(200)),
        "(a|b)*a(a|b){200}",
        "(?:a?){4000}a{4000}",
        "(?:.*x){50}",
        "^(?:(?:a|b)?){4999}$",
    ],
    ids=range(13),
)
def test_hostile_patterns_end_soon(pattern):
    """Compiled or refused as too large; the suite's own time limit is the bound."""
    try:
        Language.pattern(pattern)
    except ConstraintError as error:
        assert error.code is Code.TOO_LARGE


def test_deep_patterns_need_no_recursion():
    assert matches("(?:" * 250 + "a" + "|b)*" * 250, "abba")
