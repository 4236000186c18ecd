"""What a sequence can share with others, and how long it could ever get. Pure functions of a pool and a sequence."""

from __future__ import annotations

from imp.sched.blocks import BlockPool, chain
from imp.types import Pool, Sequence


def hashes_of(pool: BlockPool, seq: Sequence) -> list[bytes]:
    """Of every full block of its tokens; kept in the sequence."""
    return chain(seq.tokens, pool.size, seq.request.salt, seq.hashes)


def reads_cache(seq: Sequence) -> bool:
    """Prompt logprobs want logits at every position, so every position is computed, once; some pools want states of
    positions that the cache would skip."""
    request = seq.request
    if request.pool in (Pool.MEAN, Pool.FIRST):
        return False
    return request.sampling.prompt_logprobs is None or len(seq.prompt_logprobs) == len(request.prompt)


def shareable(pool: BlockPool, seq: Sequence) -> list[bytes]:
    """Hashes of the blocks this sequence may take from the prefix cache.

    The last token must be computed anyway: its logits are what the step is for.
    """
    if not reads_cache(seq):
        return []
    return hashes_of(pool, seq)[: (len(seq.tokens) - 1) // pool.size]


def room(pool: BlockPool, seq: Sequence) -> int:
    """Positions this sequence can have at most: all blocks but those pinned, and the pinned ones it can share."""
    blocks = pool.count - pool.pinned
    if pool.pinned:
        blocks += pool.pinned_prefix(shareable(pool, seq))
    return blocks * pool.size
