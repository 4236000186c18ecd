"""Scenarios of group 4 that concern regular expressions and grammars, down to the byte."""

from __future__ import annotations

import pytest

from imp.constrain.compile import compile_choice, compile_regex
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.gbnf import compile_gbnf
from imp.constrain.nfa import Nfa

from . import simulate


def regex_accepts(pattern: str, *texts: str) -> list[bool]:
    nfa = Nfa()
    start = compile_regex(pattern, nfa)
    return [simulate.accepts(nfa, start, text.encode()) for text in texts]


def gbnf_accepts(grammar: str, *texts: str) -> list[bool]:
    nfa = Nfa()
    start = compile_gbnf(grammar, nfa)
    return [simulate.accepts(nfa, start, text.encode()) for text in texts]


@pytest.mark.parametrize(
    ("compile", "text", "code", "mention"),
    [
        (compile_regex, "[a-", Code.INVALID, "offset 0: the pattern is not a valid regular expression: unclosed '['"),
        (compile_regex, "(?P<", Code.INVALID, "offset 0"),
        (compile_regex, "(?<=x)y", Code.UNSUPPORTED, "uses lookbehind, which a streaming automaton cannot enforce"),
        (compile_regex, "(?=a)b", Code.UNSUPPORTED, "uses lookahead, which a streaming automaton cannot enforce"),
        (compile_regex, "\\1", Code.UNSUPPORTED, "backreference"),
        (compile_regex, "a{1000}{1000}", Code.INVALID, "offset 7"),
        (compile_gbnf, "root ::= ", Code.INVALID, "line 1, column 1"),
    ],
)
def test_g04_08_what_is_malformed_or_unsupported_says_where_or_what(compile, text, code, mention):
    with pytest.raises(ConstraintError) as caught:
        compile(text, Nfa())
    assert caught.value.code is code and mention in caught.value.message


def test_g04_08_supported_patterns_match_the_whole_output():
    assert regex_accepts("^(|.*)$", "", "any line", "two\nlines") == [True, True, False]
    assert regex_accepts("[\u0000-\u2e7f]+", "a\x00é", "", "中") == [True, False, False]
    assert regex_accepts("(ab){3}", "ababab", "abab", "abababab") == [True, False, False]


def test_g04_09_left_recursion_and_nullable_loops_work():
    assert gbnf_accepts('root ::= list\nlist ::= list "," item | item\nitem ::= "i"', "i", "i,i,i", ",i") == [True, True, False]
    assert gbnf_accepts('root ::= ("x"*)*', "", "xxx", "y") == [True, True, False]
    assert gbnf_accepts('root ::= ""', "", "x") == [True, False]
    assert gbnf_accepts("root ::= [^\\x00-\\xff]", "中", "a", "ÿ") == [True, False, False]
    assert gbnf_accepts('# one\r\nroot ::= "a" | # two\r\n  "b"\r\n', "a", "b", "ab") == [True, True, False]


def test_g04_09_depth_and_size_are_limited_not_fatal():
    chain = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"'
    assert gbnf_accepts(chain, "a") == [True]
    with pytest.raises(ConstraintError) as caught:
        compile_gbnf("root ::= " + "(" * 50_000 + '"x"' + ")" * 50_000, Nfa())
    assert caught.value.code is Code.TOO_LARGE and "nesting" in caught.value.message


@pytest.mark.parametrize(
    ("grammar", "mention"),
    [
        ("root ::= self\nself ::= self", "rule 'root' matches no finite text"),
        ('root ::= a "x"', "rule 'a' is used but not defined"),
        ('root ::= "say "hi""', "rule 'hi' is used but not defined"),
    ],
)
def test_g04_09_grammars_that_cannot_be_used_name_the_rule(grammar, mention):
    with pytest.raises(ConstraintError) as caught:
        compile_gbnf(grammar, Nfa())
    assert mention in caught.value.message


def test_g04_13_nothing_but_the_end_follows_a_complete_text():
    for compile, constraint, text in (
        (compile_regex, "(ab){3}", b"ababab"),
        (compile_gbnf, 'root ::= "{" [ ]{0,2} "}"', b"{ }"),
        (compile_choice, ["yes", "no"], b"yes"),
    ):
        nfa = Nfa()
        state = simulate.run(nfa, compile(constraint, nfa), text)
        assert simulate.ACCEPT in state and not simulate.live_bytes(nfa, state)


@pytest.mark.slow
def test_g04_02_hostile_constraints_cost_seconds_at_most():
    """Refusing is as good as compiling; what took minutes would be seen."""
    for compile, text in (
        (compile_regex, "(a|b)*a(a|b){1000}"),
        (compile_regex, "((((a{0,99}){0,99}){0,99}){0,99}){0,99}"),
        (compile_regex, "(.*a){30}(.*b){30}"),
        (compile_regex, "a?" * 8000),
        (compile_regex, "(a|" * 250 + "b" + ")*" * 250),
        (compile_gbnf, "root ::= " + '"a"? ' * 3000),
        (compile_gbnf, "root ::= " + '("a"? ' * 250 + ")" * 250),
        (compile_gbnf, 'root ::= (((a{0,99}){0,99}){0,99}){0,99}\na ::= "a" root?'),
        (compile_gbnf, "\n".join(f'r{i} ::= r{(i + 1) % 900} r{(i * 7) % 900} | "x"' for i in range(900)) + "\nroot ::= r0"),
    ):
        try:
            compile(text, Nfa())
        except ConstraintError as error:
            assert error.code is Code.TOO_LARGE
