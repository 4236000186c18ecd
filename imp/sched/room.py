"""What a sequence can share with others, and how long it could ever get. Functions of a pool and a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from imp.sched.blocks import BlockPool, chain
from imp.types import Failed, Pool, Request, Sequence


@dataclass(frozen=True, slots=True)
class Found:
    """What of a sequence's tokens is in the prefix cache: whole blocks, and the first `rows` positions of `source`,
    which goes on like the sequence does and can be copied."""

    blocks: list[int]
    source: int = -1
    rows: int = 0


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


def read_of(pool: BlockPool, seq: Sequence, i: int) -> int:
    """How many positions of its block i are its prompt's."""
    return min(max(len(seq.request.prompt) - i * pool.size, 0), pool.size) if pool.tells_apart else pool.size


def read_only(pool: BlockPool, seq: Sequence, wanted: list[bytes]) -> list[bytes]:
    """Those of its blocks `wanted` that are its prompt's alone."""
    return wanted[: len(seq.request.prompt) // pool.size] if pool.tells_apart else wanted


def find(pool: BlockPool, seq: Sequence, wanted: list[bytes]) -> Found:
    """What of the blocks `wanted`, and of the block after them, the cache has. A prompt that shares no whole block
    shares nothing: every prompt begins like some other one."""
    blocks = pool.match(wanted, seq.tokens, seq.request.salt)
    for i in range(len(seq.request.prompt) // pool.size, len(blocks)):
        if not pool.serves(blocks[i], read_of(pool, seq, i)):
            del blocks[i:]
            break
    if not blocks:
        return Found(blocks)
    at = len(blocks) * pool.size
    following = seq.tokens[at : min(at + pool.size, len(seq.tokens) - 1)]
    begun = pool.beginning(blocks[-1], following, read_of(pool, seq, len(blocks)))
    return Found(blocks, *begun) if begun else Found(blocks)


def publish(pool: BlockPool, seq: Sequence) -> None:
    """Offer what has been computed of a sequence to later ones: its full blocks."""
    size, full = pool.size, seq.computed // pool.size
    if full <= seq.published:
        return
    hashes, blocks = hashes_of(pool, seq), seq.blocks
    for i in range(seq.published, full):
        before = blocks[i - 1] if i else seq.request.salt
        tokens = seq.tokens[i * size : (i + 1) * size]
        blocks[i] = pool.publish(blocks[i], hashes[i], tokens, before, read_of(pool, seq, i), seq.request.shares)
    seq.published = full


def offer_rest(pool: BlockPool, seq: Sequence) -> None:
    """Offer the computed positions behind the last full block, for copying."""
    at = seq.published * pool.size
    if at < seq.computed < at + pool.size and seq.published:
        i = seq.published
        pool.offer(seq.blocks[i], seq.tokens[at : seq.computed], seq.blocks[i - 1], read_of(pool, seq, i))


def room(pool: BlockPool) -> int:
    """Positions a sequence can have at most; pins give way to it."""
    return pool.count * pool.size


def refusal(pool: BlockPool, request: Request, context: int) -> Failed | None:
    """Why a request can never be computed.  context: tokens a sequence may have."""
    length = len(request.prompt)
    more, words = (0, "") if request.pool else (1, " and an answer")  # what is measured is followed by nothing
    if length + more > context:
        message = f"the prompt has {length} tokens; the model's context of {context} must hold it{words}"
        return Failed(request.id, "context_length_exceeded", message)
    most = room(pool)
    if length + more > most:
        message = f"the prompt has {length} tokens; the KV memory of {most} tokens must hold it{words}"
        return Failed(request.id, "kv_pool_floored", message)
    return None


def full_at(pool: BlockPool, seq: Sequence, context: int) -> int:
    """Length in tokens at which the sequence is full."""
    return min(len(seq.request.prompt) + seq.request.limits.max_tokens, context, room(pool))
