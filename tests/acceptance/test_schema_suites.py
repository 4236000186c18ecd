"""All of MaskBench and of the JSON-Schema-Test-Suite, and thousands of random schemas, with the figures."""

from __future__ import annotations

from imp.constrain.schema import PropertyOrder
from tests.constrain.suites import DRAFTS, Table, maskbench, run, suite
from tests.constrain.test_schema_random import disagreements

RANDOM_SCHEMAS = 3000


def show(title: str, table: Table) -> None:
    print(f"\n{title}: {table}")
    for outcome in table.outcomes:
        if outcome.verdict != "pass":
            print(f"    {outcome.verdict:8} {outcome.group.name[:70]}: {outcome.detail[:140]}")


def test_maskbench():
    table = run(maskbench(), property_order=PropertyOrder.ANY)
    show("MaskBench, names in any order", table)
    assert table.count("under") == 0 and not table.slow(2.0)
    assert table.share("pass") >= 0.97 and table.share("over") <= 0.005 and table.share("refused") <= 0.025


def test_maskbench_in_declared_order():
    """What is left out then are values whose names come in another order: none more is accepted."""
    table = run(maskbench())
    show("MaskBench, names as declared", table)
    assert table.count("under") == 0 and not table.slow(2.0)
    assert table.share("pass") >= 0.96 and table.share("refused") <= 0.025


def test_the_test_suite():
    for draft, version in DRAFTS.items():
        table = run(suite(draft), draft=version)
        show(f"JSON-Schema-Test-Suite, {draft}", table)
        assert table.count("under") == 0
        assert draft != "draft2020-12" or table.count("pass") >= 270


def test_thousands_of_random_schemas():
    found = [line for seed in range(10_000, 10_000 + RANDOM_SCHEMAS) for line in disagreements(seed)]
    print(f"\n{RANDOM_SCHEMAS} random schemas: {len(found)} disagreements with the judge")
    assert not found
