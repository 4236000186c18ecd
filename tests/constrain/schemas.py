"""Schemas as automata over bytes, for tests: what is accepted, what is refused, and what a walk through them writes."""

from __future__ import annotations

import json
import random
from pathlib import Path

from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Nfa
from imp.constrain.reference import Reference
from imp.constrain.schema import SchemaOptions, compile_schema

SHARED = Path(__file__).resolve().parents[3] / "shared"


class Writer:
    """The automaton of one schema."""

    def __init__(self, schema: object, **options: object) -> None:
        nfa = Nfa()
        self._reference = Reference(nfa, compile_schema(schema, nfa, SchemaOptions(**options)))

    def accepts(self, text: str | bytes) -> bool:
        data = text if isinstance(text, bytes) else text.encode()
        return None in self._reference.advance(self._reference.first, data)

    def begins(self, text: str | bytes) -> bool:
        """Some accepted text begins like this."""
        data = text if isinstance(text, bytes) else text.encode()
        return bool(self._reference.advance(self._reference.first, data))

    def accepts_value(self, value: object) -> bool:
        """The value as a JSON writer puts it: without spaces, with spaces, and over several lines."""
        texts = [
            json.dumps(value, ensure_ascii=False, separators=(",", ":")),
            json.dumps(value, ensure_ascii=False),
            json.dumps(value, ensure_ascii=False, indent=2),
        ]
        answers = {self.accepts(text) for text in texts}
        assert len(answers) == 1, f"whitespace decides over {value!r}"
        return answers.pop()

    def walk(self, rng: random.Random, most: int = 400, alphabet: bytes = bytes(range(256))) -> bytes:
        """A text of the language, byte by byte at random; fails where nothing can follow. Closes what it can after
        `most` bytes."""
        state, written = self._reference.first, b""
        while True:
            live = [byte for byte in alphabet if self._reference.advance(state, bytes([byte]))]
            if None in state and (not live or rng.random() < 0.3 or len(written) > most):
                return written
            assert live, f"a dead end after {written!r}"
            if len(written) > most:
                live = [byte for byte in live if byte in b'"]}'] or live
            byte = rng.choice(live)
            state = self._reference.advance(state, bytes([byte]))
            written += bytes([byte])
            assert len(written) < 50 * most, f"no end of {written[:200]!r}"


def refusal(schema: object, **options: object) -> ConstraintError:
    """The error the schema is refused with."""
    try:
        compile_schema(schema, Nfa(), SchemaOptions(**options))
    except ConstraintError as error:
        return error
    raise AssertionError(f"not refused: {schema!r}")
