"""Starting, memory, bandwidth and a neighbour that wants a core: our own server within the limits of bench/limits.py.

Some 4 minutes on a machine that does nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.real.process import ROOT


def test_the_server_keeps_within_its_limits(tmp_path):
    out = tmp_path / "limits.json"
    subprocess.run([sys.executable, "-m", "bench.limits", "--out", str(out)], cwd=ROOT, check=True)
    figures = json.loads(out.read_text())["figures"]
    assert figures and not [figure["name"] for figure in figures if figure["missed"]]
