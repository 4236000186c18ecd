"""What the front ends write means the same to the fast automaton as to the naive simulator, byte by byte."""

from __future__ import annotations

import random

import pytest

from imp.constrain.automaton import Grammar, Limits
from imp.constrain.charset import Encoding
from imp.constrain.compile import compile_choice, compile_regex
from imp.constrain.gbnf import compile_gbnf
from imp.constrain.language import Language
from imp.constrain.lark import compile_lark
from imp.constrain.nfa import UNBOUNDED, Nfa
from imp.constrain.tools import calls, lazy_calls

from . import simulate
from .test_tools import GLM, HERMES, KIMI, KIMI_CONTROLS, QWEN_XML, TOOLS, Vocabulary


def string(pattern: str, low: int, high: int, encoding: Encoding = Encoding.JSON):
    return lambda nfa: Language.pattern(pattern).emit(nfa, nfa.literal(b'"', nfa.ret), encoding, low, high)


FRONT_ENDS = {
    "regex": lambda nfa: compile_regex(r"(?:\w{1,3}|é+)(?:-[^a\n]{2})*", nfa),
    "counted regex": lambda nfa: compile_regex("(?:[ab]{2,90000},){2,90000}x", nfa),
    "choice": lambda nfa: compile_choice(["abc", "ab", "zażółć", ""], nfa),
    "pattern and bounds": string("[ab]+c", 2, 6),
    "pattern and bound": string("^a(?:bc|d)*$", 4, 1000, Encoding.RAW),
    "pattern and lower bound": string("^(?:ab|c)*$", 3, UNBOUNDED),
    "run and bounds": string("^[a-c]*$", 2, 5),
    "left recursion": lambda nfa: compile_gbnf('root ::= e\ne ::= e "+" e | t\nt ::= t "*" f | f\nf ::= "(" e ")" | [0-9]{1,3}', nfa),
    "begun or ended": lambda nfa: compile_gbnf('root ::= ("a" | "a" root "b" | "a" root "c")*', nfa),
    "lark": lambda nfa: compile_lark('start: "[" [N ("," N)*] "]"\nN: /[0-9]/~1..2\n%ignore " "', nfa),
    "hermes": lambda nfa: calls(nfa, TOOLS, HERMES, nfa.ret, high=3),
    "xml": lambda nfa: calls(nfa, TOOLS, QWEN_XML, nfa.ret),
    "lazy": lambda nfa: lazy_calls(nfa, TOOLS, [GLM], Vocabulary({}, frozenset({5, 77}))),
    "kimi": lambda nfa: lazy_calls(nfa, TOOLS, [KIMI], Vocabulary(KIMI_CONTROLS, frozenset({5, 100}))),
}  # fmt: skip


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_the_fast_automaton_agrees(name, code_folder):
    draw = random.Random(9)
    nfa = Nfa()
    start = FRONT_ENDS[name](nfa)
    grammar = Grammar(nfa, start, None, Limits(seconds=60), code_folder)
    steps = 0
    for _ in range(25):
        state, fast = simulate.begin(nfa, start), grammar.first
        for _ in range(60):
            assert grammar.accepting(fast) == (simulate.ACCEPT in state)
            live = sorted(simulate.live_bytes(nfa, state))
            if not live:
                break
            byte = draw.choice(live) if draw.random() < 0.9 else draw.randrange(256)
            state, fast = simulate.step(nfa, state, byte), grammar.advance_bytes(fast, bytes([byte]))
            assert bool(state) == bool(fast)
            steps += 1
            if not state:
                break
    assert steps > 20


def test_a_long_text_of_an_ambiguous_grammar_is_followed(code_folder):
    """Every letter may have begun something that is still open: each step takes unions of 1,500 stacks apart."""
    nfa = Nfa()
    start = FRONT_ENDS["begun or ended"](nfa)
    grammar = Grammar(nfa, start, None, Limits(seconds=60), code_folder)
    state = grammar.advance_bytes(grammar.first, b"a" * 1500)
    assert grammar.accepting(state)
    assert grammar.accepting(grammar.advance_bytes(state, b"bc" * 750))
    assert not grammar.advance_bytes(state, b"bc" * 750 + b"b")
