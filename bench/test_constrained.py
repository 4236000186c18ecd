"""What constraints add to a step, beside the step they are added to; and what a schema costs, new and seen before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count

import pytest

from bench.model import Case, Driver, load_tokenizer
from imp import settings
from imp.constrain.compiler import Compiler
from imp.constrain.matcher import Matcher, step_together
from imp.constrain.vocab import VocabTables
from imp.types import ConstraintKind, ConstraintSpec

BATCH, DEPTH = 8, 64
MOST = 0.07  # of a decoding step, for masks and advances of all its rows: what throughput beside free text allows
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "status": {"enum": ["open", "paid", "sent"]},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "price": {"type": "number"}, "count": {"type": "integer"}},
                "required": ["name", "price", "count"],
            },
        },
        "note": {"type": ["string", "null"]},
    },
    "required": ["customer", "status", "items", "note"],
}
ITEMS = [{"name": f"a thing, number {i}", "price": 3.25 + i, "count": i} for i in range(4)]
VALUE = {"customer": "Ada from Zürich", "status": "sent", "items": ITEMS, "note": "leave it at the door, please"}


@dataclass(frozen=True, slots=True)
class Constrained:
    compiler: Compiler
    tokens: list[int]  # of VALUE as JSON

    def spec(self, title: str) -> ConstraintSpec:
        return ConstraintSpec(ConstraintKind.JSON_SCHEMA, json.dumps({"title": title} | ORDER))


@pytest.fixture(scope="module")
def constrained(smollm2_path) -> Constrained:
    words, folder = load_tokenizer(smollm2_path), settings.load([]).paths.cache
    tables = VocabTables.build(words.byte_table, words.special_ids, words.eos_ids, folder)
    compiler = Compiler(lambda: tables, words.encode, cache_dir=folder)
    compiler.warm()
    return Constrained(compiler, words.encode(json.dumps(VALUE, ensure_ascii=False)))


def walk(grammar, tokens: list[int]) -> None:
    """BATCH rows through all tokens, one call a step."""
    matchers: list[Matcher] = [grammar.start() for _ in range(BATCH)]
    step_together(matchers, [-1] * BATCH)
    for token in tokens:
        assert (step_together(matchers, [token] * BATCH) >= 0).all()


def test_masks_beside_a_decoding_step(benchmark, figures, driver: Driver, constrained: Constrained):
    grammar = constrained.compiler.compile(constrained.spec("masks"))
    walk(grammar, constrained.tokens)

    benchmark.pedantic(lambda: walk(grammar, constrained.tokens), rounds=20, warmup_rounds=1)
    step = BATCH / driver.measure(Case("tg", 32, BATCH, DEPTH)).best  # seconds
    masks = benchmark.stats.stats.min / len(constrained.tokens)
    figures.note(benchmark, f"masks of {BATCH} rows", masks * 1e6, "us/step", "a decoding step", step * 1e6)
    assert masks < MOST * step


def test_a_new_schema(benchmark, figures, constrained: Constrained):
    """Every round another one; compiling also makes the first token's mask."""
    names = count()
    benchmark.pedantic(
        lambda spec: constrained.compiler.compile(spec),
        setup=lambda: ((constrained.spec(f"new {next(names)}"),), {}),
        rounds=20,
    )
    figures.note(benchmark, "a new schema", benchmark.stats.stats.min * 1e3, "ms")


def test_a_schema_seen_before(benchmark, figures, constrained: Constrained):
    spec = constrained.spec("seen")
    constrained.compiler.compile(spec)
    benchmark.pedantic(lambda: constrained.compiler.compile(spec).start(), rounds=50, iterations=100)
    seen = benchmark.stats.stats.min
    figures.note(benchmark, "a schema seen before", seen * 1e6, "us")
    assert seen < 1e-4
