"""llguidance or xgrammar on the work that bench.constrain sends: run by an interpreter that has them.

    python -m bench.constrain_peer llguidance < work.json > times.json

Both are used as servers use them: one grammar compiled a schema, one matcher a text, masks as bits by token.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.constrain import measure


class Llguidance:
    refusals = (ValueError, RuntimeError)

    def __init__(self, work: dict[str, Any]) -> None:
        import llguidance
        from llguidance.numpy import allocate_token_bitmask

        tokens = [bytes.fromhex(token) for token in work["tokens"]]
        numbers = {token: number for number, token in enumerate(tokens)}
        longest = max(map(len, tokens))

        class Words:
            eos_token_id, bos_token_id = work["eos"], None
            special_token_ids = work["special"]

            def __init__(self) -> None:
                self.tokens = tokens

            def __call__(self, text: Any) -> list[int]:
                """The longest token each time; it is asked for text that is forced."""
                data, found = text.encode() if isinstance(text, str) else bytes(text), []
                while data:
                    size = next(size for size in range(min(longest, len(data)), 0, -1) if data[:size] in numbers)
                    found.append(numbers[data[:size]])
                    data = data[size:]
                return found

        self._lib = llguidance
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words()), n_vocab=len(tokens))
        self._mask = allocate_token_bitmask(1, len(tokens))[0]

    def compile(self, schema: Any) -> Any:
        grammar = self._lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = self._lib.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
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
    refusals = (Exception,)  # it has no class of its own for what it refuses

    def __init__(self, work: dict[str, Any]) -> None:
        import torch
        import xgrammar

        torch.set_num_threads(1)
        tokens = [bytes.fromhex(token) for token in work["tokens"]]
        self._lib = xgrammar
        info = xgrammar.TokenizerInfo(
            tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[work["eos"]]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema: Any) -> Any:
        self._compiler.clear_cache()
        return self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True)

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


if __name__ == "__main__":
    given = json.load(sys.stdin)
    engine = {"llguidance": Llguidance, "xgrammar": Xgrammar}[sys.argv[1]](given)
    print(json.dumps(measure(engine, given["tasks"])))
