"""Constrained decoding over MaskBench's schemas: what a mask, an advance and a compilation cost, here and in peers.

    python -m bench.constrain [--tokenizer gpt-2|qwen2|llama-bpe] [--schemas 90] [--rounds 3] [--peers [PYTHON]]

PYTHON is an interpreter that has llguidance, xgrammar and tokenizers (default: of the environment ~/.cache/imp/peers;
`python3 -m venv ~/.cache/imp/peers && ~/.cache/imp/peers/bin/pip install llguidance xgrammar tokenizers` makes it).

Fair by construction: all engines get the same schemas, tokens, vocabulary and whitespace. A trial run finds the schemas
that every engine compiles and whose valid instances every engine accepts, and how far each goes into the invalid ones;
only these are measured, all instances of them, and each to the token up to which all engines go, so that all fill the
same masks. In every round each engine runs alone, in a fresh process, one after the other; of a mask or a
compilation the median of the rounds counts. Times are thread CPU time, with some 0.9 us of the clock's own in each.

"first" is everything until the mask of the first token is there. What imp's compiler goes on to do in its worker, while
the prompt is computed, is "prepare": MS milliseconds at most (--prepare MS; 0: masks pay for it). "again" are the valid
instances once more with the same grammar, as for a second request with the same schema.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared/data"
DOCS = ROOT / "docs/PERFORMANCE.md"
MARKS = ("<!-- bench.constrain begins -->", "<!-- bench.constrain ends -->")
PEERS = Path.home() / ".cache/imp/peers/bin/python"
PERCENTILES = (50, 95, 99, 99.9)
PATIENCE_S = 15  # for one schema, in the trial
Result = dict[str, dict[str, Any]]  # by schema
TARGETS = (  # what, of which peer, figure, at most
    ("mask mean", "llguidance", "mask", "mean", 0.35),
    ("mask mean", "xgrammar", "mask", "mean", 0.2),
    ("mask p99", "llguidance", "mask", "p99", 0.5),
    ("compile + first mask p50", "llguidance", "first", "p50", 1.2),
    ("compile + first mask p99", "llguidance", "first", "p99", 1.5),
)
AGAIN_US = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="qwen2", help="a vocabulary of the data beside the project")
    parser.add_argument("--schemas", type=int, default=90, help="how many, drawn by a fixed seed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--prepare", type=float, default=50, metavar="MS", help="ms at most between compiling and masks"
    )
    parser.add_argument("--peers", nargs="?", const=str(PEERS), help="an interpreter with llguidance and xgrammar")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/PERFORMANCE.md")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    options = parser.parse_args()
    if options.peers and not Path(options.peers).exists():
        parser.error(f"{options.peers} is not there; --help says how to make it")
    pythons = {"imp": sys.executable, **dict.fromkeys(("llguidance", "xgrammar"), options.peers)}
    engines = {name: python for name, python in pythons.items() if python}
    load = os.getloadavg()[0]
    results, outcomes = compare(engines, work_for(options), options.rounds)
    figures = {name: figures_of(result) for name, result in results.items()}
    text = "\n".join([*outcomes, "", *table(figures), "", *ratios(figures)])
    print(text)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))
    if options.write_docs:
        from bench.lines import with_section

        about = conditions(options, load)
        DOCS.write_text(with_section(DOCS.read_text(), "\n".join([*about, "", text, ""]), *MARKS))


def load_tokenizer(name: str) -> Any:
    from imp.text.tokenizer import Tokenizer
    from imp.weights.gguf_file import parse
    from imp.weights.mapped import map_file

    return Tokenizer.from_gguf(parse(map_file(SHARED / f"vocab/ggml-vocab-{name}.gguf")).metadata)


def work_for(options: argparse.Namespace) -> dict[str, Any]:
    """What engines are sent (bench.constrain_engine)."""
    from imp.text.encoders import LibraryEncoder

    tokenizer = load_tokenizer(options.tokenizer)
    encoder = tokenizer._vocabulary.encoder
    assert isinstance(encoder, LibraryEncoder), "read in this process"
    return {
        "vocabulary": options.tokenizer,
        "tokenizer": encoder.literal.to_str(),  # as the library they share reads it
        "tokens": [data.hex() for data in tokenizer.byte_table],
        "special": sorted(tokenizer.special_ids),
        "eos": min(tokenizer.eos_ids),
        "prepare_s": options.prepare / 1e3,
        "tasks": load_tasks(options.schemas, lambda text: tokenizer.encode(text, add_special=False)),
    }


def load_tasks(count: int, encode: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    """Schemas as text, with their instances as tokens."""
    paths = sorted((SHARED / "jsonschema/maskbench").glob("*.json"))
    tasks = []
    for path in random.Random(4).sample(paths, min(count, len(paths))):
        entry = json.loads(path.read_text())
        tests = [
            {"valid": test["valid"], "tokens": encode(json.dumps(test["data"], ensure_ascii=False))}
            for test in entry["tests"]
        ]
        tasks.append({"id": path.stem, "schema": json.dumps(entry["schema"]), "tests": tests})
    return tasks


# ---- runs


def compare(engines: dict[str, str], work: dict[str, Any], rounds: int) -> tuple[dict[str, list[Result]], list[str]]:
    """Results by engine and round, and in words how the schemas were chosen."""
    trial, outcomes, tasks = {}, [], work["tasks"]
    for name, python in engines.items():
        left = [task for task in tasks if all(passed(task, trial[other].get(task["id"])) for other in trial)]
        trial[name] = run(name, python, work | {"tasks": left})
        count = sum(passed(task, trial[name].get(task["id"])) for task in left)
        outcomes.append(f"- {name} compiles {count} of {len(left)} schemas and accepts all their valid instances")
    chosen = [cut(task, trial) for task in tasks if all(passed(task, each.get(task["id"])) for each in trial.values())]
    results: dict[str, list[Result]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, python in engines.items():
            results[name].append(run(name, python, work | {"tasks": chosen}))
    return results, outcomes


def passed(task: dict[str, Any], result: dict[str, Any] | None) -> bool:
    """Whether the schema was compiled in time, and all its valid instances were accepted."""
    if result is None or "refused" in result:
        return False
    return all(accepted for accepted, test in zip(result["accepted"], task["tests"], strict=True) if test["valid"])


def cut(task: dict[str, Any], trial: dict[str, Result]) -> dict[str, Any]:
    """The task with each instance ending at the first token that some engine does not accept."""
    tests = []
    for index, test in enumerate(task["tests"]):
        steps = min(result[task["id"]]["steps"][index] for result in trial.values())
        tests.append({**test, "tokens": test["tokens"][: steps + 1]})
    return {**task, "tests": tests}


def run(name: str, python: str, work: dict[str, Any]) -> Result:
    """One engine over all tasks in a process of its own; a schema that takes it PATIENCE_S is left out."""
    results: Result = {}
    tasks = list(work["tasks"])
    while tasks:
        for line in _lines(name, python, work | {"tasks": tasks}):
            results[line["id"]] = line
            tasks.pop(0)
        if tasks:
            print(f"{name}: {tasks.pop(0)['id']} takes too long, or ends it", file=sys.stderr)
    return results


def _lines(name: str, python: str, work: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(work, file)
        file.flush()
        command = [python, "-m", "bench.constrain_engine", name, file.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not process.stdout.readline():
                    raise RuntimeError(f"{name} does not start with {python}")
                while selector.select(PATIENCE_S) and (line := process.stdout.readline()):
                    yield json.loads(line)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


# ---- figures


def figures_of(rounds: list[Result]) -> dict[str, dict[str, float]]:
    """mean, percentiles and number of what was timed; each value is the median of the rounds."""
    common = [key for key in rounds[0] if all(key in result for result in rounds)]
    figures = {}
    for kind in ("mask", "again", "accept", "first", "prepare"):
        values = np.concatenate([np.median([np.atleast_1d(r[key][kind]) for r in rounds], axis=0) for key in common])
        figures[kind] = {
            "mean": float(values.mean()),
            **{f"p{each:g}": float(np.percentile(values, each)) for each in PERCENTILES},
            "max": float(values.max()),
            "n": float(len(values)),
        }
    return figures


ROWS = {
    "mask": "mask, us",
    "again": "mask, second request, us",
    "accept": "accept, us",
    "first": "compile + first mask, ms",
    "prepare": "prepare, ms",
}


def table(figures: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Markdown."""
    columns = ["mean", *(f"p{each:g}" for each in PERCENTILES), "max"]
    lines = [f"| what | engine | {' | '.join(columns)} | n |", "| --- | --- |" + " ---: |" * (len(columns) + 1)]
    for kind, title in ROWS.items():
        for name, values in figures.items():
            if values[kind]["max"] > 0.01:
                cells = " | ".join(f"{values[kind][column]:.1f}" for column in columns)
                lines.append(f"| {title} | {name} | {cells} | {values[kind]['n']:.0f} |")
    return lines


def ratios(figures: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Ours divided by a peer's, and what is asked for."""
    lines = []
    for what, peer, kind, column, most in TARGETS:
        if peer in figures:
            ratio = figures["imp"][kind][column] / figures[peer][kind][column]
            lines.append(f"- {what}: {ratio:.2f} of {peer}'s, at most {most} is asked for{_missed(ratio > most)}")
    again = figures["imp"]["again"]["mean"]
    lines.append(f"- second request mean: {again:.1f} us, at most {AGAIN_US:g} is asked for{_missed(again > AGAIN_US)}")
    return lines


def _missed(missed: bool) -> str:
    return " (missed)" if missed else ""


def conditions(options: argparse.Namespace, load: float) -> list[str]:
    from bench.measure import machine
    from bench.peer import installed

    python = "import sys, llguidance, xgrammar; from importlib.metadata import version; "
    python += "print(*(f'{x} {version(x)}' for x in ('llguidance', 'xgrammar', 'torch')), sep=', ')"
    peers = [options.peers, "-c", python]
    versions = subprocess.run(peers, capture_output=True, text=True).stdout.strip() if options.peers else "none"
    return [
        f"- date: {time.strftime('%Y-%m-%d')}",
        f"- machine: {machine()}",
        f"- load average at the start: {load:.1f}",
        f"- vocabulary: {options.tokenizer}; schemas drawn: {options.schemas}; rounds: {options.rounds}",
        f"- imp: Python {platform.python_version()}, numba {installed('numba')}; prepared for at most "
        f"{options.prepare:g} ms",
        f"- peers: {versions}",
    ]


if __name__ == "__main__":
    main()
