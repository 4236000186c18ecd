"""Who runs next. A state machine without threads, clocks, sockets or arrays:

    submit / abort  ->  plan() -> Batch  ->  (a runner computes it)  ->  apply() or fail()  ->  events

plan() and apply() alternate strictly; everything else may come between them, never during a step.

Urgency. A sequence's rank is (priority * AGE_TICKS + arrival, arrival, index), smallest first, where `arrival` is the
reading of a counter that goes up by one with every step and every request. This is ageing: for every AGE_TICKS ticks
that a request has been waiting it gains one class on those that arrive now. Since all age alike the rank itself never
changes, nothing is ever sorted again, and a request is overtaken only by those that arrive within AGE_TICKS ticks per
class of difference: nobody starves. Within a class the order is that of arrival.

A step. Every sequence that decodes gets its row. What is left of `max_tokens` is shared among prompts (shares.py), and
waiting sequences are admitted as long as they get a share, a place and blocks for all their tokens with some to spare.
Memory that runs short is taken from the least urgent sequence: it goes back to the queue with its tokens and computes
them again later.

A constraint is advanced here alone, by tokens that were really drawn. A runner that walks it along a draft to get
masks rolls it back before it returns.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from imp.sched.blocks import BlockPool
from imp.sched.output import DeadEnd, End, accept, account, collect_prompt_logprobs, confirmed, release, used
from imp.sched.room import Found, find, hashes_of, offer_rest, publish, reads_cache, room, shareable
from imp.sched.shares import shares
from imp.sched.speculation import Speculation
from imp.sched.stats import Counters, Stats, snapshot
from imp.types import (
    Batch,
    Copy,
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

AGE_TICKS = 256  # waiting this many ticks is worth one priority class
LOOKAHEAD = 8  # waiting sequences that are considered for admission in one step


def rank(seq: Sequence) -> tuple[int, int, int]:
    """Most urgent first; see the top of this file."""
    return (seq.request.priority * AGE_TICKS + seq.arrival, seq.arrival, seq.index)


class Scheduler:
    """Belongs to the engine thread.

    context: tokens a sequence may have, prompt included.   max_rows: sequences per step.
    max_tokens: positions per step.                         max_logit_rows: positions per step that want logits.
    speculation: which guesses are verified; unless said, what a constraint leaves no choice about.
    prompt_cap: positions of prompts in a step that has decode rows, so that a long prompt never holds up the others.
    pin_budget: blocks that pins may keep.
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
        self.prompt_cap = max_tokens if prompt_cap is None else prompt_cap
        self.pin_budget = pin_budget
        self.waiting: list[Sequence] = []  # both sorted by rank
        self.running: list[Sequence] = []
        self._live: dict[str, int] = {}  # request id -> sequences that have not ended
        self._ticks = 0
        self._in_step = False
        self._copied: list[tuple[Sequence, Copy]] = []  # of the step in progress
        self._planned_at = 0.0
        self._counters = Counters()

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
        self._ticks += 1
        first, *rest = [self._sequence(request, i) for i in range(request.n)]
        if refusal := self._refusal(first):
            self._counters.refused += 1
            return [refusal]
        first.followers = rest
        self._live[request.id] = request.n
        self._queue(first)
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
        """Forget all cached prompts and pins, and outputs kept for guesses. False, and nothing is done, while any
        sequence holds blocks."""
        if self.running:
            return False
        self.pool.reset()
        self.speculation.forget()
        return True

    # -- one step ---------------------------------------------------------------------------------

    def plan(self, now: float) -> Batch | None:
        """The next step, or None where there is nothing to do. Every live request gets on sooner or later."""
        assert not self._in_step
        self._ticks += 1
        running = self.running
        if not running and not self.waiting:
            return None
        were_running = len(running)
        self._copied = []
        rows = self._decode_rows_of_step()
        decode_rows, budget = len(rows), self.max_tokens - sum(row.count for row in rows)
        if decode_rows:
            budget = min(budget, self.prompt_cap)
        prompts = [seq for seq in running if seq.computed + 1 < len(seq.tokens)]
        # where memory is short nobody is admitted, or the victims would be back at once
        if self.waiting and (len(running) == were_running or not running):
            self._admit(prompts, budget)
        if prompts:
            rows += self._prompt_rows(prompts, budget, self._spare_logits(rows))
        assert rows, "there are live sequences, but none of them can go on"
        for row in rows:
            if not row.seq.started:
                row.seq.scheduled_at = now
        self._counters.step(sum([row.count for row in rows]), decode_rows, len(rows) - decode_rows)
        self._planned_at = now
        self._in_step = True
        return Batch(rows, [copy for _, copy in self._copied])

    def apply(self, batch: Batch, results: list[RowResult], now: float) -> list[Event]:
        """Take in what a step computed. Should it raise, call fail() with the same batch."""
        if len(results) != len(batch.rows):
            raise ValueError(f"{len(results)} results for {len(batch.rows)} rows")
        self._counters.late(sum([result.late for result in results[: self._counters.decode_last_rows]]))
        if self._counters.decode_last_rows == len(batch.rows):
            self.speculation.took(sum([row.count for row in batch.rows]), now - self._planned_at)
        events: list[Event] = []
        for row, result in zip(batch.rows, results, strict=True):
            seq = row.seq
            if seq.request.id not in self._live:  # a sibling's constraint met a dead end in this very step
                continue
            if not seq.started:
                self._start(seq, row, events)
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
            else:
                self._take_tokens(row, result, now, events)
        self._in_step = False
        return events

    def fail(self, batch: Batch, code: str, message: str) -> list[Event]:
        """Instead of apply(), or after it raised: every request of the batch fails, the others go on."""
        self._in_step = False
        for seq, _ in self._copied:  # it is not known whether the copies were made
            seq.computed = min(seq.computed, seq.published * self.pool.size)
        request_ids = dict.fromkeys(row.seq.request.id for row in batch.rows)
        return [self._fail(request_id, code, message) for request_id in request_ids]

    def fail_all(self, code: str, message: str) -> list[Event]:
        """Every live request fails."""
        self._in_step = False
        return [self._fail(request_id, code, message) for request_id in list(self._live)]

    # -- for the rest of the server ---------------------------------------------------------------

    def snapshot(self) -> Stats:
        """Everything others may know about this moment."""
        running = len(self.running)
        return snapshot(self._counters, self.pool, sum(self._live.values()) - running, running, self.speculation.mode)

    def check(self) -> None:
        """Assert every invariant; call it between steps."""
        everyone = list(self._everyone())
        self.pool.check([seq.blocks for seq in everyone])
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

    def _decode_rows_of_step(self) -> list[Row]:
        """One row for every sequence that decodes, most urgent first.

        Victims leave from the other end, so a sequence that already has a row is never one.
        """
        rows: list[Row] = []
        running, size = self.running, self.pool.size
        decoding = [seq for seq in running if seq.computed + 1 == len(seq.tokens)]
        if decoding:
            self.speculation.draft(decoding, self._spare_positions_for_drafts(), self._room_for_guesses)
        for seq in decoding:
            if not seq.blocks:
                break  # it was a victim, and so are those behind it
            count = 1 + len(seq.draft)
            if seq.computed + count > len(seq.blocks) * size:
                if not self._make_room(seq):
                    break  # it was its own victim, so it was the last
                count = 1 + len(seq.draft)
            rows.append(Row(seq, seq.computed, count))
        return rows

    def _room_for_guesses(self, seq: Sequence) -> int:
        """How many can be right before the sequence is full, the token behind them included."""
        return max(self._limit(seq) - len(seq.tokens) - 1, 0)

    def _spare_positions_for_drafts(self) -> int:
        """What is left when everybody has one position and one logit row; half of that where prompts want positions."""
        spare = self.max_tokens - len(self.running)
        prompts = any(seq.computed + 1 < len(seq.tokens) for seq in self.running)
        if prompts or self.waiting:
            spare //= 2
        return min(spare, self._spare_logits([]))

    def _spare_logits(self, rows: list[Row]) -> int:
        """Logit rows left when everybody who runs, or may be admitted in this step, has one."""
        reserved = min(self.max_rows, len(self.running) + len(self.waiting))
        return self.max_logit_rows - reserved - sum([row.count - 1 for row in rows])

    def _make_room(self, seq: Sequence) -> bool:
        """Blocks for a decode row. Nobody is preempted for a guess. False: `seq` itself had to go."""
        if self._grow(seq, 1 + len(seq.draft)):
            return True
        seq.draft.clear()
        while not self._grow(seq, 1):
            if len(self.running) == 1 and self.pool.unpin_oldest():
                continue
            victim = self.running.pop()
            self._counters.preemptions += 1
            self._drop(victim)
            self._queue(victim)
            if victim is seq:
                return False
        return True

    def _grow(self, seq: Sequence, count: int) -> bool:
        need = -(-(seq.computed + count) // self.pool.size) - len(seq.blocks)
        taken = self.pool.take(max(need, 0))
        if taken is None:
            return False
        seq.blocks += taken
        return True

    def _admit(self, prompts: list[Sequence], budget: int) -> None:
        """Move waiting sequences to `running` and `prompts` while there are places, blocks and positions for them.

        A sequence that would get no positions in this step is passed over for those behind it (a short prompt beside
        a long one), and so is one whose next block another prompt is computing: it will find it in the cache. One for
        which there are no blocks is not, or large ones would wait for ever.
        """
        coming = self._blocks_to_come(prompts)
        for seq in self.waiting[:LOOKAHEAD]:
            if len(self.running) == self.max_rows:
                return
            wanted = shareable(self.pool, seq)
            found = find(self.pool, seq, wanted)
            cached = len(found.blocks)
            if not coming.isdisjoint(wanted[cached : cached + 1]):
                continue
            with_it = prompts.copy()
            insort(with_it, seq, key=rank)
            seq.computed = cached * self.pool.size + found.rows
            granted = shares([s.pending for s in with_it], budget)[with_it.index(seq)]
            seq.computed = 0
            if not granted:
                continue
            while not self._hold_blocks(seq, found):
                if self.running or not self.pool.unpin_oldest():
                    return
            self.waiting.remove(seq)
            insort(self.running, seq, key=rank)
            insort(prompts, seq, key=rank)
            coming |= self._blocks_to_come([seq])

    def _blocks_to_come(self, prompts: list[Sequence]) -> set[bytes]:
        """Hashes of the blocks that these will publish next."""
        return {h for seq in prompts for h in hashes_of(self.pool, seq)[seq.published : seq.published + 1]}

    def _hold_blocks(self, seq: Sequence, found: Found) -> bool:
        """Take blocks for all tokens at once, leaving one for the next token of everybody who runs already.

        The block that is copied may be evicted here: nobody writes it before the copy is made."""
        pool, cached = self.pool, found.blocks
        fresh = -(-len(seq.tokens) // pool.size) - len(cached)
        if fresh + pool.idle_among(cached) + len(self.running) > pool.available:
            return False
        pool.share(cached)
        taken = pool.take(fresh)
        assert taken is not None
        if found.rows:
            self._copied.append((seq, (found.source, taken[0])))
            self._counters.copies += 1
        seq.blocks = cached + taken
        seq.published = len(cached)
        seq.computed = len(cached) * pool.size + found.rows
        return True

    def _prompt_rows(self, prompts: list[Sequence], budget: int, logits: int) -> list[Row]:
        rows = []
        for seq, count in zip(prompts, shares([seq.pending for seq in prompts], budget), strict=True):
            row = Row(seq, seq.computed, count)
            if row.wants_prompt_logprobs:
                row.count = min(count, 1 + logits)
                logits -= max(row.count - 1, 0)
            if row.count:
                rows.append(row)
        return rows

    # -- taking in results ------------------------------------------------------------------------

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
        limit = self._limit(seq)
        first = len(seq.tokens) == len(seq.request.prompt)
        try:
            text, end = accept(seq, tokens, result.logprobs, limit, self.eos_ids)
        except DeadEnd as dead:
            why = f": {dead}" if str(dead) else ""
            message = f"the output cannot be continued in the required format{why}"
            events.append(self._fail(seq.request.id, "engine_step_failed", message))
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
            self._queue(follower)

    # -- what fits --------------------------------------------------------------------------------

    def _refusal(self, seq: Sequence) -> Failed | None:
        request, length = seq.request, len(seq.request.prompt)
        if length + 1 > self.context:
            message = f"the prompt has {length} tokens, but the model's context of {self.context} must hold one more"
            return Failed(request.id, "context_length_exceeded", message)
        most = room(self.pool)
        if length + 1 > most:
            message = f"the prompt has {length} tokens, but the KV memory of {most} tokens must hold one more"
            return Failed(request.id, "kv_pool_floored", message)
        return None

    def _limit(self, seq: Sequence) -> int:
        """Length in tokens at which the sequence is full."""
        return min(len(seq.request.prompt) + seq.request.limits.max_tokens, self.context, room(self.pool))

    # -- coming and going -------------------------------------------------------------------------

    def _sequence(self, request: Request, index: int) -> Sequence:
        return Sequence(
            request,
            index,
            self._ticks,
            list(request.prompt),
            constraint=None if request.constraint is None else request.constraint.start(),
            decoder=self.new_decoder(request),
        )

    def _everyone(self) -> Iterator[Sequence]:
        for queue in (self.running, self.waiting):
            for seq in queue:
                yield seq
                yield from seq.followers

    def _sequences_of(self, request_id: str) -> list[Sequence]:
        if request_id not in self._live:
            return []
        return [seq for seq in self._everyone() if seq.request.id == request_id]

    def _queue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=rank)

    def _drop(self, seq: Sequence) -> None:
        """Give the blocks back; the tokens stay."""
        offer_rest(self.pool, seq)
        self.pool.release(seq.blocks)
        seq.blocks, seq.computed, seq.published, seq.draft, seq.pooled = [], 0, 0, [], None
        if len(seq.prompt_logprobs) < len(seq.request.prompt):
            seq.prompt_logprobs = []

    def _leave(self, seq: Sequence) -> None:
        for queue in (self.running, self.waiting):
            if seq in queue:
                queue.remove(seq)
        self._drop(seq)
        self.speculation.ended(seq)

    def _finish(self, seq: Sequence, end: End, vector: tuple[float, ...] | None = None) -> Finished:
        self._leave(seq)
        request = seq.request
        left = self._live[request.id] - 1
        if left:
            self._live[request.id] = left
        else:
            del self._live[request.id]
        marks = Marks(request.arrived, seq.scheduled_at, seq.first_token_at, seq.last_token_at, seq.masking_s)
        return Finished(request.id, seq.index, end.reason, end.stop, used(seq), marks, vector)

    def _fail(self, request_id: str, code: str, message: str) -> Failed:
        gone = self._sequences_of(request_id)
        for seq in gone:
            self._leave(seq)
        self._live.pop(request_id, None)
        self._counters.failed += 1
        return Failed(request_id, code, message, *account(gone))
