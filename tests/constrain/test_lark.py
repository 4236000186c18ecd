"""Lark grammars: the notation, what is refused and where; common terminals against Python's own readers."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.lark import compile_lark
from imp.constrain.nfa import Nfa, special

from . import simulate


def accepts(grammar: str, *texts: str | bytes, tokens=None) -> list[bool]:
    nfa = Nfa()
    start = compile_lark(grammar, nfa, tokens)
    return [simulate.accepts(nfa, start, text.encode() if isinstance(text, str) else text) for text in texts]


NOTATION = [
    # (grammar, texts, others)
    ('start: "a"', ["a"], ["", "A"]),
    ('start: "aß"i', ["aß", "Aß", "Aẞ"], ["ass"]),
    (r'start: "\n\t\"\\\x41\u0042\U0001F600"', ['\n\t"\\AB😀'], ["n"]),
    ('start: "a".."c" "0".."9"', ["a0", "c9"], ["d0"]),
    (r"start: /a+\/[bc]/ /x./s", ["a/bxy", "aa/cx\n"], ["/bxy"]),
    ("start: /ab/i", ["aB", "AB"], ["a"]),
    ("start: /a b # c/x /d|e/x", ["abd", "abe"], ["a bd"]),
    ('start: a | b\na: "1"\nb: "2" | "3"', ["1", "2", "3"], ["4"]),
    ('start: a\n  | "z" -> last\na: "1"', ["1", "z"], ["last"]),
    ('start: ["a"] "b"? "c"* "d"+', ["d", "abccdd"], ["ab", "aabd"]),
    ('start: ("a" | "b" "c")~2', ["aa", "abc", "bcbc"], ["a", "aaa"]),
    ('start: "a"~2..3 "b" ~ 1 .. 2', ["aab", "aaabb"], ["ab", "aabbb"]),
    ('?start.2: !x\n!x: "a"\n'.replace("!x\n", "x\n", 1), ["a"], ["b"]),
    ('start: A B\nA.5: "x" C*\nB: /y/\nC: "c"', ["xy", "xccy"], ["x"]),
    ('start: x // comment\n  # another\n  "b"\nx: "a" // "c"', ["ab"], ["abc"]),
    ('start: | "a"', ["", "a"], ["b"]),
    ('start: "a" [] "b"'.replace("[] ", ""), ["ab"], ["a"]),
    ('start: list\nlist: list "," "i" | "i"', ["i", "i,i"], [",i", "i,"]),
    ('start: "(" start ")" | "x"', ["x", "((x))"], ["((x)"]),
    ('start: "a" "b"\n%ignore " "', ["ab", "a  b", " ab"], ["ab ", "a\nb"]),
    ('start: A+\nA: "a" "b"\n%ignore WS\n%import common.WS', ["ab", "ab \n\tab"], ["a b", "abb"]),
    ('start: x x\nx: NUM\nNUM: /[0-9]/\n%ignore /[ ]/\n%ignore ","', ["12", "1, ,2"], ["1;2"]),
    ("start: INT WORD\n%import common (INT, WORD)", ["12ab"], ["ab"]),
    ("start: N\n%import common.INT -> N\n%import common.INT -> N", ["12"], ["x"]),
    ('start: _a\n_a: _B\n_B: "b"', ["b"], ["a"]),
    ('start: "a"\r\n  | "b"\r\n', ["a", "b"], ["ab"]),
    ('start: x\n?x: "a"?\n', ["", "a"], ["?"]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "good", "bad"), NOTATION)
def test_the_notation(grammar, good, bad):
    assert all(accepts(grammar, *good))
    assert not any(accepts(grammar, *bad))


REFUSED = [
    ("", Code.INVALID, "", "no rule 'start'"),
    ('x: "a"', Code.INVALID, "", "no rule 'start'"),
    ("start: ", Code.INVALID, "line 1, column 1", "'start' has no body"),
    ('start: a\n  | b\na: "x"', Code.INVALID, "line 2, column 5", "'b' is used but not defined"),
    ("start: A", Code.INVALID, "line 1, column 8", "'A' is used but not defined"),
    ('start: "a"\nstart: "b"', Code.INVALID, "line 2, column 1", "defined twice"),
    ('start "a"', Code.INVALID, "line 1, column 1", "definition"),
    ('start: "a', Code.INVALID, "line 1, column 8", "unclosed"),
    ('start: "a\n"', Code.INVALID, "line 1, column 8", "unclosed"),
    ("start: /a", Code.INVALID, "line 1, column 8", "unclosed '/'"),
    ("start: /a\\", Code.INVALID, "line 1, column 8", "unclosed '/'"),
    ("start: /a[/", Code.INVALID, "line 1, column 8", "unclosed '['"),
    ("start: /a(?=b)/", Code.UNSUPPORTED, "line 1, column 8", "lookahead"),
    ("start: /^a/", Code.UNSUPPORTED, "line 1, column 8", "anchor"),
    ('start: ("a"', Code.INVALID, "line 1, column 8", "unclosed '('"),
    ('start: ["a")', Code.INVALID, "line 1, column 12", "unmatched ')'"),
    ('start: "a"]', Code.INVALID, "line 1, column 11", "unmatched ']'"),
    ("start: *", Code.INVALID, "line 1, column 8", "unexpected"),
    ('start: "a"~', Code.INVALID, "line 1, column 11", "repetition"),
    ('start: "a"~3..2', Code.INVALID, "line 1, column 11", "repetition"),
    ('start: "b".."a"', Code.INVALID, "line 1, column 8", "range"),
    (r'start: "\q"', Code.INVALID, "line 1, column 9", "unknown escape"),
    ('start: "a" ->', Code.INVALID, "line 1, column 12", "name"),
    ('start: A\nA: b\nb: "x"', Code.INVALID, "line 2, column 4", "cannot use the rule 'b'"),
    ('start: x{"a"}\nx{y}: y', Code.UNSUPPORTED, "line 1, column 9", "templates"),
    ('x{y}: y\nstart: "a"', Code.UNSUPPORTED, "line 1, column 2", "templates"),
    ("%declare A\nstart: A", Code.UNSUPPORTED, "line 1, column 1", "%declare"),
    ("%import python.NAME\nstart: NAME", Code.UNSUPPORTED, "line 1, column 1", "common"),
    ("%import common.FOO\nstart: FOO", Code.INVALID, "line 1, column 1", "FOO"),
    ('%override start: "a"', Code.UNSUPPORTED, "line 1, column 1", "%override"),
    ("start: %json {}", Code.INVALID, "line 1, column 1", "no body"),
    ("start: <|end|>", Code.INVALID, "line 1, column 8", "no token"),
    ('start: "a" start', Code.UNSATISFIABLE, "line 1, column 1", "no finite text"),
    ("start: " + "(" * 50_000 + '"a"' + ")" * 50_000, Code.TOO_LARGE, "line 1, column 264", "nesting"),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "code", "where", "mention"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_is_refused_says_what_and_where(grammar, code, where, mention):
    with pytest.raises(ConstraintError) as caught:
        compile_lark(grammar, Nfa())
    assert (caught.value.code, caught.value.where) == (code, where)
    assert mention in caught.value.reason


def test_tokens():
    grammar = 'start: <|a|> "x"'
    assert accepts(grammar, special(3) + b"x", "<|a|>x", tokens={"<|a|>": special(3)}.get) == [True, False]


# from the definitions in Lark's manual and common.lark, as Python's re reads them
COMMON = {
    "INT": r"\d+", "SIGNED_INT": r"[+-]?\d+", "HEXDIGIT": "[a-fA-F0-9]", "LETTER": "[a-zA-Z]", "WORD": "[a-zA-Z]+",
    "DECIMAL": r"\d+\.\d*|\.\d+", "FLOAT": r"\d+[eE][+-]?\d+|(\d+\.\d*|\.\d+)([eE][+-]?\d+)?",
    "CNAME": r"[^\W\d]\w*", "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+", "NEWLINE": r"(\r?\n)+",
}  # fmt: skip


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals(name):
    draw = random.Random(8)
    alphabet = "01.eE+-aG_ \t\r\n"
    texts = ["".join(draw.choices(alphabet, k=draw.randint(0, 5))) for _ in range(1500)]
    found = accepts(f"start: {name}\n%import common.{name}", *texts)
    assert found == [bool(re.fullmatch(COMMON[name], text, re.ASCII)) for text in texts]
    assert any(found) and not all(found)


def test_common_numbers_and_strings():
    numbers = ["1", "1.5", ".5", "5.", "1e3", "1.e-3", "-1", "1e", ".", ""]
    assert accepts("start: NUMBER\n%import common.NUMBER", *numbers) == [True] * 6 + [False] * 4
    texts = ['""', '"a\\"b"', '"\\\\"', '"a"b"', '"a', '"\\"', '"a\nb"', json.dumps('zażółć "x" \\')]
    assert accepts("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", *texts) == [True, True, True, False, False, False, False, True]
    comments = ["/**/", "/* a * b */", "/* a */ */", "/*/", "// x"]
    assert accepts("start: C_COMMENT\n%import common.C_COMMENT", *comments) == [True, True, False, False, False]


def test_a_json_grammar_as_people_send_it():
    grammar = r"""
        ?start: value
        ?value: object | array | string | SIGNED_NUMBER -> number | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: string ":" value
        string: ESCAPED_STRING
        %import common.ESCAPED_STRING
        %import common.SIGNED_NUMBER
        %import common.WS
        %ignore WS
    """
    good = ['{"a": [1, -2.5e3, {"b" : null}],\n "c": "x\\n"}', "[]", "{ }", '"x"']
    bad = ['{"a": }', "[1,]", "{", "nul", '{"a" 1}']
    for text in good:
        json.loads(text)
    assert all(accepts(grammar, *good)) and not any(accepts(grammar, *bad))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='start:AB|()[]{}*+?~.,<>/#"\\->%12i _\n\r\x00é', max_size=40).map(lambda text: "start: " + text))
def test_any_text_is_a_grammar_or_refused(text):
    try:
        compile_lark(text, Nfa())
    except ConstraintError as error:
        assert error.message


def test_bounds_are_counted_and_long_texts_followed():
    nfa = Nfa()
    start = compile_lark('start: ("a" | "b")~2..300000 "."', nfa)
    assert len(nfa.nodes) < 60
    assert simulate.accepts(nfa, start, b"ab" * 3000 + b".") and not simulate.accepts(nfa, start, b"a.")
