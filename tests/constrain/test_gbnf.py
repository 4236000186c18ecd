"""GBNF grammars: the notation, what is refused and where, and random grammars against an Earley recogniser."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.constrain import expr as e
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.gbnf import compile_gbnf
from imp.constrain.nfa import UNBOUNDED, Nfa, special

from . import simulate
from .earley import Earley
from .test_regex import cases


def accepts(grammar: str, *texts: str | bytes, tokens=None) -> list[bool]:
    nfa = Nfa()
    start = compile_gbnf(grammar, nfa, tokens)
    return [simulate.accepts(nfa, start, text.encode() if isinstance(text, str) else text) for text in texts]


def refusal(grammar: str, tokens=None) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        compile_gbnf(grammar, Nfa(), tokens)
    return caught.value


@pytest.mark.parametrize("case", cases("gbnf"))
def test_cases_of_the_specification(case):
    assert all(accepts(case["spec"], *case["accept"]))
    assert not any(accepts(case["spec"], *case["reject"]))


@pytest.mark.parametrize("case", cases("gbnf_refuse"))
def test_refused_cases_of_the_specification(case):
    assert case["must_mention"] in refusal(case["spec"]).message


NOTATION = [
    # (grammar, texts, others)
    ('root ::= ""', [""], ["a"]),
    (r'root ::= "\n\r\t\\\"\[\]\x41\u0042\U0001F600"', ["\n\r\t\\\"[]AB😀"], ["nrt"]),
    (r'root ::= [a-c\]\\\-^"]', ["a", "c", "]", "\\", "-", "^", '"'], ["d", ""]),
    (r"root ::= [a-] [-b]", ["a-", "--", "-b"], ["ab"[::-1]]),
    (r"root ::= [^a-c\n]", ["d", "é", "😀", "\r"], ["a", "\n", ""]),
    (r"root ::= [^\x00-\xff]", ["Ā", "中", "😀"], ["a", "ÿ"]),
    (r"root ::= [\u4e00-\u9fff]+", ["中文"], ["a"]),
    ("root ::= .", ["a", "\n", "😀"], ["", "ab"]),
    ('root ::= "ab"* "c"+ "d"?', ["c", "ababccd"], ["abb", "abc" + "dd"]),
    ('root ::= "a"{2} "b"{1,} "c"{0,2} "d"{,1}', ["aab", "aabbbccd"], ["ab", "aabccc", "aabdd"]),
    ('root ::= "a"{ 1 , 2 }', ["a", "aa"], ["", "aaa"]),
    ('root ::= ("a" | "b" "c")+', ["abc", "bcbca"], ["b", ""]),
    ('root ::= | "a"', ["", "a"], ["b"]),
    ('root ::= "a" | ("b" | )', ["a", "b", ""], ["c"]),
    ('root ::= "a"?*+', ["", "aaa"], ["b"]),
    ('root ::= a-b\na-b ::= c_2 "x"\nc_2 ::= [0-9]', ["1x"], ["x"]),
    ("root ::=\n  # first\n  'x'\n".replace("'", '"') + "  # last\n  |\n\n  \"y\"\nb ::= root", ["x", "y"], ["xy"]),
    ('root ::= a\r\n  | "z"\r\na ::= "1" # one\r\n     "2"\r\n', ["12", "z"], ["1"]),
    ('root ::= ("a"\n"b")\n"c"', ["abc"], ["ab"]),
    ('root ::= (("x"*)*)*', ["", "xxx"], ["y"]),
    ('root ::= ("x"?){3} "y"', ["y", "xxxy"], ["xxxxy"]),
    ('root ::= list\nlist ::= list "," item | item\nitem ::= "i"', ["i", "i,i,i"], ["", ",i", "i,"]),
    ('root ::= a* root "x" | "y"\na ::= "a"?', ["y", "yxx", "aayx", "aaayxx"], ["x", "ay"]),
    ('root ::= e\ne ::= e "+" e | e "*" e | "(" e ")" | [0-9]', ["1", "1+2*3", "(1+2)*(3)"], ["1+", "(1", "1+)2("]),
    ('root ::= "(" root ")" | root root | "."', [".", "(..)", "(.)((.).)"], ["", "()", "(."]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "good", "bad"), NOTATION)
def test_the_notation(grammar, good, bad):
    assert all(accepts(grammar, *good))
    assert not any(accepts(grammar, *bad))


REFUSED = [
    ("", Code.INVALID, "", "no rule 'root'"),
    ("a ::= b\nb ::= \"x\"", Code.INVALID, "", "no rule 'root'"),
    ("root ::= ", Code.INVALID, "line 1, column 1", "rule 'root' has no body"),
    ('root ::= a\n  | b\na ::= "x"', Code.INVALID, "line 2, column 5", "rule 'b' is used but not defined"),
    ('root ::= "say "hi""', Code.INVALID, "line 1, column 16", "rule 'hi' is used but not defined"),
    ('root ::= "a"\nroot ::= "b"', Code.INVALID, "line 2, column 1", "defined twice"),
    ('root := "a"', Code.INVALID, "line 1, column 6", "'::='"),
    ('::= "a"', Code.INVALID, "line 1, column 1", "rule name"),
    ('root ::= "a', Code.INVALID, "line 1, column 10", "unclosed '\"'"),
    ('root ::= "a\\', Code.INVALID, "line 1, column 10", "unclosed '\"'"),
    ("root ::= [a-", Code.INVALID, "line 1, column 10", "unclosed '['"),
    ("root ::= [b-a]", Code.INVALID, "line 1, column 12", "out of order"),
    ('root ::= ("a"', Code.INVALID, "line 1, column 10", "unclosed '('"),
    ('root ::= "a")', Code.INVALID, "line 1, column 13", "unmatched ')'"),
    ("root ::= *", Code.INVALID, "line 1, column 10", "nothing to repeat"),
    ('root ::= "a"{2', Code.INVALID, "line 1, column 13", "repetition"),
    ('root ::= "a"{}', Code.INVALID, "line 1, column 13", "repetition"),
    ('root ::= "a"{,}', Code.INVALID, "line 1, column 13", "repetition"),
    ('root ::= "a"{x}', Code.INVALID, "line 1, column 13", "repetition"),
    ('root ::= "a"{3,2}', Code.INVALID, "line 1, column 13", "out of order"),
    ('root ::= "a"{9999999999}', Code.TOO_LARGE, "line 1, column 14", "digits"),
    (r'root ::= "\q"', Code.INVALID, "line 1, column 11", "unknown escape"),
    (r'root ::= "\x4"', Code.INVALID, "line 1, column 11", "hexadecimal"),
    (r'root ::= "\UFFFFFFFF"', Code.INVALID, "line 1, column 11", "hexadecimal"),
    ("root ::= 'a'", Code.INVALID, "line 1, column 10", "unexpected"),
    ("root ::= <think>", Code.UNSUPPORTED, "line 1, column 10", "<think>"),
    ("root ::= <think", Code.INVALID, "line 1, column 10", "unclosed '<'"),
    ("root ::= !a", Code.INVALID, "line 1, column 10", "must follow '!'"),
    ("root ::= a\na ::= a", Code.UNSATISFIABLE, "line 1, column 1", "no finite text"),
    ('root ::= "x" | a\na ::= "a" a', Code.UNSATISFIABLE, "line 2, column 1", "rule 'a' matches no finite text"),
    (r"root ::= [^\x00-\U0010FFFF]", Code.UNSATISFIABLE, "line 1, column 1", "no finite text"),
    ("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, Code.TOO_LARGE, "line 1, column 266", "nesting"),
    ('root ::= "a"' + "*" * 5000, Code.TOO_LARGE, "line 1, column 269", "nesting"),
    ("#" * 2_000_000, Code.TOO_LARGE, "", "characters"),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "code", "where", "mention"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_is_refused_says_what_and_where(grammar, code, where, mention):
    error = refusal(grammar)
    assert (error.code, error.where) == (code, where)
    assert mention in error.reason


def test_tokens_are_named_by_id_or_text():
    known = {7: special(7), "<think>": special(7), 3: b"abc"}
    grammar = 'root ::= <think> !<[7]>* <[7]> "x" <[3]>'
    assert accepts(grammar, special(7) + b"free\ntext" + special(7) + b"xabc", b"<think>free<think>xabc", tokens=known.get) == [True, False]
    assert "no token of this model" in refusal("root ::= <[9]>", known.get).reason
    assert "an id is a number" in refusal("root ::= <[9a]>", known.get).reason
    assert refusal("root ::= !<[7]>", known.get).code is Code.UNSUPPORTED


def test_bounds_are_counted_not_written_out():
    nfa = Nfa()
    start = compile_gbnf('root ::= (item ","){100000,200000000} item\nitem ::= [a-z]{1,1000000}', nfa)
    assert len(nfa.nodes) < 100
    assert not simulate.accepts(nfa, start, b"a,b")
    nfa = Nfa()
    start = compile_gbnf('root ::= ("ab"?){0,300}', nfa)
    assert [simulate.accepts(nfa, start, b"ab" * n) for n in (0, 1, 300, 301)] == [True, True, True, False]


def test_a_cycle_of_many_left_recursive_rules_is_compiled_or_too_large():
    for count in (30, 2000):
        rules = [f'r{i} ::= r{(i + 1) % count} "{i % 10}" | "x"' for i in range(count)]
        try:
            assert accepts("root ::= r0\n" + "\n".join(rules), "x", "x0", "x" + "0123456789"[::-1]) == [True, True, True]
        except ConstraintError as error:
            assert error.code is Code.TOO_LARGE


def test_long_ambiguous_texts_do_not_grow_the_state():
    nfa = Nfa()
    start = compile_gbnf('root ::= e\ne ::= e "+" e | e "*" e | [0-9]+', nfa)
    state = simulate.run(nfa, start, b"1+2*3")
    assert len(simulate.run(nfa, start, b"1+2*3" + b"+4*5" * 500)) == len(state)
    nfa = Nfa()
    start = compile_gbnf('root ::= item ("," root)?\nitem ::= [a-z]', nfa)
    assert len(simulate.run(nfa, start, b"a" + b",b" * 5000)) == len(simulate.run(nfa, start, b"a,b"))


# --- random grammars ------------------------------------------------------------------------------------------------------

Rules = dict[str, e.Expr]


def random_expr(draw: random.Random, names: list[str], depth: int) -> str:
    choice = draw.random()
    if depth == 0 or choice < 0.35:
        return draw.choice(['"a"', '"b"', '""', '"ab"', "[ab]", "[^a]", "[^a]", '"b"', *names])
    if choice < 0.65:
        return " ".join(random_expr(draw, names, depth - 1) for _ in range(draw.randint(2, 3)))
    if choice < 0.85:
        return "(" + " | ".join(random_expr(draw, names, depth - 1) for _ in range(draw.randint(2, 3))) + ")"
    return f"({random_expr(draw, names, depth - 1)}){draw.choice(['*', '+', '?', '{2}', '{0,2}', '{1,3}', '{2,}'])}"


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32))
def test_random_grammars_accept_what_earley_recognises(seed):
    draw = random.Random(seed)
    names = ["root", "s", "t"][: draw.randint(1, 3)]
    grammar = "\n".join(f"{name} ::= {random_expr(draw, names, 3)} | {random_expr(draw, names, 2)}" for name in names)
    judge = Earley(grammar)
    nfa = Nfa()
    try:
        start = compile_gbnf(grammar, nfa)
    except ConstraintError as error:
        assert error.code is Code.UNSATISFIABLE
        assert any(not judge.productive(name) for name in names), grammar
        return
    for _ in range(12):
        text = "".join(draw.choices("aabbc", k=draw.randint(0, 6)))
        state = simulate.begin(nfa, start)
        for char in text:
            if len(state) < 2000:  # a text with too many readings proves nothing here but patience
                state = simulate.step(nfa, state, ord(char))
        if len(state) < 2000:
            assert (simulate.ACCEPT in state) == judge.recognises(text), (grammar, text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_byte_that_is_let_through_leads_nowhere(seed):
    """From every state a random walk reaches, the Earley judge finds some way to go on, or the text may end there."""
    draw = random.Random(seed)
    names = ["root", "s"]
    grammar = "\n".join(f"{name} ::= {random_expr(draw, names, 2)} | {random_expr(draw, names, 1)}" for name in names)
    judge = Earley(grammar)
    nfa = Nfa()
    try:
        start = compile_gbnf(grammar, nfa)
    except ConstraintError:
        return
    if not all(judge.productive(symbol) for symbol in judge.productions):
        return  # an unreachable rule without a finite text: the judge's prefixes would count it
    state, text = simulate.begin(nfa, start), ""
    for _ in range(8):
        assert state and judge.viable(text), (grammar, text)
        live = [char for char in "abc" if ord(char) in simulate.live_bytes(nfa, state)]
        assert set(live) == {char for char in "abc" if judge.viable(text + char)}, (grammar, text)
        if not live or len(state) > 2000:
            break
        text += draw.choice(live)
        state = simulate.step(nfa, state, ord(text[-1]))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='roota:=|()[]{}*+?.,<>!#"\\-^12xuU \n\r\x00é', max_size=40).map(lambda text: "root ::= " + text))
def test_any_text_is_a_grammar_or_refused(text):
    try:
        compile_gbnf(text, Nfa())
    except ConstraintError as error:
        assert error.message


def test_repetition_of_repetitions_joins_only_what_is_dense():
    for outer, inner in (((0, 3), (2, 3)), ((2, 2), (1, 3)), ((1, 2), (0, 2)), ((0, 2), (1, UNBOUNDED)), ((2, 3), (3, 4))):
        bounds = [f"{{{low},{'' if high == UNBOUNDED else high}}}" for low, high in (inner, outer)]
        grammar = 'root ::= ("a"{})'.replace("{}", bounds[0]) + bounds[1]
        most = 8 if UNBOUNDED in inner else outer[1] * inner[1]
        sums = {0} if outer[0] == 0 else set()
        for rounds in range(max(outer[0], 1), outer[1] + 1):
            top = 12 if inner[1] == UNBOUNDED else inner[1]
            sums |= set(range(rounds * inner[0], rounds * top + 1))
        assert accepts(grammar, *("a" * n for n in range(most + 1))) == [n in sums for n in range(most + 1)], grammar
