"""The generated pages of docs/ are those of the code."""

from pathlib import Path

import pytest

from imp.docs import PAGES

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name):
    assert (DOCS / name).read_text() == PAGES[name](), "run: python -m imp.docs"
