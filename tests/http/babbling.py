"""A model that babbles: any token that a constraint allows, drawn at random, with a liking for marks.

What comes out is the grammar's doing alone, so whatever may go wrong with a constraint does so sooner or later. The
draws depend on the request's seed and on nothing else: streamed or not, the same request gives the same text.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from imp import settings
from imp.bundle import Bundle
from imp.chat.formats.base import Format
from imp.chat.formats.detect import detect
from imp.chat.template import ChatTemplate
from imp.constrain.compiler import Compiler
from imp.constrain.tools import Text
from imp.script import file, load
from imp.script.vocabulary import control_tokens
from imp.text.tokenizer import Tokenizer
from imp.types import Batch, RowResult
from imp.types import Sequence as Seq

from .spoken import Spoken, served

# tokens beside the bytes: words, halves of characters, and several marks in one token
PIECES = ("Oslo", " the", "42", '": "', '", "', '"}', "}}", '{"', "\n\n", "é", "日本", "true", "null", "-1", "</", "<", " = ")
HALVES = (b"\xc3", b"\xe6\x97", b'x"', b'a", ')
CLOSING = frozenset(b'"}])>\n')


class BabblingRunner:
    """types.Runner. marks: texts of the model's formats, which it is fond of: it begins them often, and finishes what it
    has begun where it may."""

    def __init__(self, bundle: Bundle, marks: Sequence[str]) -> None:
        tokenizer: Tokenizer = bundle.tokenizer
        self._ends = tokenizer.eos_ids
        self._compiler = bundle.facts.constraints
        assert isinstance(self._compiler, Compiler)
        self._marks = [tokenizer.encode(mark, add_special=False, parse_special=True) for mark in marks]
        self._vocab = tokenizer.vocab_size
        self._draws: WeakKeyDictionary[Seq, random.Random] = WeakKeyDictionary()
        self._begun: WeakKeyDictionary[Seq, list[int]] = WeakKeyDictionary()  # the rest of a mark
        self._bits: np.ndarray | None = None

    def step(self, batch: Batch) -> list[RowResult]:
        return [RowResult([self._draw(row.seq)] if row.reaches_end else []) for row in batch.rows]

    def _draw(self, seq: Seq) -> int:
        rng = self._draws.setdefault(seq, random.Random(f"{seq.request.sampling.seed}"))
        allowed = self._allowed(seq)
        rest = self._begun.pop(seq, [])
        if not rest and self._marks and rng.random() < 0.15:
            rest = rng.choice(self._marks)
        if rest and rest[0] in allowed:
            self._begun[seq] = rest[1:]
            return rest[0]
        for liked, share in ((self._ends & allowed, 0.1), (CLOSING & allowed, 0.15)):
            if liked and rng.random() < share:
                return rng.choice(sorted(liked))
        return rng.choice(sorted(allowed))

    def _allowed(self, seq: Seq) -> set[int]:
        if seq.constraint is None:
            return set(range(self._vocab))
        if self._bits is None:
            self._bits = np.asarray(self._compiler.tables.rank)
        mask = np.zeros(-(-int(self._bits.max() + 1) // 32), np.uint32)
        seq.constraint.fill_mask(mask)
        allowed = np.flatnonzero(mask[self._bits // 32] >> (self._bits % 32).astype(np.uint32) & 1)
        assert len(allowed), "nothing may come here"
        return set(allowed.tolist())


def marks(format: Format) -> tuple[str, ...]:
    """The texts a format's calls are made of."""
    texts: list[Text] = [*format.openers, *format.closers]
    for each in format.envelopes:
        texts += [each.before_name, each.after_name, each.after, each.opener, each.separator, each.closer]
        if each.parameters is not None:
            texts += [each.parameters.end, each.parameters.before_key]
    pieces = [piece for text in texts for piece in ((text,) if isinstance(text, str) else text)]
    return tuple(dict.fromkeys(piece for piece in pieces if isinstance(piece, str) and piece))


@asynccontextmanager
async def babbling(template: str, *, parser: str = "auto", control: Sequence[str] = ()) -> AsyncIterator[Spoken]:
    """A server of a model with this template. parser: --tool-call-parser.  control: further control tokens."""
    voice = detect(ChatTemplate(template), parser=parser)
    assert voice.format is not None
    fond = (*marks(voice.format), *((voice.thinking.open, voice.thinking.close) if voice.thinking else ()))
    controls = [*control_tokens(template), *control]
    whole = [text for text in fond if text in controls or not any(each in text for each in controls)]
    told = file.parse({"replies": [{"pieces": [*PIECES, *whole]}], "control_tokens": [*control]}, Path())
    pieces = (*told.replies[0].pieces, *HALVES)
    script = replace(told, template=template, replies=(replace(told.replies[0], pieces=pieces),))
    bundle = load.build(script, settings.load(["--tool-call-parser", parser]))
    async with served(replace(bundle, runner=BabblingRunner(bundle, fond))) as spoken:
        yield spoken
