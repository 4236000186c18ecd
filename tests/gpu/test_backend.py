"""Whole models on a fake device, in a process of its own: checks/backend.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu import fake
from tests.gpu.fake import apart

pytestmark = pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")

CHECKS = Path(__file__).parent / "checks/backend.py"


def test_the_backend(kernel_folder, tmp_path):
    wrong = {name: why for name, why in apart.results(CHECKS, tmp_path / "report", folder=kernel_folder).items() if why}
    assert not wrong, "\n\n".join(f"{name}\n{why}" for name, why in wrong.items())
