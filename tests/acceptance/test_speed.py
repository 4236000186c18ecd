"""Decode, prefill and the whole server beside llama.cpp, and beside transformers with torch: the same files, two threads,
alternating runs, the targets of bench/subjects.py and bench/torch_peer.py. Some 30 minutes, and once 15 to build llama.cpp.

LLAMA_BIN in the environment names a folder of finished binaries; MODELS some of the models, separated by commas.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from bench.subjects import SUBJECTS
from bench.torch_peer import PEERS
from tests.real.process import ROOT


def test_the_cpu_backend_beside_llama_cpp(tmp_path):
    out = tmp_path / "peer.json"
    models = os.environ.get("MODELS", ",".join(SUBJECTS))
    command = [sys.executable, "-m", "bench.peer", "--models", models, "--reps", "5", "--out", str(out)]
    if folder := os.environ.get("LLAMA_BIN"):
        command += ["--llama", folder]
    judge(command, out, "llama.cpp")


def test_the_cpu_backend_beside_transformers(tmp_path):
    if not PEERS.is_file():
        pytest.skip("no environment with transformers: see bench/torch_peer.py")
    out = tmp_path / "torch.json"
    judge([sys.executable, "-m", "bench.torch_peer", "--out", str(out)], out, "transformers")


def judge(command, out, peer):
    subprocess.run(command, cwd=ROOT, check=True)
    judged = [line for line in json.loads(out.read_text())["lines"] if line["target"] is not None]
    for line in judged:
        print(f"{line['name']}: {line['times']:.2f} times {peer}, at least {line['target']} is asked for")
    assert judged and not [line["name"] for line in judged if line["missed"]]
