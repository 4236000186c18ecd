"""Masks of schemas, regular expressions and grammars against brute force, over whole vocabularies of three sizes.

make acceptance-constrain; prints how many states were compared. Every token of the vocabulary is tried in each of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from imp.constrain.automaton import Grammar, Limits
from imp.constrain.compile import compile_regex
from imp.constrain.errors import ConstraintError
from imp.constrain.gbnf import compile_gbnf
from imp.constrain.nfa import Nfa
from imp.constrain.schema import compile_schema
from imp.constrain.vocab import VocabTables
from imp.text.tokenizer import Tokenizer
from tests.constrain.test_lazy import write_random_schemas
from tests.text import toys

MASKBENCH = Path(__file__).resolve().parents[3] / "shared/data/jsonschema/maskbench"
REGEXES = [
    r"[a-z_]+(-[0-9]{2,4})?",
    r"(\d{4})-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
    r"[^\n]*\n+[ -~]{3,12}",
    r"\w+@\w+\.(com|org)",
    r"(Привет|日本語|[α-ω]+)[!?]*",
]
GBNFS = [
    'root ::= "[" item ("," " "? item)* "]"\nitem ::= [0-9]+ | "\\"" [^"\\n]* "\\"" | root',
    'root ::= (line "\\n"){1,4}\nline ::= [A-Za-z ]{3,20} "." | "- " [^\\n]+',
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [a-z] | "(" expr ")" | [0-9]{1,3}',
]
SIZES = [("smollm2", 300), ("qwen2", 50), ("gemma3", 50)]


def tokenizer(name: str, request: pytest.FixtureRequest) -> Tokenizer:
    if name == "qwen2":
        return toys.vocabulary(name)
    return toys.tokenizer_of(request.getfixturevalue(f"{name}_path"))


def builders(draw: random.Random) -> Iterator[tuple[str, Callable[[Nfa], int], list[str]]]:
    """Endless: a schema with its valid instances, a regex, a schema, a grammar."""
    if not MASKBENCH.is_dir():
        pytest.skip("the schemas are not beside the project")
    paths = sorted(MASKBENCH.glob("*.json"))
    while True:
        for others, make in ((REGEXES, compile_regex), (GBNFS, compile_gbnf)):
            for path in draw.sample(paths, 2):
                entry = json.loads(path.read_text())
                texts = [json.dumps(test["data"], ensure_ascii=False) for test in entry["tests"] if test["valid"]]
                yield path.stem, lambda nfa, schema=entry["schema"]: compile_schema(schema, nfa), texts
            text = draw.choice(others)
            yield text, lambda nfa, text=text, make=make: make(text, nfa), []


def along(grammar: Grammar, tokens: list[int], draw: random.Random) -> Iterator[int]:
    """States on the way of a text; without one, of tokens drawn from the masks."""
    state = grammar.first
    for step in range(60):
        yield state
        if tokens:
            token = tokens[step] if step < len(tokens) else -1
        else:
            allowed = np.flatnonzero(grammar.tables.token_bits(grammar.row(state)))
            assert allowed.size, "a dead end"
            token = int(draw.choice(allowed))
        state = grammar.advance(state, token)
        if state <= 1:
            return


@pytest.mark.parametrize(("name", "wanted"), SIZES)
def test_masks_are_what_brute_force_finds(name: str, wanted: int, request: pytest.FixtureRequest):
    code_folder = Path(request.config.cache.mkdir("kernels"))
    words = tokenizer(name, request)
    tables = VocabTables.build(words.byte_table, words.special_ids, words.eos_ids, code_folder)
    draw, compared, constraints = random.Random(name), 0, 0
    for title, build, texts in builders(draw):
        nfa = Nfa()
        try:
            grammar = Grammar(nfa, build(nfa), tables, Limits(seconds=60), code_folder)
        except ConstraintError:
            continue
        constraints += 1
        tokens = words.encode(draw.choice(texts), add_special=False) if texts else []
        states = list(dict.fromkeys(along(grammar, tokens, draw)))
        for state in draw.sample(states, min(4, len(states))):
            given = tables.token_bits(grammar.row(state))
            expected = np.array([grammar.advance(state, token) != 0 for token in range(len(tables.rank))])
            wrong = np.flatnonzero(given != expected)
            assert not wrong.size, (title, [(tables.bytes_of(t), bool(given[t])) for t in wrong[:5]])
            compared += 1
        if compared >= wanted:
            break
    print(f"\n{name}: {compared} states of {constraints} constraints, {len(tables.rank)} tokens each")


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_refused_late(seed: int):
    """Of 600 schemas all that can be reached is written, up to 20,000 nodes each."""
    write_random_schemas(1000 + seed, 60, 20_000)
