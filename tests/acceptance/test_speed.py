"""Decode, prefill and the whole server beside llama.cpp: the same files, two threads, alternating runs, the targets of
bench/subjects.py. Builds llama.cpp the first time; some 25 minutes then.

LLAMA_BIN in the environment names a folder of finished binaries; MODELS some of the models, separated by commas.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench.subjects import SUBJECTS
from tests.real.process import ROOT


def test_the_cpu_backend_beside_llama_cpp(tmp_path):
    out = tmp_path / "peer.json"
    models = os.environ.get("MODELS", ",".join(SUBJECTS))
    command = [sys.executable, "-m", "bench.peer", "--models", models, "--reps", "5", "--out", str(out)]
    if folder := os.environ.get("LLAMA_BIN"):
        command += ["--llama", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    judged = [line for line in json.loads(out.read_text())["lines"] if line["target"] is not None]
    for line in judged:
        print(f"{line['name']}: {line['times']:.2f} times llama.cpp, at least {line['target']} is asked for")
    assert judged and not [line["name"] for line in judged if line["missed"]]
