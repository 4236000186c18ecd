"""Compiled code of constraints, before any client waits for an answer that needs it."""

from __future__ import annotations

import pytest

from imp import settings
from imp.constrain.code import constraint_code


@pytest.fixture(scope="session", autouse=True)
def compiled_constraints() -> None:
    """Half a minute where it has never been compiled; it is kept where the server keeps it."""
    constraint_code(settings.load([]).paths.cache)
