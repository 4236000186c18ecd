"""`python -m bench.gpu` runs to its end on a fake GPU, and says where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu import fake

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", "--smoke", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)


def test_without_a_gpu_it_says_so(tmp_path):
    done = bench("--cache", str(tmp_path), env={})
    assert done.returncode == 3 and done.stdout.startswith("nothing can be measured here: there is no CUDA driver")


@pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")
def test_every_section_is_measured(kernel_folder, tmp_path):
    out = tmp_path / "lines.json"
    done = bench("--cache", str(kernel_folder), "--json", str(out), env=fake.environment(kernel_folder))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads(out.read_text())
    assert all(line["value"] > 0 for line in lines)
    assert len({line["section"] for line in lines}) == 8
    (right,) = (line for line in lines if line["section"].startswith("conformance"))
    assert right["value"] < 8
    (instructions,) = (line for line in lines if line["section"] == "single instructions")
    assert instructions["unit"] == f"of {instructions['value']}"
