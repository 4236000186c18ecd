"""Who runs next. A state machine without threads, clocks, sockets or arrays:

    submit / abort  ->  plan() -> Batch  ->  (a runner computes it)  ->  apply() or fail()  ->  events

plan() and apply() alternate strictly; everything else may come between them, never during a step.

A step. Sequences come in in the order of their turns (turns.py), as long as there are places and blocks (admission.py,
places.py). Every one that decodes gets its row (decoding.py). What is left of `max_tokens` is shared among prompts
(prompts.py). A prompt of a more urgent class has steps for itself: the rows of less urgent ones yield, though in no
more than half of the steps in the long run.

A constraint is advanced here alone, by tokens that were really drawn. A runner that walks it along a draft to get
masks rolls it back before it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from imp.sched.admission import Admission
from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.burst import Burst
from imp.sched.decoding import Decoding
from imp.sched.output import DeadEnd, End, accept, account, collect_prompt_logprobs, confirmed, release, used
from imp.sched.pace import Decode, Load, Pace
from imp.sched.places import Places
from imp.sched.prompts import Prompts, left_of
from imp.sched.room import full_at, offer_rest, publish, reads_cache, refusal, room
from imp.sched.speculation import Speculation
from imp.sched.stats import Counters, Stats, snapshot
from imp.sched.tiers import Below
from imp.sched.turns import AGE, Turns, outranks, rank
from imp.types import (
    Batch,
    Decoder,
    Event,
    Failed,
    Finished,
    Marks,
    PromptLogprobs,
    Reason,
    Request,
    Row,
    RowResult,
    Sequence,
    Started,
)

YIELDS = 3  # steps one after the other in which rows may have to yield; one without has to follow for each


class Scheduler:
    """Belongs to the engine thread.

    context: tokens a sequence may have, prompt included.   max_rows: sequences per step.
    max_tokens: positions per step.                         max_logit_rows: positions per step that want logits.
    speculation: which guesses are verified; unless said, what a constraint leaves no choice about.
    prompt_cap: positions of prompts in a step that has decode rows, so that a long prompt never holds up the others.
    pin_budget: blocks that pins may keep.                  pace: how long steps may take.
    aside: what the runner can compute aside; unless said, nothing.
    below: what is kept below the pool.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        context: int,
        max_rows: int,
        max_tokens: int,
        max_logit_rows: int,
        new_decoder: Callable[[Request], Decoder],
        eos_ids: frozenset[int] = frozenset(),
        speculation: Speculation | None = None,
        prompt_cap: int | None = None,
        pin_budget: int = 0,
        pace: Pace | None = None,
        aside: Aside | None = None,
        below: Below | None = None,
    ) -> None:
        if not 1 <= max_rows <= min(max_tokens, max_logit_rows):
            raise ValueError("max_rows must be at least 1 and at most max_tokens and max_logit_rows")
        self.pool = pool
        self.context = context
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self.new_decoder = new_decoder
        self.eos_ids = eos_ids
        self.speculation = speculation or Speculation()
        self.pin_budget = pin_budget
        self.pace = pace or Pace()
        self.aside = aside or Aside()
        self._burst = Burst()
        self.below = below
        self._counters = Counters()
        self.places = Places(pool, max_rows, self._counters)
        self.waiting, self.running = self.places.waiting, self.places.running
        self._turns = Turns()
        self._decoding = Decoding(self.places, self.pace, context, max_tokens, max_logit_rows)
        self._admission = Admission(pool, self.places, self._turns, below)
        cap = max_tokens if prompt_cap is None else prompt_cap
        self._prompts = Prompts(max_tokens, cap, self.pace, self.aside, self._burst)
        self._live: dict[str, int] = {}  # request id -> sequences that have not ended
        self._arrivals = 0
        self._patience = YIELDS  # steps in which rows can still be made to yield
        self._in_step = False
        self._planned_at = 0.0
        self._load = Load()  # of the step in progress

    # -- requests in, requests out ----------------------------------------------------------------

    def submit(self, request: Request, now: float) -> list[Event]:
        """Queue a request, or refuse at once what could never be computed: then the one event is its Failed.

        With n > 1 the first sequence leads; the others join once its prompt is there to share.
        Raises ValueError for an id that is still in use.
        """
        assert not self._in_step and request.prompt and request.n >= 1
        if request.id in self._live:
            raise ValueError(f"request id {request.id!r} is in use")
        self._counters.submitted += 1
        if refused := refusal(self.pool, request, self.context):
            self._counters.refused += 1
            return [refused]
        first, *rest = self._sequences(request)
        first.followers = rest
        self._live[request.id] = request.n
        self.places.wait(first)
        return []

    def abort(self, request_id: str) -> list[Event]:
        """End every sequence of a request, wherever it is. An id that is not live is left alone."""
        assert not self._in_step
        gone = self._sequences_of(request_id)
        self._counters.aborted += bool(gone)
        return [self._finish(seq, End(Reason.ABORT)) for seq in gone]

    def give_up(self, request_id: str, code: str, message: str) -> list[Event]:
        """Fail a request that has not had its first step; any other is left alone."""
        assert not self._in_step
        waiting = self._sequences_of(request_id)
        started = any(seq.started for seq in waiting) or len(waiting) < self._live.get(request_id, 0)
        return [] if started or not waiting else [self._fail(request_id, code, message)]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts and pins, wherever they are kept, and outputs kept for guesses. False, and nothing
        is done, while any sequence holds blocks."""
        if self.running:
            return False
        if self.below is not None:
            self.below.forget()
        self.pool.reset()
        self.speculation.forget()
        return True

    # -- one step ---------------------------------------------------------------------------------

    def plan(self, now: float) -> Batch | None:
        """The next step, or None where there is nothing to do before something is posted or comes from below. Every
        live request gets on sooner or later."""
        assert not self._in_step
        running = self.running
        if self.below is not None:
            self.below.turn()
        if not running and not self.waiting:
            return None
        self.places.begin_step()
        decoding = self._burst.decoding(running)
        prompts = [seq for seq in running if not decoding or seq.computed + 1 < len(seq.tokens)]
        if self.waiting:
            self._admission.admit(prompts, self._prompts.admission_budget(prompts, decoding))
        hurried = self._hurried(prompts)
        if hurried is not None:
            decoding = [seq for seq in decoding if not outranks(hurried, seq)]
            prompts = [seq for seq in prompts if not outranks(hurried, seq)]
        rows = self._decoding.rows(decoding, self.speculation, max([left_of(seq) for seq in prompts], default=0))
        decode = Decode(*_work(rows), len(rows), sum([row.start + 1 for row in rows]))
        aside, prompts = self._prompts.put_aside([seq for seq in prompts if seq.blocks], decode.rows, hurried)
        if prompts:
            rows += self._prompts.rows(prompts, decode, self._decoding.spare_logits(rows))
        if not rows and not aside:
            assert self.below is not None and self.below.busy, "there are live sequences, but none of them can go on"
            return None
        for row in (*rows, *aside):
            if not row.seq.started:
                row.seq.scheduled_at = now
        self._counters.step(sum([row.count for row in rows]), decode.rows, len(rows) - decode.rows + len(aside))
        self._planned_at, self._load = now, Load(decode.positions, decode.keys, *_work(rows[decode.rows :]))
        self._in_step = True
        left = max((left_of(row.seq) for row in aside), default=0)
        seconds = self.pace.piece(decode, left) if decode.rows else math.inf
        return Batch(rows, [copy for _, copy in self.places.copied], aside, seconds)

    def apply(self, batch: Batch, results: list[RowResult], now: float) -> list[Event]:
        """Take in what a step computed. Should it raise, call fail() with the same batch."""
        rows = [*batch.rows, *batch.aside]
        if len(results) != len(rows):
            raise ValueError(f"{len(results)} results for {len(rows)} rows")
        self._counters.late(sum([result.late for result in results[: self._counters.decode_last_rows]]))
        self._learn(batch, now - self._planned_at - batch.aside_took_s)
        if batch.aside and not results[-1].pending:
            self._counters.positions += sum([row.count for row in batch.aside])
            self.aside.done()
        self.places.copied = []  # they are made
        events: list[Event] = []
        for row, result in zip(rows, results, strict=True):
            seq = row.seq
            if seq.request.id not in self._live:  # a sibling's constraint met a dead end in this very step
                continue
            if not seq.started:
                self._start(seq, row, events)
            if result.pending:
                continue
            if result.error:
                events.append(self._fail(seq.request.id, "engine_step_failed", result.error))
                continue
            if seq.request.sampling.prompt_logprobs is not None and collect_prompt_logprobs(row, result):
                events.append(PromptLogprobs(seq.request.id, seq.index, tuple(seq.prompt_logprobs)))
            if not row.reaches_end:
                seq.computed = row.start + row.count
                publish(self.pool, seq)
            elif not seq.request.limits.max_tokens:
                seq.computed = row.start + row.count
                self._prompt_is_there(seq)
                events.append(self._finish(seq, End(Reason.LENGTH), result.vector))
            elif result.late:
                seq.computed = len(seq.tokens) - 1
                seq.draft = []
                publish(self.pool, seq)
                self._burst.give_up()  # whoever comes does not wait for a mask
            else:
                self._take_tokens(row, result, now, events)
        self._in_step = False
        return events

    def fail(self, batch: Batch, code: str, message: str) -> list[Event]:
        """Instead of apply(), or after it raised: every request of the batch fails, the others go on."""
        self._in_step = False
        self.places.forgo_copies()
        self.aside.give_up()
        request_ids = dict.fromkeys(row.seq.request.id for row in (*batch.rows, *batch.aside))
        return [self._fail(request_id, code, message) for request_id in request_ids]

    def fail_all(self, code: str, message: str) -> list[Event]:
        """Every live request fails."""
        self._in_step = False
        self.aside.give_up()
        return [self._fail(request_id, code, message) for request_id in list(self._live)]

    # -- for the rest of the server ---------------------------------------------------------------

    def snapshot(self) -> Stats:
        """Everything others may know about this moment."""
        running = len(self.running)
        waiting = sum(self._live.values()) - running
        tiers = () if self.below is None else self.below.stats()
        reserved, mode = self.places.reserved, self.speculation.mode
        return snapshot(self._counters, self.pool, waiting, running, reserved, mode, tiers)

    def check(self) -> None:
        """Assert every invariant; call it between steps."""
        everyone = list(self.places.everyone())
        self.pool.check([*(seq.blocks for seq in everyone), *([] if self.below is None else self.below.held())])
        assert self.waiting == sorted(self.waiting, key=rank) and self.running == sorted(self.running, key=rank)
        assert len(self.running) <= self.max_rows
        live: dict[str, int] = {}
        for seq in everyone:
            live[seq.request.id] = live.get(seq.request.id, 0) + 1
            assert len(seq.tokens) < room(self.pool), "a sequence can never be computed"
            assert seq.computed < len(seq.tokens), "a sequence has nothing left to compute"
            assert seq.computed <= len(seq.blocks) * self.pool.size, "a computed position has no block"
            assert seq.published <= seq.computed // self.pool.size
        assert live == self._live, "a sequence is lost or was kept after its end"
        for seq in self.waiting:
            assert not seq.blocks and not seq.computed and not seq.draft, "a waiting sequence holds something"

    # -- planning ---------------------------------------------------------------------------------

    def _hurried(self, prompts: list[Sequence]) -> Sequence | None:
        """The prompt for which less urgent classes yield in this step. `prompts` are sorted by rank."""
        if prompts and self._patience and any(outranks(prompts[0], seq) for seq in self.running):
            self._patience -= 1
            return prompts[0]
        self._patience = min(self._patience + 1, YIELDS)
        return None

    # -- taking in results ------------------------------------------------------------------------

    def _learn(self, batch: Batch, seconds: float) -> None:
        """So long its rows took."""
        if not batch.rows:
            return
        if self._counters.decode_last_rows == len(batch.rows):
            self.speculation.took(sum([row.count for row in batch.rows]), seconds)
        self.pace.learn(self._load, seconds)

    def _start(self, seq: Sequence, row: Row, events: list[Event]) -> None:
        seq.started = True
        seq.cached = row.start
        if reads_cache(seq):
            self._counters.cache_queries += len(seq.request.prompt)
            self._counters.cache_hits += row.start
        events.append(Started(seq.request.id, seq.index, len(seq.request.prompt), row.start))
        if len(seq.prompt_logprobs) == len(seq.request.prompt):  # they came with the prompt, from the leader
            events.append(PromptLogprobs(seq.request.id, seq.index, tuple(seq.prompt_logprobs)))

    def _take_tokens(self, row: Row, result: RowResult, now: float, events: list[Event]) -> None:
        """A row that reached the end: verified guesses and one new token."""
        seq, tokens, guesses = row.seq, result.tokens, len(row.seq.draft)
        accepted = len(tokens) - 1
        if not 0 <= accepted <= guesses or (accepted and tokens[:accepted] != seq.draft[:accepted]):
            raise ValueError(f"{len(tokens)} tokens do not continue a row that carried {guesses} guesses")
        self.speculation.verified(seq, tokens, accepted)
        if guesses:
            self._counters.guesses(guesses, accepted)
        if not seq.first_token_at:
            seq.first_token_at = now
        seq.last_token_at = now
        limit = full_at(self.pool, seq, self.context)
        first = len(seq.tokens) == len(seq.request.prompt)
        try:
            text, end = accept(seq, tokens, result.logprobs, limit, self.eos_ids)
        except DeadEnd as dead:
            events.append(self._fail(seq.request.id, dead.code, str(dead)))
            return
        # guesses that were rejected, or that lie behind the end
        seq.computed = min(row.start + row.count - guesses + accepted, len(seq.tokens))
        seq.draft = []
        if first:
            self._prompt_is_there(seq)
        elif seq.computed // self.pool.size > seq.published:
            publish(self.pool, seq)
        delta = release(seq, text, end is not None)
        if delta is not None:
            events.append(delta)
        if end is not None:
            events.append(self._finish(seq, confirmed(seq, end)))
        else:
            seq.draft = result.draft

    def _prompt_is_there(self, seq: Sequence) -> None:
        """The whole prompt is computed for the first time: share it, pin it, let the siblings join."""
        publish(self.pool, seq)
        offer_rest(self.pool, seq)
        if seq.request.pin and seq.index == 0:
            self.pool.pin(seq.blocks[: min(seq.request.pin // self.pool.size, seq.published)], self.pin_budget)
        followers, seq.followers = seq.followers, []
        for follower in followers:
            follower.prompt_logprobs = list(seq.prompt_logprobs)
            self.places.wait(follower)

    # -- coming and going -------------------------------------------------------------------------

    def _sequences(self, request: Request) -> list[Sequence]:
        said = min(request.limits.max_tokens, self.places.lengths.expected)
        stamp = self._turns.stamp(request.owner, request.priority, len(request.prompt) + request.n * said)
        self._arrivals += 1
        return [
            Sequence(
                request,
                index,
                self._arrivals,
                list(request.prompt),
                stamp,
                (request.priority * AGE + stamp, self._arrivals, index),
                constraint=None if request.constraint is None else request.constraint.start(),
                decoder=self.new_decoder(request),
            )
            for index in range(request.n)
        ]

    def _sequences_of(self, request_id: str) -> list[Sequence]:
        if request_id not in self._live:
            return []
        return [seq for seq in self.places.everyone() if seq.request.id == request_id]

    def _leave(self, seq: Sequence) -> None:
        if self.below is not None:
            self.below.ended(seq)
        self.places.leave(seq)
        self.speculation.ended(seq)

    def _finish(self, seq: Sequence, end: End, vector: tuple[float, ...] | None = None) -> Finished:
        self._leave(seq)
        request = seq.request
        if seq.generated:
            self.places.lengths.add(seq.generated)
        left = self._live[request.id] - 1
        if left:
            self._live[request.id] = left
        else:
            del self._live[request.id]
        marks = Marks(request.arrived, seq.scheduled_at, seq.first_token_at, seq.last_token_at, seq.masking_s)
        thinks = seq.decoder is not None and seq.decoder.thinks
        return Finished(request.id, seq.index, end.reason, end.stop, used(seq), marks, vector, thinks)

    def _fail(self, request_id: str, code: str, message: str) -> Failed:
        gone = self._sequences_of(request_id)
        for seq in gone:
            self._leave(seq)
        self._live.pop(request_id, None)
        self._counters.failed += 1
        return Failed(request_id, code, message, *account(gone))


def _work(rows: list[Row]) -> tuple[int, int]:
    """Positions of these rows, and the keys they read."""
    return sum([row.count for row in rows]), sum([row.count * (2 * row.start + row.count) for row in rows]) // 2
