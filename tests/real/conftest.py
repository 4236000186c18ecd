"""One real server with the real default model for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.process import ServerProcess, server


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path: Path) -> Iterator[ServerProcess]:
    with server("--model", str(smollm2_path), "--served-model-name", "smollm2") as running:
        yield running
