"""A sample of MaskBench and of the JSON-Schema-Test-Suite; `make acceptance-schema_suites` runs all of both."""

from __future__ import annotations

import pytest

from imp.constrain.schema import PropertyOrder
from tests.constrain.suites import DRAFTS, MASKBENCH, SUITE, maskbench, run, suite

pytestmark = pytest.mark.skipif(not MASKBENCH.exists() or not SUITE.exists(), reason="the data is not here")
# formats that are annotations here (idn-*), refused (regex), or kept to fewer spellings (leap seconds, punycode)
FORMATS = ["date", "duration", "email", "ipv4", "ipv6", "iri", "iri-reference", "json-pointer", "relative-json-pointer"]
FORMATS += ["uri", "uri-reference", "uri-template", "uuid"]


@pytest.mark.slow
def test_a_sample_of_maskbench():
    table = run(maskbench(every=8), property_order=PropertyOrder.ANY)
    assert table.count("under") == table.count("over") == 0, table
    assert table.share("pass") >= 0.97, table


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_invalid_value_of_the_test_suite_is_accepted(draft):
    table = run(suite(draft, every=2), draft=DRAFTS[draft])
    assert table.count("under") == 0, table
    assert table.share("pass") >= 0.8, table


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_the_test_suite(name):
    groups = [group for group in suite("draft2020-12", "optional/format") if group.keyword == name]
    table = run(groups, draft=DRAFTS["draft2020-12"])
    assert groups and table.count("pass") == len(groups), [(o.group.name, o.detail) for o in table.outcomes]
