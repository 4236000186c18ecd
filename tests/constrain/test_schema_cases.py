"""The cases of the specification: for each schema texts that are accepted and texts that are not."""

from __future__ import annotations

import json

import pytest

from tests.constrain.schemas import SHARED, Writer, refusal

FILE = SHARED / "spec" / "constrain_cases.json"
CASES = json.loads(FILE.read_text()) if FILE.exists() else []
ENFORCED = [case for case in CASES if case["kind"] == "json_schema"]
REFUSED = [case for case in CASES if case["kind"] == "json_schema_refuse"]

pytestmark = pytest.mark.skipif(not CASES, reason="the cases of the specification are not here")


@pytest.mark.parametrize("case", ENFORCED, ids=lambda case: case["id"])
def test_exactly_the_right_texts_are_accepted(case):
    writer = Writer(case["spec"])
    for text in case["accept"]:
        assert writer.accepts(text), f"{case['note']}: {text}"
    for text in case["reject"]:
        assert not writer.accepts(text.encode("utf-8", "surrogatepass")), f"{case['note']}: {text}"


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_what_cannot_be_is_refused_by_name(case):
    assert case["must_mention"] in refusal(case["spec"]).message
