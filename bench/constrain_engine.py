"""One engine of constrained decoding on the work that bench.constrain sends: imp, llguidance or xgrammar.

    python -m bench.constrain_engine NAME WORK.json    prints one line of JSON a schema

Run by the interpreter that has the engine (3.11 or newer, NumPy). Engines are used as servers use them: one grammar
compiled a schema, one matcher a text, masks as bits. All allow any whitespace between the tokens of a JSON text.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

CLOCK = time.thread_time_ns


class Imp:
    """Through the server's compiler: its time is that of a request's worker until the first mask is there. What it
    does afterwards, while the prompt is computed, is `prepare`."""

    def __init__(self, work: dict[str, Any]) -> None:
        from bench.constrain import load_tokenizer
        from imp.constrain.automaton import Limits
        from imp.constrain.compiler import Compiler
        from imp.constrain.errors import ConstraintError
        from imp.constrain.schema import SchemaOptions, Whitespace, warm_formats
        from imp.constrain.vocab import VocabTables
        from imp.types import ConstraintKind, ConstraintSpec

        tokenizer = load_tokenizer(work["vocabulary"])
        tables = VocabTables.build(tokenizer.byte_table, tokenizer.special_ids, tokenizer.eos_ids)
        options = SchemaOptions(whitespace=Whitespace.ANY)
        compiler = Compiler(lambda: tables, options=options, limits=Limits(seconds=30), ahead_s=0)
        self.refusals, self.prepare_s = (ConstraintError,), work["prepare_s"]
        self.compile = lambda text: compiler.compile(ConstraintSpec(ConstraintKind.JSON_SCHEMA, text))
        compiler.warm()
        warm_formats()  # which is what it began

    def prepare(self, grammar: Any) -> None:
        grammar.prepare(self.prepare_s)

    def start(self, grammar: Any) -> Any:
        return grammar.start()

    def mask(self, matcher: Any) -> None:
        matcher.row()

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept(token))

    def ends(self, matcher: Any) -> bool:
        return bool(matcher.grammar.accepting(matcher.state))


class Llguidance:
    def __init__(self, work: dict[str, Any]) -> None:
        import llguidance
        from llguidance.numpy import allocate_token_bitmask
        from tokenizers import Tokenizer

        words = Tokenizer.from_str(work["tokenizer"])

        class Words:
            """Where text is forced, a mask has only the tokens this cuts it into: so it is the model's own."""

            eos_token_id, bos_token_id = work["eos"], None
            special_token_ids = work["special"]
            tokens = [bytes.fromhex(token) for token in work["tokens"]]  # noqa: RUF012

            def __call__(self, text: str) -> list[int]:
                return list(words.encode(text, add_special_tokens=False).ids)

        self.refusals = (ValueError, RuntimeError)
        self._lib = llguidance
        size = len(Words.tokens)
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words()), n_vocab=size)
        self._mask = allocate_token_bitmask(1, size)[0]

    def compile(self, text: str) -> Any:
        grammar = self._lib.LLMatcher.grammar_from_json_schema(text)
        matcher = self._lib.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        self.mask(matcher)
        return matcher

    def prepare(self, grammar: Any) -> None:
        pass

    def start(self, grammar: Any) -> Any:
        return grammar.deep_copy()

    def mask(self, matcher: Any) -> None:
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(int(self._mask[token >> 5]) >> (token & 31) & 1) and bool(matcher.consume_token(token))

    def ends(self, matcher: Any) -> bool:
        return bool(matcher.is_accepting())


class Xgrammar:
    """Compiled by one thread, since it is thread time that is measured, and nothing kept between schemas."""

    def __init__(self, work: dict[str, Any]) -> None:
        import torch
        import xgrammar

        torch.set_num_threads(1)
        tokens = [bytes.fromhex(token) for token in work["tokens"]]
        info = xgrammar.TokenizerInfo(
            tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[work["eos"]]
        )
        self.refusals = (Exception,)  # it has no class of its own for what it refuses
        self._lib = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, text: str) -> Any:
        self._compiler.clear_cache()
        grammar = self._compiler.compile_json_schema(text, any_whitespace=True)
        self.mask(self.start(grammar))
        return grammar

    def prepare(self, grammar: Any) -> None:
        pass

    def start(self, grammar: Any) -> Any:
        return self._lib.GrammarMatcher(grammar)

    def mask(self, matcher: Any) -> None:
        matcher.fill_next_token_bitmask(self._mask)

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))

    def ends(self, matcher: Any) -> bool:
        return bool(matcher.is_completed() if hasattr(matcher, "is_completed") else matcher.is_terminated())


ENGINES = {"imp": Imp, "llguidance": Llguidance, "xgrammar": Xgrammar}


def measure(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Times of one schema: `first` and `prepare` in ms; us of every mask and every accepted token of all instances,
    and of the masks of the valid instances once more, with the same grammar (`again`); per instance how many tokens
    were accepted, and whether it was. Thread CPU time."""
    times: dict[str, list[float]] = {"mask": [], "accept": [], "again": []}
    started = CLOCK()
    try:
        grammar = engine.compile(task["schema"])
    except engine.refusals as error:
        return {"id": task["id"], "refused": str(error)[:200]}
    first = CLOCK()
    engine.prepare(grammar)
    prepared = CLOCK()
    runs = [_run(engine, grammar, test, times["mask"], times["accept"]) for test in task["tests"]]
    for test in task["tests"]:
        if test["valid"]:
            _run(engine, grammar, test, times["again"], [])
    return {
        **{"id": task["id"], "first": (first - started) / 1e6, "prepare": (prepared - first) / 1e6, **times},
        **{"steps": [steps for steps, _ in runs], "accepted": [accepted for _, accepted in runs]},
    }


def _run(engine: Any, grammar: Any, test: dict[str, Any], masks: list[float], accepts: list[float]) -> tuple[int, bool]:
    matcher = engine.start(grammar)
    for step, token in enumerate(test["tokens"]):
        started = CLOCK()
        engine.mask(matcher)
        filled = CLOCK()
        accepted = engine.accept(matcher, token)
        accepts.append((CLOCK() - filled) / 1e3)
        masks.append((filled - started) / 1e3)
        if not accepted:
            return step, False
    return len(test["tokens"]), engine.ends(matcher)


def main() -> None:
    work = json.loads(Path(sys.argv[2]).read_text())
    engine: Any = ENGINES[sys.argv[1]](work)
    gc.collect()
    gc.freeze()
    gc.disable()
    print(flush=True)  # ready
    for task in work["tasks"]:
        print(json.dumps(measure(engine, task)), flush=True)


if __name__ == "__main__":
    main()
