"""The device layer on a fake driver, in a process of its own: checks/driver.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu import fake
from tests.gpu.fake import apart

pytestmark = pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")

CHECKS = Path(__file__).parent / "checks/driver.py"


def test_the_device_layer(kernel_folder, tmp_path):
    wrong = {name: why for name, why in apart.results(CHECKS, tmp_path / "report", folder=kernel_folder).items() if why}
    assert not wrong, "\n\n".join(f"{name}\n{why}" for name, why in wrong.items())


@pytest.mark.parametrize(
    ("driver", "why"), [(False, "there is no CUDA driver (libcuda.so.1)"), (True, "the CUDA driver does not start")]
)
def test_where_there_is_no_device_it_is_said_why(driver, why):
    program = """
from imp.cuda.driver import Device, NoDevice
try:
    Device()
except NoDevice as error:
    print(error)"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | (fake.environment(no_device=1) if driver else {}),
        cwd=apart.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(why)
