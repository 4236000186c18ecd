"""Constrained decoding over MaskBench's schemas: what a mask, an advance and a compilation cost, here and in peers.

    python -m bench.constrain [--tokenizer gpt-2|qwen2|llama-bpe] [--schemas 100] [--prepare MS] [--peers PYTHON]

Times are thread CPU time in microseconds (milliseconds for compilation), each with some 0.9 us of the clock's own. A
mask is filled for every token of every instance of every schema, as a server would; the second pass goes over the valid
instances again with the grammars of the first. "first" is a compilation and the mask of the first token. What is lazy
is then lowered for up to MS milliseconds ("prepare"), as a server does while it computes the prompt. PYTHON is an interpreter that has llguidance, xgrammar or both; they get
the same schemas, tokens and vocabulary over a pipe, and run by themselves, one after the other.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared/data"
PERCENTILES = (50, 95, 99, 99.9)
CLOCK = time.thread_time_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="qwen2", help="a vocabulary of the data beside the project")
    parser.add_argument("--schemas", type=int, default=100, help="how many, drawn by a fixed seed")
    parser.add_argument("--prepare", type=float, default=50, help="0: everything is lowered when a mask needs it")
    parser.add_argument("--peers", help="an interpreter with llguidance or xgrammar")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    tasks = load_tasks(options.schemas, lambda text: tokenizer.encode(text, add_special=False))
    report("imp", measure(Imp(tokenizer, options.prepare / 1e3), tasks))
    if options.peers:
        work = {
            "tokens": [data.hex() for data in tokenizer.byte_table],
            "special": sorted(tokenizer.special_ids),
            "eos": min(tokenizer.eos_ids),
            "tasks": tasks,
        }
        for peer in ("llguidance", "xgrammar"):
            run_peer(options.peers, peer, work)


def load_tokenizer(name: str) -> Any:
    from imp.text.tokenizer import Tokenizer
    from imp.weights.gguf_file import parse
    from imp.weights.mapped import map_file

    return Tokenizer.from_gguf(parse(map_file(SHARED / f"vocab/ggml-vocab-{name}.gguf")).metadata)


def load_tasks(count: int, encode: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    """Schemas with their instances as tokens."""
    paths = sorted((SHARED / "jsonschema/maskbench").glob("*.json"))
    tasks = []
    for path in random.Random(4).sample(paths, min(count, len(paths))):
        entry = json.loads(path.read_text())
        tests = [
            {"valid": test["valid"], "tokens": encode(json.dumps(test["data"], ensure_ascii=False))}
            for test in entry["tests"]
        ]
        tasks.append({"id": path.stem, "schema": entry["schema"], "tests": tests})
    return tasks


class Imp:
    """This project, with whitespace as json.dumps writes it allowed, which is what the instances have."""

    def __init__(self, tokenizer: Any, prepare_s: float) -> None:
        from imp.constrain.automaton import Grammar, Limits
        from imp.constrain.errors import ConstraintError
        from imp.constrain.nfa import Nfa
        from imp.constrain.schema import compile_schema
        from imp.constrain.vocab import VocabTables

        self.refusals, self.prepare_s = (ConstraintError,), prepare_s
        started = CLOCK()
        tables = VocabTables.build(tokenizer.byte_table, tokenizer.special_ids, tokenizer.eos_ids)
        print(f"vocabulary tables: {(CLOCK() - started) / 1e9:.2f} s for {len(tables.rank)} tokens")

        def compiled(schema: Any) -> Any:
            nfa = Nfa()
            return Grammar(nfa, compile_schema(schema, nfa), tables, Limits(wall_s=30))

        self.compile = compiled
        self.compile({"type": "object"}).start().row()  # code and row pool are there before the first schema

    def prepare(self, grammar: Any) -> None:
        grammar.prepare(self.prepare_s)

    def start(self, grammar: Any) -> Any:
        return grammar.start()

    def mask(self, matcher: Any) -> None:
        matcher.row()

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.accept(token)

    def ends(self, matcher: Any) -> bool:
        return matcher.grammar.accepting(matcher.state)


def measure(engine: Any, tasks: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Times by what they are of, and which schemas passed."""
    times: dict[str, list[float]] = {name: [] for name in ("compile", "first", "prepare", "mask", "again", "accept")}
    outcome: dict[str, list[str]] = {"pass": [], "under": [], "over": [], "refused": []}
    gc.collect()
    gc.freeze()
    gc.disable()
    for task in tasks:
        started = CLOCK()
        try:
            grammar = engine.compile(task["schema"])
        except engine.refusals:
            outcome["refused"].append(task["id"])
            continue
        times["compile"].append((CLOCK() - started) / 1e6)
        started = CLOCK()
        engine.mask(engine.start(grammar))
        times["first"].append(times["compile"][-1] + (CLOCK() - started) / 1e6)
        started = CLOCK()
        engine.prepare(grammar)
        times["prepare"].append((CLOCK() - started) / 1e6)
        wrong = {
            bool(test["valid"]) for test in task["tests"] if run(engine, grammar, test, times, "mask") != test["valid"]
        }
        for test in task["tests"]:
            if test["valid"]:
                run(engine, grammar, test, times, "again")
        outcome["under" if False in wrong else "over" if wrong else "pass"].append(task["id"])
    gc.enable()
    return {**times, **{name: [float(len(ids))] for name, ids in outcome.items()}}


def run(engine: Any, grammar: Any, test: dict[str, Any], times: dict[str, list[float]], name: str) -> bool:
    """Whether the instance is accepted; times of its masks are added under `name`."""
    matcher = engine.start(grammar)
    for token in test["tokens"]:
        started = CLOCK()
        engine.mask(matcher)
        filled = CLOCK()
        accepted = engine.accept(matcher, token)
        times["accept"].append((CLOCK() - filled) / 1e3)
        times[name].append((filled - started) / 1e3)
        if not accepted:
            return False
    return bool(engine.ends(matcher))


def report(name: str, result: dict[str, list[float]]) -> None:
    counts = ", ".join(f"{int(result[kind][0])} {kind}" for kind in ("pass", "under", "over", "refused"))
    print(f"{name}: {counts} of the schemas")
    for kind, unit in (
        ("mask", "us"),
        ("again", "us"),
        ("accept", "us"),
        ("compile", "ms"),
        ("first", "ms"),
        ("prepare", "ms"),
    ):
        if values := result[kind]:
            columns = " ".join(f"p{each:g} {np.percentile(values, each):.1f}" for each in PERCENTILES)
            print(f"  {kind:8} {unit}  mean {np.mean(values):.1f} {columns} max {max(values):.0f}  n {len(values)}")
    sys.stdout.flush()


# ---- peers: this file is run by their interpreter


def run_peer(python: str, peer: str, work: dict[str, Any]) -> None:
    command = [python, "-m", "bench.constrain_peer", peer]
    done = subprocess.run(
        command, input=json.dumps(work), text=True, capture_output=True, cwd=Path(__file__).parents[1]
    )
    if done.returncode:
        print(f"{peer}: not measured: {done.stderr.strip().splitlines()[-1:]}")
    else:
        report(peer, json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
