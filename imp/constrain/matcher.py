"""Where one sequence stands in its grammar: an int, and those before it for as long as they may be returned to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .automaton import STUCK, Grammar
from .layout import DEAD
from .masks import JOB_ROW, JOB_STATE, JOB_TOKEN, NO_ROW

HISTORY = 256  # steps that can be taken back
FORCED_BYTES = 256
MARK = 0xFF  # begins the stand-in of a control token (nfa.special)


class Matcher:
    """types.Constraint over a grammar. Belongs to the engine thread. Errors latch: `error` says what happened, the mask
    is empty, `done` is true, and nothing raises. An error met along a draft is forgotten with the draft."""

    __slots__ = ("__weakref__", "_stuck", "error", "grammar", "states", "tokens")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.states = [grammar.first]  # the last one is where it stands
        self.tokens = [-1]  # by which each was reached
        self.error: str | None = None
        self._stuck = 0  # how many states there must be for the error to be met
        grammar.matchers.add(self)

    @property
    def state(self) -> int:
        return self.states[-1]

    @property
    def done(self) -> bool:
        """No token can follow but one that ends the text."""
        return self.error is not None or self.grammar.finished(self.states[-1])

    def fork(self) -> Matcher:
        """Another one that stands here."""
        other = Matcher(self.grammar)
        other.states, other.tokens = self.states.copy(), self.tokens.copy()
        other.error, other._stuck = self.error, self._stuck
        return other

    def _latch(self, error: Exception, ahead: int = 0) -> None:
        """No way on from here, or (`ahead`) by what was tried to go on with."""
        self.error, self._stuck = str(error) or type(error).__name__, len(self.states) + ahead

    def accept(self, token: int) -> bool:
        """Go on by `token`; stays where it is, and says so, where that is not allowed."""
        if self.error is not None:
            return False
        try:
            self.grammar.trim()
            state = self.grammar.advance(self.states[-1], token)
        except STUCK as error:
            self._latch(error, ahead=1)
            return False
        if state == DEAD:
            return False
        self.enter(state, token)
        return True

    def enter(self, state: int, token: int) -> None:
        """Stand at `state`, to which `token` led."""
        self.states.append(state)
        self.tokens.append(token)
        if len(self.states) > 2 * HISTORY:
            del self.states[: -HISTORY - 1], self.tokens[: -HISTORY - 1]

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens (HISTORY at most), and what was tried behind them."""
        assert 0 <= count < len(self.states), "more is taken back than was accepted"
        if count:
            del self.states[-count:], self.tokens[-count:]
        if self._stuck > len(self.states):
            self.error, self._stuck = None, 0

    def ready(self) -> bool:
        """Whether everything else answers at once; else what that takes is worked out beside, and nothing else may be
        asked of this or another matcher of its grammar until this turns true."""
        return self.error is not None or self.grammar.ready(self.states[-1])

    def row(self) -> int | None:
        """The row of the vocabulary's pool that is the mask here, bits by rank; None after an error."""
        if self.error is None:
            try:
                return self.grammar.row(self.states[-1])
            except STUCK as error:
                self._latch(error)
        return None

    def fill_mask(self, out: np.ndarray) -> None:
        """out: uint32 [tables.words]; which token a bit stands for, `tables.bit_tokens` and `bit_aliases` say."""
        tables, row = self.grammar.tables, self.row()
        assert tables is not None
        if row is None:
            out[:] = 0
        else:
            out[:] = tables.pool[row]

    def forced(self) -> list[int]:
        """Tokens to propose for the text that has to follow, as the grammar's tokenizer cuts it after the last token.

        Those at the end that a longer token of the vocabulary could go over are left out. These are drafts: whoever
        takes them has them verified, so that a cut the model would not have made is only work in vain."""
        if self.error is not None or self.grammar.encode is None:
            return []
        try:
            data = self.grammar.forced_bytes(self.states[-1], FORCED_BYTES)
        except STUCK:  # whoever gets there will say so
            return []
        if data[:1] == bytes([MARK]):
            return [int.from_bytes(data[1:4], "big")] if len(data) >= 4 else []
        return self._cut(data.partition(bytes([MARK]))[0]) if data else []

    def _cut(self, data: bytes) -> list[int]:
        """`data` in tokens after the last one, without those whose end is not settled."""
        tables, encode, last = self.grammar.tables, self.grammar.encode, self.tokens[-1]
        assert tables is not None and encode is not None
        before = tables.bytes_of(last) if last >= 0 else b""
        tokens = encode(before + data)
        if before:
            if tokens[:1] != [last]:  # cut elsewhere than the model did
                return []
            del tokens[0]
        settled, at = 0, 0
        for token in tokens:
            piece = tables.bytes_of(token)
            if data[at : at + len(piece)] != piece or tables.extends(data[at:]):
                break
            settled, at = settled + 1, at + len(piece)
        return tokens[:settled]


def step_together(matchers: Sequence[Matcher], tokens: Sequence[int]) -> np.ndarray:
    """One step of a batch in one call: every matcher accepts its token (-1: none), and its mask is looked up.

    Returns int32 [n]: rows of the vocabulary's pool; -1 where the token was not allowed, or an error latched."""
    for grammar in {matcher.grammar for matcher in matchers}:
        grammar.trim()
    given = [
        matcher.grammar.job(matcher.states[-1] if matcher.error is None else DEAD, token)
        for matcher, token in zip(matchers, tokens, strict=True)
    ]
    jobs = np.array(given, np.int64).reshape(-1, 4)
    if matchers:
        matchers[0].grammar.run_jobs(jobs)
    for matcher, token, job in zip(matchers, tokens, jobs, strict=True):
        moved = token >= 0 and job[JOB_TOKEN] < 0 and job[JOB_STATE] != DEAD
        if moved:
            matcher.enter(int(job[JOB_STATE]), token)
        if job[JOB_ROW] < NO_ROW:  # something had to be provided first
            allowed = moved or token < 0 or matcher.accept(token)
            row = matcher.row() if allowed else None
            job[JOB_ROW] = NO_ROW if row is None else row
    return jobs[:, JOB_ROW].astype(np.int32)
