"""What the scheduler tells the rest of the server about itself: one frozen value per step, safe to read anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from imp.sched.blocks import BlockPool


@dataclass(slots=True)
class Counters:
    """Counted from the start of the process. Mutable: belongs to the scheduler."""

    submitted: int = 0  # requests
    refused: int = 0
    aborted: int = 0
    failed: int = 0
    preemptions: int = 0
    cache_queries: int = 0  # prompt tokens looked up
    cache_hits: int = 0  # prompt tokens found
    copies: int = 0  # blocks of which a part was found
    steps: int = 0
    positions: int = 0  # positions computed, recomputed ones included
    decode_steps: int = 0  # steps with at least one decode row
    decode_rows: int = 0
    decode_max_rows: int = 0
    decode_last_rows: int = 0  # of the last step
    mixed_steps: int = 0  # steps with decode rows and prompt chunks
    drafted: int = 0
    accepted: int = 0
    verify_steps: int = 0  # rows that carried a draft
    miss_steps: int = 0  # those of them whose first guess was wrong

    def step(self, positions: int, decode_rows: int, prompt_rows: int) -> None:
        self.steps += 1
        self.positions += positions
        self.decode_last_rows = decode_rows
        if decode_rows:
            self.decode_steps += 1
            self.decode_rows += decode_rows
            self.decode_max_rows = max(self.decode_max_rows, decode_rows)
            self.mixed_steps += prompt_rows > 0

    def late(self, rows: int) -> None:
        """So many of the last step's decode rows gave nothing."""
        self.decode_rows -= rows
        self.decode_last_rows -= rows
        self.decode_steps -= rows > 0 and not self.decode_last_rows

    def guesses(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted
        self.verify_steps += 1
        self.miss_steps += not accepted


@dataclass(frozen=True, slots=True)
class TierStats:
    """A place for blocks below the pool: what lies there now, and counts of blocks since it was opened."""

    name: str
    blocks: int
    used_bytes: int
    most_bytes: int
    stored: int
    restored: int
    evicted: int
    rejected: int = 0  # not what they should be
    lost: int = 0  # that could not be kept


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges at the end of a step, and the counters of `Counters`.

    blocks_total = blocks_used + blocks_reclaimable + blocks_free, and a block is used where a sequence holds it
    (blocks_live), a pin does (blocks_pinned), or both.
    """

    waiting: int = 0  # sequences, those of n > 1 that wait for their prompt included
    running: int = 0
    blocks_total: int = 0
    blocks_most: int = 0  # what blocks_total may grow to
    blocks_used: int = 0
    blocks_live: int = 0
    blocks_cached: int = 0  # blocks a later prompt could share, whoever holds them
    blocks_reclaimable: int = 0  # those of them that nobody holds
    blocks_pinned: int = 0
    blocks_free: int = 0  # without any content
    blocks_reserved: int = 0  # kept back when somebody is let in: for what those who run are expected to say still
    evictions: int = 0
    submitted: int = 0
    refused: int = 0
    aborted: int = 0
    failed: int = 0
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    copies: int = 0
    steps: int = 0
    positions: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    decode_max_rows: int = 0
    decode_last_rows: int = 0
    mixed_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    verify_steps: int = 0
    miss_steps: int = 0
    speculation: tuple[str, str] = ("off", "no drafter is configured")  # what guesses, and why that, for people
    tiers: tuple[TierStats, ...] = ()


def snapshot(
    counters: Counters,
    pool: BlockPool,
    waiting: int,
    running: int,
    reserved: int,
    speculation: tuple[str, str],
    tiers: tuple[TierStats, ...],
) -> Stats:
    c = counters
    return Stats(
        waiting=waiting,
        running=running,
        blocks_total=pool.count,
        blocks_most=pool.most,
        blocks_used=pool.count - pool.available,
        blocks_live=pool.live,
        blocks_cached=pool.known,
        blocks_reclaimable=pool.reclaimable,
        blocks_pinned=pool.pinned,
        blocks_free=pool.available - pool.reclaimable,
        blocks_reserved=reserved,
        evictions=pool.evictions,
        submitted=c.submitted,
        refused=c.refused,
        aborted=c.aborted,
        failed=c.failed,
        preemptions=c.preemptions,
        cache_queries=c.cache_queries,
        cache_hits=c.cache_hits,
        copies=c.copies,
        steps=c.steps,
        positions=c.positions,
        decode_steps=c.decode_steps,
        decode_rows=c.decode_rows,
        decode_max_rows=c.decode_max_rows,
        decode_last_rows=c.decode_last_rows,
        mixed_steps=c.mixed_steps,
        drafted=c.drafted,
        accepted=c.accepted,
        verify_steps=c.verify_steps,
        miss_steps=c.miss_steps,
        speculation=speculation,
        tiers=tiers,
    )
