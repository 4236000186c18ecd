"""The log: one line a message whatever a client sends, and things said once."""

from __future__ import annotations

import io
import logging

import pytest

from imp.obs.log import Once, setup


@pytest.fixture
def stream():
    root = logging.getLogger("imp")
    before = (list(root.handlers), root.level, root.propagate)
    yield io.StringIO()
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def test_a_client_cannot_write_lines_of_its_own(stream: io.StringIO) -> None:
    setup("info", stream)
    logging.getLogger("imp.x").info("field %s", "a\n2026-01-01 ERROR forged\x1b[31m\u2028x")
    assert stream.getvalue().count("\n") == 1
    assert "\\x0a2026" in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_levels_and_tracebacks(stream: io.StringIO) -> None:
    setup("warning", stream)
    setup("warning", stream)  # twice: lines are not doubled
    logging.getLogger("imp.x").info("quiet")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("imp.x").exception("failed")
    lines = stream.getvalue().splitlines()
    assert "WARNING" not in lines[0] and "ERROR imp.x: failed" in lines[0] and lines[-1] == "RuntimeError: boom"
    with pytest.raises(ValueError, match="level"):
        setup("loud")


def test_once_is_once_and_bounded() -> None:
    once = Once(limit=2)
    assert [once.first(name) for name in ("a", "a", "b", "c", "b")] == [True, False, True, False, False]
