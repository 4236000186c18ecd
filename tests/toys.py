"""Small stand-ins for what surrounds the scheduler and the engine, and the judge of what comes out.

The toy model has a readable KV cache. As in a real one a cell depends on every token before it, and a token is drawn
by reading every cell through the block table; so any paging mistake (a wrong block, a stale share, a block freed too
early, a bad rollback, a hash without context) changes the text, whatever the schedule was.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count as counting
from operator import mul
from queue import SimpleQueue

from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.pace import Pace
from imp.sched.scheduler import Scheduler
from imp.sched.speculation import Speculation
from imp.sched.tiers import Below
from imp.types import (
    Batch,
    Constraint,
    Delta,
    Event,
    Failed,
    Finished,
    PromptLogprobs,
    Reason,
    Request,
    Row,
    RowResult,
    Sequence,
    Started,
    TokenLogprob,
    Usage,
)

# -- the toy vocabulary: every byte, two control tokens, and some longer pieces --------------------------------------

EOS, BOS = 256, 257
PIECES = (b"one", b" two", b" ST", b"OP", b"ME", b" three", b"ART", "é".encode(), "日".encode()[:2], "本".encode()[1:])
VOCAB: tuple[bytes, ...] = (*(bytes([b]) for b in range(256)), b"", b"", *PIECES)
IDS = {piece.decode(): 258 + i for i, piece in enumerate(PIECES[:8])}
# what the toy model says: letters, pieces, halves of characters, a control token and, now and then, the end
LANGUAGE = (*b"abcd ", *range(258, len(VOCAB)), 0xC3, 0xA9, BOS, EOS)


class ToyTokenizer:
    """A token a byte; pieces occur in output only."""

    eos_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return b"".join(VOCAB[t] for t in tokens).decode(errors="replace")


class ToyDecoder:
    """Incremental UTF-8 with stop strings; holds back what may still become one."""

    def __init__(self, request: Request) -> None:
        self.stops = request.limits.stop_strings
        self.include = request.limits.include_stop
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""
        self.shown = 0
        self.stopped: str | None = None
        self.reasoning_tokens = 0
        self.thinks = False

    @property
    def seen(self) -> int:
        return len(self.text)

    def push(self, token: int) -> str:
        self.text += self.utf8.decode(VOCAB[token])
        found = [(at, i) for i, s in enumerate(self.stops) if (at := self.text.find(s, self.shown)) >= 0]
        if found:
            at, i = min(found)
            self.stopped = self.stops[i]
            return self._show(at + len(self.stopped) * self.include)
        held = 0
        for stop in self.stops:
            for length in range(1, len(stop)):
                if self.text.endswith(stop[:length]):
                    held = max(held, length)
        return self._show(max(len(self.text) - held, self.shown))

    def flush(self) -> str:
        self.text += self.utf8.decode(b"", final=True)
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        piece = self.text[self.shown : end]
        self.shown = end
        return piece


# -- a toy constraint ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllowList:
    """The k-th token must be in sets[k % len(sets)]; after `length` tokens nothing may follow."""

    sets: tuple[frozenset[int], ...]
    length: int = 1_000_000

    def start(self) -> AllowListState:
        return AllowListState(self)


class AllowListState:
    error = None

    def __init__(self, rule: AllowList) -> None:
        self.rule = rule
        self.taken: list[int] = []
        self.broken = False

    @property
    def done(self) -> bool:
        return self.broken or len(self.taken) >= self.rule.length

    def allows(self, token: int) -> bool:
        return not self.done and token in self.rule.sets[len(self.taken) % len(self.rule.sets)]

    def ready(self) -> bool:
        return True

    def fill_mask(self, out: list[int]) -> None:
        out[:] = [0] * len(out)
        if not self.done:
            for token in self.rule.sets[len(self.taken) % len(self.rule.sets)]:
                out[token // 32] |= 1 << token % 32

    def accept(self, token: int) -> bool:
        if not self.allows(token):
            self.broken = True
            return False
        self.taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]
        self.broken = False  # what was tried behind them is forgotten with them

    def forced(self) -> list[int]:
        allowed = self.rule.sets[len(self.taken) % len(self.rule.sets)]
        return list(allowed) if len(allowed) == 1 and not self.done else []


# -- the toy model ---------------------------------------------------------------------------------------------------


def cell(before: list[int], token: int, salt: bytes, read: bool) -> int:
    """KV of one position: everything before it, this token, the salt, and whether it was read, as a prompt's."""
    return ((before[-1] if before else 7 + sum(salt)) * 31 + 2 * token + read + 1) % 1_000_003


def attend(cells: list[int]) -> int:
    return sum(map(mul, cells, counting(1))) % 1_000_003


def draw(cells: list[int], request: Request, index: int, generated: int, constraint: Constraint | None) -> int:
    """The next token after these cells."""
    banned = request.limits.stop_ids if generated < request.limits.min_tokens else frozenset()
    start = (attend(cells) + request.sampling.seed + index) % len(LANGUAGE)
    wishes = LANGUAGE[start:] + LANGUAGE[:start]
    if constraint is None:
        return next(t for t in wishes if t not in banned)
    mask = [0] * (-(-len(VOCAB) // 32))
    constraint.fill_mask(mask)
    allowed = [t for t in (*wishes, *range(len(VOCAB))) if mask[t // 32] >> t % 32 & 1]
    return next((t for t in allowed if t not in banned), allowed[0] if allowed else wishes[0])


def logprob_of(cells: list[int], token: int) -> TokenLogprob:
    """A made-up number that depends on every cell."""
    return TokenLogprob(token, -(attend(cells) % 997) / 100, rank=1)


Drafter = Callable[[Sequence, Callable[[int], list[int]]], list[int]]


class StepFailed(RuntimeError):
    """What a runner raises when told to."""


class ToyRunner:
    """propose(seq, ahead) -> guesses, where ahead(k) are the k tokens the unconstrained model would say next."""

    def __init__(self, blocks: int, size: int, propose: Drafter | None = None) -> None:
        self.kv: list[list[int | None]] = [[None] * size for _ in range(blocks)]
        self.size = size
        self.propose = propose
        self.steps = 0
        self.fails: Callable[[Batch], bool] = lambda batch: False
        self.piece: Callable[[], int] = lambda: 7  # positions that are computed aside in a step
        self._begun: list[Row] | None = None
        self._left: list[tuple[Row, int]] = []  # positions of what is computed aside
        self._blocks: list[list[int]] = []  # of its sequences, when it began

    def step(self, batch: Batch) -> list[RowResult]:
        self.steps += 1
        if self.fails(batch):
            for row in batch.rows:  # half-done work lies around
                self._at(row.seq, row.start, 999_999)
            raise StepFailed("the toy was told to fail at /a/secret/path")
        for source, target in batch.copies:
            self.kv[target] = list(self.kv[source])
        results = [self._row(row) for row in batch.rows]
        return results + self._go_on(batch) if batch.aside else results

    def _go_on(self, batch: Batch) -> list[RowResult]:
        """Some more positions of the rows aside, in the blocks their sequences had when it began."""
        if batch.aside is not self._begun:
            self._begun = batch.aside
            self._left = [(row, p) for row in batch.aside for p in range(row.start, row.start + row.count)]
            self._blocks = [list(row.seq.blocks) for row in batch.aside]
        assert self._blocks == [row.seq.blocks for row in batch.aside], "blocks went while something was computed aside"
        count = len(self._left) if batch.aside_s == math.inf else self.piece()
        now, self._left = self._left[:count], self._left[count:]
        for row, position in now:
            seq, size = row.seq, self.size
            cells = [self.kv[seq.blocks[p // size]][p % size] for p in range(position)]
            assert None not in cells, "a position was read that was never computed"
            found = cell(cells, seq.tokens[position], seq.request.salt, row.is_prompt)  # type: ignore[arg-type]
            self._at(seq, position, found)
        if self._left:
            return [RowResult([], pending=True) for _ in batch.aside]
        self._begun = None
        return [RowResult([]) for _ in batch.aside]

    def _at(self, seq: Sequence, position: int, value: int) -> None:
        self.kv[seq.blocks[position // self.size]][position % self.size] = value

    def _row(self, row: Row) -> RowResult:
        seq, request, size = row.seq, row.seq.request, self.size
        read = [self.kv[seq.blocks[p // size]][p % size] for p in range(row.start)]
        cells = [c for c in read if c is not None]
        assert len(cells) == row.start, "a position was read that was never computed"
        for position, token in enumerate(row.inputs, row.start):
            cells.append(cell(cells, token, request.salt, row.is_prompt))
            self._at(seq, position, cells[-1])
        result = RowResult([])
        if row.wants_prompt_logprobs:
            ends = range(row.start + 1, min(row.start + row.count, len(request.prompt) - 1) + 1)
            result.prompt_logprobs = [logprob_of(cells[:p], request.prompt[p]) for p in ends]
        if row.reaches_end:
            self._draw(row, cells, result)
        return result

    def _draw(self, row: Row, cells: list[int], result: RowResult) -> None:
        seq, request, constraint = row.seq, row.seq.request, row.seq.constraint
        known = len(seq.tokens)
        walked = 0
        for guess in [*seq.draft, None]:
            upto = cells[: known + len(result.tokens)]
            token = draw(upto, request, seq.index, seq.generated + len(result.tokens), constraint)
            result.tokens.append(token)
            if request.sampling.logprobs is not None:
                result.logprobs.append(logprob_of(upto, token))
            if guess != token:
                break
            if constraint is not None:
                constraint.accept(token)
                walked += 1
                if constraint.done:
                    break
        if constraint is not None and walked:
            constraint.rollback(walked)
        if self.propose is not None:
            settled = cells[: known + len(result.tokens) - 1]
            result.draft = self.propose(seq, lambda count: self._ahead(seq, settled, result.tokens, count))

    def _ahead(self, seq: Sequence, cells: list[int], fresh: list[int], count: int) -> list[int]:
        cells, said = list(cells), [fresh[-1]]
        for i in range(count):
            cells.append(cell(cells, said[-1], seq.request.salt, read=False))
            said.append(draw(cells, seq.request, seq.index, seq.generated + len(fresh) + i, None))
        return said[1:]


class ScriptedRunner:
    """Says what it was told for each request id, then end-of-text. Has no KV."""

    def __init__(self, scripts: dict[str, list[int]], draft: int = 0) -> None:
        self.scripts = scripts
        self.draft = draft  # perfect guesses per step

    def step(self, batch: Batch) -> list[RowResult]:
        return [self._row(row) for row in batch.rows]

    def _row(self, row: Row) -> RowResult:
        if not row.reaches_end:
            return RowResult([])
        seq, script = row.seq, self.scripts[row.seq.request.id]
        at = seq.generated
        said = [*script[at : at + len(seq.draft) + 1], EOS][: len(seq.draft) + 1]
        wants = seq.request.sampling.logprobs is not None
        logprobs = [TokenLogprob(t, -1.0, rank=1) for t in said] if wants else []
        return RowResult(said, logprobs, draft=script[at + len(said) :][: self.draft])


# -- the judge -------------------------------------------------------------------------------------------------------


@dataclass
class Output:
    """All that one sequence gave its caller."""

    started: Started | None = None
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finished: Finished | None = None

    @property
    def essence(self) -> tuple[object, ...]:
        """What must not depend on the schedule."""
        assert self.finished is not None
        end = self.finished
        shown = (self.text, self.tokens, self.logprobs, self.prompt_logprobs)
        return (*shown, end.reason, end.stop, end.usage.prompt, end.usage.generated)


def reference(request: Request, index: int = 0, context: int = 1_000_000, written: range = range(0)) -> Output:
    """What a sequence must give: computed alone, in one piece, on whole texts. Only the model is shared.

    written: positions of the prompt that were found in the cache as an earlier output had left them."""
    prompt, limits = request.prompt, request.limits
    constraint = None if request.constraint is None else request.constraint.start()
    cells: list[int] = []
    out = Output()
    scores: list[TokenLogprob | None] = []
    for position, token in enumerate(prompt):
        scores.append(logprob_of(cells, token) if cells else None)
        cells.append(cell(cells, token, request.salt, position not in written))
    if request.sampling.prompt_logprobs is not None:
        out.prompt_logprobs = tuple(scores)
    drawn: list[int] = []
    reason, stop, cut = Reason.LENGTH, None, None
    while len(drawn) < limits.max_tokens and len(prompt) + len(drawn) < context:
        token = draw(cells, request, index, len(drawn), constraint)
        drawn.append(token)
        if token in limits.stop_ids or (constraint is not None and token == EOS):
            reason, stop = Reason.STOP, None if token == EOS else token
            break
        if request.sampling.logprobs is not None:
            out.logprobs.append(logprob_of(cells, token))
        out.tokens.append(token)
        cells.append(cell(cells, token, request.salt, read=False))
        hits = [(at, i) for i, s in enumerate(limits.stop_strings) if (at := spelled(out.tokens).find(s)) >= 0]
        if hits:
            at, i = min(hits)
            reason, stop = Reason.STOP, limits.stop_strings[i]
            cut = at + len(stop) * limits.include_stop
            break
        if constraint is not None:
            constraint.accept(token)
            if constraint.done:
                reason = Reason.STOP
                break
    out.text = b"".join(VOCAB[t] for t in out.tokens).decode(errors="replace")
    if cut is not None:
        out.text = out.text[:cut]
        seen = sum(len(spelled(out.tokens[:k])) < cut for k in range(len(out.tokens)))
        out.tokens, out.logprobs = out.tokens[:seen], out.logprobs[:seen]
    out.finished = Finished(request.id, index, reason, stop, Usage(len(prompt), 0, len(drawn)))
    return out


def spelled(tokens: list[int]) -> str:
    """The characters that are complete."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(VOCAB[t] for t in tokens))


class Transcript:
    """Collects events and insists on their order."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, int], Output] = {}
        self.failed: dict[str, Failed] = {}

    def __getitem__(self, key: str | tuple[str, int]) -> Output:
        return self.outputs[(key, 0) if isinstance(key, str) else key]

    def add(self, events: list[Event]) -> list[Event]:
        for event in events:
            assert event.request not in self.failed, "an event after Failed"
            if isinstance(event, Failed):
                self.failed[event.request] = event
                continue
            out = self.outputs.setdefault((event.request, event.index), Output())
            assert out.finished is None, "an event after Finished"
            if isinstance(event, Started):
                assert out.started is None, "started twice"
                out.started = event
            elif isinstance(event, PromptLogprobs):
                assert out.started and not out.tokens and not out.text and out.prompt_logprobs is None
                out.prompt_logprobs = event.logprobs
            elif isinstance(event, Delta):
                assert out.started and (event.text or event.tokens), "an empty delta"
                assert len(event.logprobs) in (0, len(event.tokens))
                out.text += event.text
                out.tokens += event.tokens
                out.logprobs += event.logprobs
            else:
                out.finished = event
        return events


class Stage:
    """A scheduler and a runner that are driven by hand, with every invariant checked after each step."""

    def __init__(
        self,
        blocks: int = 64,
        size: int = 4,
        *,
        runner: ToyRunner | ScriptedRunner | None = None,
        context: int = 1_000_000,
        max_rows: int = 8,
        max_tokens: int = 64,
        max_logit_rows: int = 64,
        speculation: Speculation | None = None,
        pin_budget: int | None = None,
        pace: Pace | None = None,
        aside: Aside | None = None,
        takes: Callable[[Batch], float] | None = None,
        below: Callable[[BlockPool, ToyRunner], Below] | None = None,
        start: int = 0,
        grant: Callable[[int], int] | None = None,
    ) -> None:
        """takes: seconds of a step; None: no time passes in it.   below: makes what is kept below the pool.
        start: blocks that there are at first; 0: all.   grant: as the BlockPool's."""
        self.takes = takes
        self.durations: list[float] = []
        self.runner = runner or ToyRunner(blocks, size)
        self.letters: SimpleQueue[Callable[[], object]] = SimpleQueue()
        pool = BlockPool(start or blocks, size, blocks, grant, tells_apart=True)
        kept = None
        if below is not None:
            assert isinstance(self.runner, ToyRunner)
            kept = below(pool, self.runner)
            kept.connect(self.letters.put)
        self.sched = Scheduler(
            pool,
            context=context,
            max_rows=max_rows,
            max_tokens=max_tokens,
            max_logit_rows=max_logit_rows,
            new_decoder=ToyDecoder,
            eos_ids=frozenset({EOS}),
            speculation=speculation,
            pin_budget=blocks // 4 if pin_budget is None else pin_budget,
            pace=pace,
            aside=aside,
            below=kept,
        )
        self.transcript = Transcript()
        self.now = 0.0
        self.batches: list[list[tuple[str, int, int]]] = []  # (request, start, count) of every row of every step
        self.aside: list[list[tuple[str, int, int]]] = []  # the same of what was computed aside
        self.failures = 0

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.transcript.add(self.sched.submit(request, self.now))

    def abort(self, request_id: str) -> None:
        self.transcript.add(self.sched.abort(request_id))
        self.sched.check()

    def step(self) -> list[Event] | None:
        """One step; None where there is nothing to do."""
        self.now += 1.0
        self._read_letters()
        batch = self.sched.plan(self.now)
        while batch is None and self.sched.below is not None and self.sched.below.busy:
            self.letters.get(timeout=10)()
            self.sched.check()
            batch = self.sched.plan(self.now)
        if batch is None:
            return None
        self._check_batch(batch)
        self.batches.append([(row.seq.request.id, row.start, row.count) for row in batch.rows])
        self.aside.append([(row.seq.request.id, row.start, row.count) for row in batch.aside])
        try:
            results = self.runner.step(batch)
            if self.takes is not None:
                self.durations.append(self.takes(batch))
                self.now += self.durations[-1]
        except StepFailed:
            self.failures += 1
            events = self.sched.fail(batch, "engine_step_failed", "the step failed")
        else:
            events = self.sched.apply(batch, results, self.now)
        self.sched.check()
        return self.transcript.add(events)

    def _read_letters(self) -> None:
        while not self.letters.empty():
            self.letters.get()()
            self.sched.check()

    def run(self, limit: int = 20_000) -> Transcript:
        """Steps until there is nothing left to do."""
        for _ in range(limit):
            if self.step() is None:
                assert not self.sched.running and not self.sched.waiting
                return self.transcript
        raise AssertionError(f"not finished after {limit} steps")

    def _check_batch(self, batch: Batch) -> None:
        sched, size = self.sched, self.sched.pool.size
        assert 0 < len(batch.rows) + len(batch.aside) <= sched.max_rows
        assert len({id(row.seq) for row in (*batch.rows, *batch.aside)}) == len(batch.rows) + len(batch.aside)
        assert sum(row.count for row in batch.aside) <= sched.aside.tokens and len(batch.aside) <= sched.aside.most
        assert not any(row.reaches_end or row.wants_prompt_logprobs for row in batch.aside)
        assert len({row.is_prompt for row in batch.aside}) <= 1, "positions of prompts and of outputs are aside together"
        assert sum(row.count for row in batch.rows) <= sched.max_tokens
        logits = 0
        for row in (*batch.rows, *batch.aside):
            assert row.count > 0 and row.start == row.seq.computed
            prompt = len(row.seq.request.prompt)
            assert row.start >= prompt or row.start + row.count <= prompt, "a row is of a prompt and of its output"
            if row.wants_prompt_logprobs:
                logits += row.count
            elif row.reaches_end:
                logits += 1 + len(row.seq.draft)
            for position in range(row.start, row.start + row.count):
                block = row.seq.blocks[position // size]
                assert sched.pool.refs[block] == 1, "a shared block is written"
        assert logits <= sched.max_logit_rows


def unsuspecting(stage: Stage) -> Stage:
    """The same, but it has seen nothing but short outputs and counts on more of them."""
    for _ in range(50):
        stage.sched.places.lengths.add(1)
    return stage
