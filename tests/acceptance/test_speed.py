"""Decode and prefill beside llama.cpp: the same file, two threads, alternating runs. Builds llama.cpp the first time.

LLAMA_BIN in the environment names a folder of finished binaries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from tests.real.process import ROOT

# case -> least ratio of tokens per second, Q4_1
LEAST = {"tg64": 1.0, "tg32x8@16": 1.5, "pp512": 1.5}


def test_the_cpu_backend_beside_llama_cpp(tmp_path):
    out = tmp_path / "peer.json"
    command = [sys.executable, "-m", "bench.peer", "--formats", "Q4_1", "--what", "prefill,decode,batch", "--reps", "5"]
    command += ["--out", str(out)]
    if folder := os.environ.get("LLAMA_BIN"):
        command += ["--llama", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    lines = json.loads(out.read_text())["lines"]
    for case, least in LEAST.items():
        line = next(line for line in lines if line["name"].endswith(case))
        times = statistics.median(line["ours"]) / statistics.median(line["theirs"])
        print(f"{line['name']}: {times:.2f} times llama.cpp, at least {least} is asked for")
        assert times >= least
