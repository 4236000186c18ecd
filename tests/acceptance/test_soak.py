"""64 streams for two minutes with random disconnects: no error, no leaked block, flat memory."""

from __future__ import annotations

import subprocess
import sys

from tests.real.process import ROOT


def test_two_minutes_of_64_streams():
    command = [sys.executable, "-m", "bench.soak", "--seconds", "120", "--streams", "64"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
