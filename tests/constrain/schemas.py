"""Schemas as automata over bytes, for tests: what is accepted, what is refused, and what a walk through them writes."""

from __future__ import annotations

import json
import random
from pathlib import Path

from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Nfa
from imp.constrain.reference import Reference
from imp.constrain.schema import SchemaOptions, compile_schema

ALPHABET = bytes(range(0x20, 0x7F)) + "\né😀".encode()
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

    def walk(self, rng: random.Random, most: int = 60) -> bytes:
        """A text of the language, byte by byte at random, closing what is open after `most` bytes. Fails at a dead end."""
        state, written, in_string = self._reference.first, bytearray(), False
        while True:
            live = [byte for byte in ALPHABET if self._reference.advance(state, bytes([byte]))]
            closing = [byte for byte in live if byte in (b'"' if in_string else b"]}")]
            if None in state and (not live or len(written) > most or rng.random() < 0.3):
                return bytes(written)
            assert live, f"a dead end after {bytes(written)!r}"
            byte = rng.choice(closing if closing and len(written) > most else live)
            in_string ^= byte == ord('"') and not _is_escaped(written)
            state = self._reference.advance(state, bytes([byte]))
            written.append(byte)
            assert len(written) < 100 * most, f"no end of {bytes(written[:200])!r}"


def _is_escaped(written: bytes) -> bool:
    """An odd number of backslashes comes last."""
    return (len(written) - len(written.rstrip(b"\\"))) % 2 == 1


def refusal(schema: object, **options: object) -> ConstraintError:
    """The error the schema is refused with."""
    try:
        compile_schema(schema, Nfa(), SchemaOptions(**options))
    except ConstraintError as error:
        return error
    raise AssertionError(f"not refused: {schema!r}")
