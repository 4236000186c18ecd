"""Random schemas: what is accepted is exactly what the `jsonschema` package calls valid, and every walk ends in such a value."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.schema import PropertyOrder, Whitespace
from tests.constrain.random_schemas import Schemas
from tests.constrain.schemas import Writer

SCHEMAS = 250
VALUES = 8


def judged(validator: jsonschema.Draft202012Validator, value: object) -> bool | None:
    """None where the judge does not end: a reference to itself."""
    try:
        return validator.is_valid(value)
    except RecursionError:
        return None


def disagreements(seed: int) -> list[str]:
    """Between the automaton of one random schema and the judge."""
    rng = random.Random(seed)
    source = Schemas(rng)
    schema = source.document()
    values = [source.likely(schema) for _ in range(VALUES)]
    validator = jsonschema.Draft202012Validator(schema)
    valid = [judged(validator, value) for value in values]
    try:
        writer = Writer(schema, property_order=PropertyOrder.ANY, whitespace=Whitespace.COMPACT)
    except ConstraintError as error:
        assert error.code in (Code.UNSATISFIABLE, Code.UNSUPPORTED), error.message
        return ["unsatisfiable"] if error.code is Code.UNSATISFIABLE and True in valid else []
    found = []
    for value, wanted in zip(values, valid, strict=True):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if wanted is not None and writer.accepts(text) != wanted:
            found.append(f"{text} is {'valid' if wanted else 'invalid'} for {json.dumps(schema)}")
    return found


@pytest.mark.slow
def test_random_schemas_agree_with_the_judge():
    assert not [line for seed in range(SCHEMAS) for line in disagreements(seed)]


@pytest.mark.parametrize("seed", range(40))
def test_every_walk_writes_a_valid_value(seed):
    rng = random.Random(1000 + seed)
    schema = Schemas(rng).document()
    validator = jsonschema.Draft202012Validator(schema)
    try:
        writer = Writer(schema)
    except ConstraintError:
        return
    for _ in range(3):
        text = writer.walk(rng)
        if not re.search(rb"[0-9.]{15}", text):  # the judge reads longer numbers as floats, which round
            assert judged(validator, json.loads(text)) is not False, (text, schema)
