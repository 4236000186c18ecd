"""From what a client wrote to a grammar over the model's vocabulary, and what was compiled before.

Compiling runs in a worker, is refused beyond its budgets, and ends soon after nobody wants it any more. A grammar that
is kept serves every later request with an equal spec, and what one of them made it find, the others find there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import cast

from ..types import CompiledGrammar, ConstraintKind, ConstraintSpec, Headers, Reasoning
from .automaton import DeadEnd, Encode, Grammar, Limits
from .bars import Bar
from .calling import compile_calls
from .clock import Rest, Stop, timed
from .code import DEFAULT_CACHE
from .compile import compile_choice, compile_regex
from .errors import Code, ConstraintError, too_large
from .framing import NO_FRAME, Frame, Thoughts, Ways, outputs
from .free import spelled
from .gbnf import compile_gbnf
from .grammars import GrammarCache
from .lark import compile_lark
from .nfa import Nfa
from .schema import SchemaOptions, Whitespace, compile_schema, json_base, warm_formats
from .thinking import Bars, Markers, ThinkingGrammar, cut
from .tools import NO_CONTROLS, Vocabulary
from .vocab import VocabTables

MAX_BYTES = 256 << 20
MAX_TEXT = 1 << 20  # characters of a spec
DEFAULT_LIMITS = Limits()
SCHEMA_OPTIONS = SchemaOptions()
OF_JSON = (ConstraintKind.JSON_SCHEMA, ConstraintKind.TOOLS)
AHEAD_S = 0.05  # spent on what the first request will need, while its prompt is computed
WARM_S, WARM_RESTS = 30.0, 4.0  # of processor time for all formats at most; of waiting, for each second of it


class Compiler:
    """For one vocabulary; may be used by several threads. Implements chat.prepare.ConstraintCompiler."""

    def __init__(
        self,
        tables: Callable[[], VocabTables],
        encode: Encode | None = None,
        *,
        options: SchemaOptions = SCHEMA_OPTIONS,
        vocabulary: Callable[[], Vocabulary] = lambda: NO_CONTROLS,
        max_bytes: int = MAX_BYTES,
        limits: Limits = DEFAULT_LIMITS,
        cache_dir: Path = DEFAULT_CACHE,
        ahead_s: float = AHEAD_S,
    ) -> None:
        """tables: of the vocabulary, made when first needed.  encode: the tokenizer, for tokens that are certain to
        follow.  options: of JSON, where a spec does not say.  vocabulary: its control tokens.  max_bytes: held by the
        grammars that are kept, at least the latest one.  cache_dir: of compiled code.  ahead_s: what may be spent on a
        new grammar once it was returned, until it is first used."""
        self._make_tables, self._vocabulary = cache(tables), cache(vocabulary)
        self._encode, self._options = encode, options
        self._limits, self._cache_dir, self._ahead_s = limits, cache_dir, ahead_s
        self._known = GrammarCache(max_bytes)
        self._bar = cache(self._make_bar)

    @property
    def tables(self) -> VocabTables:
        return self._make_tables()

    def warm(self) -> None:
        """Do now what the first compilation would otherwise wait for, and then in a thread what many would."""
        self.compile(ConstraintSpec(ConstraintKind.JSON_SCHEMA, '{"type": "object"}'))
        Thread(target=_warm_gently, name="formats", daemon=True).start()

    def cached(self, spec: ConstraintSpec) -> Grammar | None:
        """The grammar of an equal spec."""
        return self._known.get(spec)

    def compile(self, spec: ConstraintSpec, stop: Stop = lambda: False, rest: Rest = lambda took_s: None) -> Grammar:
        """The grammar of a spec, with the mask of its beginning. Raises ConstraintError; soon after `stop` turns true,
        too.  rest: called again and again meanwhile, so that others get on."""
        if (known := self.cached(spec)) is not None:
            return known
        self._make_tables(), self._vocabulary()  # before the clock runs
        with timed(self._limits.seconds, stop, rest):
            nfa = Nfa(json_base(_whitespace(spec, self._options))) if spec.kind in OF_JSON else Nfa()
            try:
                grammar = self._grammar(spec, nfa)
            except BaseException:
                nfa.forget()
                raise
        if self._ahead_s:
            grammar.prepare_aside(self._ahead_s, rest)
        return self._known.put(spec, grammar)

    def _grammar(self, spec: ConstraintSpec, nfa: Nfa) -> Grammar:
        try:
            start = build(spec, nfa, self._options, self._vocabulary())
            grammar = Grammar(nfa, start, self.tables, self._limits, self._cache_dir, self._encode)
            grammar.row(grammar.first)
        except DeadEnd as dead:
            raise too_large(str(dead)) from None
        except MemoryError:
            raise too_large("there is no memory for it") from None
        except RecursionError:
            raise too_large("it is nested too deeply") from None
        return grammar

    def thinking(
        self,
        reasoning: Reasoning,
        budget: int,
        close_tokens: Sequence[int],
        inner: CompiledGrammar | None,
        headers: Headers | None = None,
        open_tokens: int = 0,
    ) -> CompiledGrammar | None:
        """`inner`, whose spec had the same reasoning, or anything, with this reasoning ended at the budget in tokens.

        close_tokens: its closing marker; where they do not write that, it is `inner` alone.  headers, open_tokens: of
        the messages in which more of it may come, and how many tokens begin one."""
        spellings = self._vocabulary().spellings
        open, close = spelled(reasoning.open, spellings), spelled(reasoning.close, spellings)
        tokens = cut(self.tables, close, close_tokens)
        if tokens is None:
            return inner
        if reasoning.again is None or headers is None:
            markers = Markers(open, close, tokens, late=reasoning.late)
            bars = Bars(close=self._bar(b"", close) if reasoning.late else None)
        else:
            begins = tuple(spelled(each, spellings) for each in headers.begins)
            ends = tuple(spelled(each, spellings) for each in headers.ends)
            markers = Markers(open, close, tokens, begins, ends)
            bars = Bars(self._bar(spelled(reasoning.again, spellings), open), open_tokens)
        return ThinkingGrammar(self.tables, markers, reasoning.started, budget, inner, bars)

    def _make_bar(self, head: bytes, marker: bytes) -> Bar:
        return Bar(self.tables, head, marker)


def build(
    spec: ConstraintSpec,
    nfa: Nfa,
    options: SchemaOptions = SCHEMA_OPTIONS,
    vocabulary: Vocabulary = NO_CONTROLS,
) -> int:
    """The first node of the automaton of a spec. Raises ConstraintError."""
    if len(spec.text) > MAX_TEXT:
        reason = f"too large: it has {len(spec.text)} characters, {MAX_TEXT} are allowed"
        raise ConstraintError(Code.TOO_LARGE, "", reason)
    if spec.kind is ConstraintKind.TOOLS:
        ways = compile_calls(spec, nfa, options, vocabulary, lambda answer: _answer(answer, nfa, options))
    else:
        ways = Ways(_answer(spec, nfa, options))
    frame = cast(Frame, spec.frame) or NO_FRAME
    return outputs(nfa, ways, frame, _thoughts(spec.reasoning, vocabulary), vocabulary)


def _thoughts(reasoning: Reasoning | None, vocabulary: Vocabulary) -> Thoughts | None:
    if reasoning is None:
        return None
    open, close, turn = (
        spelled(each, vocabulary.spellings) for each in (reasoning.open, reasoning.close, reasoning.turn)
    )
    return Thoughts(b"" if reasoning.started else open, close, turn)


def _answer(spec: ConstraintSpec, nfa: Nfa, options: SchemaOptions) -> int:
    """The first node of an answer in words, without what stands around it."""
    if spec.kind is ConstraintKind.JSON_SCHEMA:
        options = replace(options, whitespace=_whitespace(spec, options))
        return compile_schema(json.loads(spec.text), nfa, options)
    if spec.kind is ConstraintKind.CHOICE:
        return compile_choice(json.loads(spec.text), nfa)
    if spec.kind is ConstraintKind.REGEX:
        return compile_regex(spec.text, nfa)
    return compile_gbnf(spec.text, nfa) if "::=" in spec.text else compile_lark(spec.text, nfa)


def _whitespace(spec: ConstraintSpec, options: SchemaOptions) -> Whitespace:
    if spec.compact is None:
        return options.whitespace
    return Whitespace.COMPACT if spec.compact else Whitespace.BOUNDED


def _warm_gently() -> None:
    """Formats take a third of a second of Python, in which the first requests may be computed already."""
    with timed(WARM_S, rest=lambda took_s: time.sleep(WARM_RESTS * took_s)):
        warm_formats()
