"""Masks and compilation beside llguidance and xgrammar: the same schemas, tokens and vocabulary, alternating processes.

CONSTRAIN_PEERS in the environment names an interpreter that has both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from bench.constrain import PEERS, SHARED, ratios
from tests.real.process import ROOT


def test_masks_beside_llguidance_and_xgrammar(tmp_path):
    python, out = os.environ.get("CONSTRAIN_PEERS", str(PEERS)), tmp_path / "figures.json"
    if not os.path.exists(python):
        make = f"python3 -m venv {PEERS.parents[1]} && {PEERS.parent}/pip install llguidance xgrammar tokenizers"
        pytest.skip(f"no interpreter with the peers at {python}; {make}")
    if not SHARED.is_dir():
        pytest.skip("the schemas are not beside the project")
    command = [sys.executable, "-m", "bench.constrain", "--peers", python, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    missed = [line for line in ratios(json.loads(out.read_text())) if line.endswith("(missed)")]
    assert not missed, missed
