"""What compiling made goes when it is not wanted any more, without a collection of garbage."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Node
from imp.types import ConstraintKind, ConstraintSpec
from tests.constrain.hostile import hostile
from tests.toylogits import compiler

CASES, SMALL = 40, 1000  # constraints; characters of each


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def specs(seed: int) -> Iterator[ConstraintSpec]:
    return (spec for spec in hostile(random.Random(seed)) if len(spec.text) < SMALL)


@pytest.mark.slow
def test_compiling_leaves_no_garbage_that_refers_to_itself(code_folder, no_collections):
    made, most = compiler(code_folder, ahead_s=0.0, max_bytes=1), dict[str, int]()
    made.warm()
    gc.collect()
    for _, spec in zip(range(CASES), specs(3), strict=False):
        try:
            made.compile(spec)
        except ConstraintError as error:
            spec = ConstraintSpec(spec.kind, f"{error.code.value}: {spec.text}")
        most[spec.text[:200]] = gc.collect()
    assert max(most.values()) < 200, max(most.items(), key=lambda item: item[1])


SPECS = [
    ConstraintSpec(ConstraintKind.GRAMMAR, 'root ::= "' + "ab" * 2000 + '"'),
    ConstraintSpec(ConstraintKind.REGEX, "(a|b)*a(a|b){10}"),
    ConstraintSpec(ConstraintKind.JSON_SCHEMA, '{"properties": {"a": {"enum": [1, 2, "x"]}, "b": {"items": {"maxLength": 9}}}}'),
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_the_nodes_of_a_grammar_go_once_nothing_in_it_is_lazy(code_folder, spec, no_collections):
    def nodes() -> int:
        return sum(isinstance(each, Node) for each in gc.get_objects())

    made = compiler(code_folder, ahead_s=0.0)
    made.warm()
    before = nodes()
    grammar = made.compile(spec)
    grammar.prepare(20.0)
    assert nodes() - before < 100 and grammar.start().row() is not None
