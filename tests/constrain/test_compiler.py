"""What a client wrote becomes a grammar once, under the options in force; judged by texts that match or do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imp.constrain.automaton import Grammar
from imp.constrain.compiler import Compiler
from imp.constrain.errors import Code, ConstraintError
from imp.constrain.schema import PropertyOrder, SchemaOptions, Whitespace
from imp.constrain.vocab import VocabTables
from imp.types import ConstraintKind, ConstraintSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}


@pytest.fixture(scope="module")
def tables(code_folder: Path) -> VocabTables:
    """Bytes, and an end."""
    return VocabTables.build([*(bytes([i]) for i in range(256)), b""], (), (256,), code_folder)


def compiler(tables: VocabTables, folder: Path, **more) -> Compiler:
    return Compiler(lambda: tables, cache_dir=folder, **more)


def spec(kind: ConstraintKind, text: str, **more) -> ConstraintSpec:
    return ConstraintSpec(kind, text, **more)


def schema(value: object, **more) -> ConstraintSpec:
    return spec(ConstraintKind.JSON_SCHEMA, json.dumps(value), **more)


def matches(grammar: Grammar, text: str) -> bool:
    state = grammar.advance_bytes(grammar.first, text.encode())
    return bool(state) and grammar.accepting(state)


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (schema(SCHEMA), ['{"a": 1}', '{"a":1,"b":[2]}'], ['{"b": 1}', '{"a": 1.5}', "[]"]),
        (spec(ConstraintKind.REGEX, r"\d{2,3}"), ["12", "123"], ["1", "1234", "a"]),
        (spec(ConstraintKind.CHOICE, '["ja", "né"]'), ["ja", "né"], ["j", "jane"]),
        (spec(ConstraintKind.GRAMMAR, 'root ::= "a"+ "b"'), ["ab", "aab"], ["b", "a"]),
        (spec(ConstraintKind.GRAMMAR, 'start: "a"+ B\nB: "b"'), ["ab", "aab"], ["b", "a"]),
    ],
    ids=["schema", "regex", "choice", "gbnf", "lark"],
)
def test_every_kind_is_compiled(tables, code_folder, wanted, good, bad):
    grammar = compiler(tables, code_folder).compile(wanted)
    assert all(matches(grammar, text) for text in good) and not any(matches(grammar, text) for text in bad)


def test_options_and_what_a_spec_says_of_whitespace(tables, code_folder):
    made = compiler(tables, code_folder, options=SchemaOptions(Whitespace.COMPACT, PropertyOrder.ANY))
    assert matches(made.compile(schema(SCHEMA)), '{"b":1,"a":2}')
    assert not matches(made.compile(schema(SCHEMA)), '{"a": 1}')
    assert matches(made.compile(schema(SCHEMA, compact=False)), '{"b": 1, "a": 2}')
    declared = compiler(tables, code_folder).compile(schema(SCHEMA))
    assert matches(declared, '{"a": 1, "b": 2}') and not matches(declared, '{"b": 1, "a": 2}')


def test_an_equal_spec_is_the_same_grammar_whatever_field_it_came_from(tables, code_folder):
    made = compiler(tables, code_folder)
    first = made.compile(schema(SCHEMA, param="guided_json"))
    assert made.cached(schema(SCHEMA, param="json_schema")) is first
    assert made.compile(schema(SCHEMA)) is first and made.cached(schema({})) is None


def test_what_is_kept_is_bounded(tables, code_folder):
    made = compiler(tables, code_folder, max_bytes=1)
    first, second = schema({"type": "string"}), schema({"type": "null"})
    made.compile(first)
    made.compile(second)
    assert made.cached(first) is None and made.cached(second) is not None


def test_refusals(tables, code_folder):
    made = compiler(tables, code_folder)
    with pytest.raises(ConstraintError) as caught:
        made.compile(spec(ConstraintKind.REGEX, "a" * (1 << 20) + "b"))
    assert caught.value.code is Code.TOO_LARGE
    with pytest.raises(ConstraintError, match="cancelled"):
        made.compile(spec(ConstraintKind.REGEX, "a"), stop=lambda: True)
    assert made.cached(spec(ConstraintKind.REGEX, "a")) is None


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_there_is_no_room_for_is_refused(tables, code_folder, error, monkeypatch):
    def build(*given: object) -> int:
        raise error

    monkeypatch.setattr("imp.constrain.compiler.build", build)
    with pytest.raises(ConstraintError, match=r"^too large: ") as caught:
        compiler(tables, code_folder).compile(schema(True))
    assert caught.value.code is Code.TOO_LARGE


def test_tables_are_made_when_they_are_first_needed_and_once(tables, code_folder):
    made = []

    def make() -> VocabTables:
        made.append(1)
        return tables

    lazy = Compiler(make, cache_dir=code_folder)
    assert lazy.cached(schema(True)) is None and not made
    lazy.warm()
    lazy.compile(schema(True))
    assert len(made) == 1
