"""imp-server beside transformers and torch on the CPU: the same GGUF, the same threads, taking turns.

    python -m bench.torch_peer [--python PYTHON] [--model GGUF] [--dtypes float32,bfloat16] [--reps 5] [--threads 2]
                               [--out FILE] [--write-docs] [--check]

PYTHON is an interpreter that has transformers, torch, gguf and accelerate (default: of the environment ~/.cache/imp/peers;
`python3 -m venv ~/.cache/imp/peers && ~/.cache/imp/peers/bin/pip install transformers torch gguf accelerate` makes it).
transformers turns the weights into the dtype when it loads them. Its decoding is generate(), greedy, as it is used; its
start is from the command to a model that could compute, ours to /ready.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from bench.lines import ROOT, Lines, conclude
from bench.measure import load_average, machine
from bench.model import Case
from bench.peer import our_rates, say
from tests import realmodel
from tests.real.process import ServerProcess

MARKS = ("<!-- bench.torch_peer begins -->", "<!-- bench.torch_peer ends -->")
PEERS = Path.home() / ".cache/imp/peers/bin/python"
TARGETS = {"pp128": 2.0, "pp512": 2.0, "tg64": 6.0}
START_TARGET = 10.0


def their_run(python: Path, model: Path, dtype: str, threads: int) -> tuple[float, dict[str, float]]:
    """(seconds until the model could compute, tokens per second by case)."""
    began = time.monotonic()
    command = [python, "-P", ROOT / "bench" / "torch_run.py", model, dtype, threads, ",".join(TARGETS)]
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    ready_s = time.monotonic() - began
    output, errors = process.communicate()
    if process.returncode or first != "ready":
        raise RuntimeError(f"torch_run.py failed: {errors[-1000:]}")
    return ready_s, json.loads(output)


def our_run(model: Path, threads: int) -> tuple[float, dict[str, float]]:
    process = ServerProcess("--model", str(model), "--set", f"runtime.threads={threads}").wait()
    process.stop()
    return process.ready_after_s, our_rates(model, [Case.parse(case) for case in TARGETS], threads)


def compare(lines: Lines, python: Path, model: Path, dtype: str, threads: int, rep: int) -> None:
    sides = [lambda: their_run(python, model, dtype, threads), lambda: our_run(model, threads)]
    results: list[tuple[float, dict[str, float]]] = [(0.0, {}), (0.0, {})]
    for side in (0, 1) if rep % 2 == 0 else (1, 0):  # neither is always first
        results[side] = sides[side]()
    (their_start_s, theirs), (our_start_s, ours) = results
    start = lines.line(f"{dtype} start", "s", START_TARGET, lower_is_better=True)
    start.theirs.append(their_start_s)
    start.ours.append(our_start_s)
    for case, target in TARGETS.items():
        line = lines.line(f"{dtype} {case}", "tokens/s", target)
        line.theirs.append(theirs[case])
        line.ours.append(ours[case])


def versions(python: Path) -> str:
    program = "import torch, transformers; print('transformers', transformers.__version__, 'torch', torch.__version__)"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{python} has no transformers with torch: {done.stderr[-500:]}")
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.torch_peer", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", type=Path, default=PEERS, help="an interpreter that has transformers and torch")
    parser.add_argument("--model", type=Path, help="default: the server's default model")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="what transformers computes in")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="figures as JSON")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/PERFORMANCE.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a target is missed")
    chosen = parser.parse_args()
    peer = versions(chosen.python)
    model = chosen.model or realmodel.smollm2()
    lines = Lines("transformers")
    for rep in range(chosen.reps):
        for dtype in chosen.dtypes.split(","):
            say(f"{dtype}: repetition {rep + 1} of {chosen.reps}")
            compare(lines, chosen.python, model, dtype, chosen.threads, rep)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "model": model.name,
        "threads": str(chosen.threads),
        "repetitions": str(chosen.reps),
        "load average": f"{load_average():.1f}",
        "peer": peer,
    }
    return conclude(about, lines, chosen.out, MARKS if chosen.write_docs else None, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
