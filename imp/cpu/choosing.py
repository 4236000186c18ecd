"""Which blocks a sparse position attends to (model/sparse.py): their best scores, then a map of those that are chosen.

A position's map depends on its own query and keys alone, so it is the same however a step is cut up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..model.ops import StepLimits
from ..model.sparse import Sparse
from .attention_chunks import clear, helper
from .attention_floats import map_of
from .attention_micro import LINE, NARROW, direct_scores_of, gather_of, scatter
from .attention_plan import CHUNK, ITEM
from .kept import BLOCK, Kept
from .kv import KEPT
from .program import (
    STEP_DECODE_COUNT,
    STEP_POSITIONS,
    STEP_SCORE_COUNT,
    STEP_SPARSE_COUNT,
    STEP_TABLE,
    STEP_TABLE_STARTS,
    Buffer,
    Kernel,
    Op,
    count,
    kernel,
)
from .simd import (
    V,
    Var,
    float32,
    int64,
    largest,
    load_f32x8,
    load_i32,
    loop,
    maximum,
    micro,
    prefetch,
    real,
    store_f32,
    store_i32,
    word,
)


@micro(int64, int64, returns=float32)
def _best(scores: V, rows: V) -> V:
    """The largest of scores [rows][16]."""
    top = Var(load_f32x8(scores))
    for r in loop(0, rows * 2):
        top.set(maximum(load_f32x8(scores + r * 32), top))
    return largest(V(top.ir))


@micro(int64, int64)
def _ask(address: V, size: V) -> None:
    """For memory that will be read next."""
    for line in loop(0, size, LINE):
        prefetch(address + line)


@count
def _score_units(args, step):
    return word(step, STEP_SCORE_COUNT) * word(args, 6)


def _score(kept: Kept) -> Kernel:
    in_place, gather, direct_scores = kept.in_place, gather_of(kept), direct_scores_of(kept, asks=False)
    key_bytes = BLOCK * kept.element.size if in_place else 0  # of a column; where they are spread, `gather` asks

    @kernel(_score_units, name=f"attention.score_{kept.name}")
    def score(args, step, unit, scratch):
        """The best score of each block of one chunk, for one sparse query and kv head, into its place of the map.
        args: as attend's, with 2 the list of chunks; 16, 17: blocks at the beginning and positions at the end that need
        none."""
        kv_heads, share, d, record = word(args, 6), word(args, 7), word(args, 8), word(args, 12)
        item, head = word(args, 2) + unit // kv_heads * ITEM, unit % kv_heads
        query, row, chunk = load_i32(item), load_i32(item + 8), load_i32(item + 12)
        position = load_i32(word(step, STEP_POSITIONS) + query * 4)
        table = word(step, STEP_TABLE) + load_i32(word(step, STEP_TABLE_STARTS) + row * 4) * 4
        cache, block_bytes = word(args, 4) + head * 2 * BLOCK * record, word(args, 5)
        places = map_of(args, load_i32(item + 28), head)
        q, k = scratch, scratch + share * d * 4
        v = k + d * 64
        scores = v + d * 64
        source = word(args, 0) + (query * kv_heads + head) * share * d * 4
        for r in range(share):
            tile = r // NARROW * NARROW
            width = min(NARROW, share - tile)
            scatter(source + r * d * 4, q + (tile * d + r - tile) * 4, width * 4, d, real(args, 9))
        latest = max(0, position + 1 - word(args, 17)) // BLOCK
        first = max(chunk * CHUNK // BLOCK, word(args, 16))
        after = min((chunk + 1) * CHUNK // BLOCK, latest)
        for block in range(first, after):
            here = cache + load_i32(table + block * 4) * block_bytes
            following = cache + load_i32(table + min(block + 1, after - 1) * 4) * block_bytes
            _ask(following, d * key_bytes)
            gather(here, k, v, d, BLOCK, record, following)
            direct_scores(q, here if in_place else k, d, share, scores, following)
            store_f32(places + block * 4, _best(scores, share))

    return score


SCORES = {kept: _score(kept) for kept in KEPT.values()}


@count
def _choose_units(args, step):
    return word(step, STEP_SPARSE_COUNT) * word(args, 6)


@helper
def _order(place):
    """A score as an integer that is larger where the score is."""
    raw = load_i32(place)
    return (raw if raw >= 0 else -0x80000000 - raw - 1) + 0x80000000


@kernel(_choose_units)
def choose(args, step, unit, scratch):
    """Scores become ones for the blocks that are chosen, else zeros. args: as score's, with 2 the items, 18: how many
    are chosen between the two ends."""
    kv_heads, first, count = word(args, 6), word(args, 16), word(args, 18)
    dense = word(step, STEP_DECODE_COUNT) - word(step, STEP_SPARSE_COUNT)
    item = word(args, 2) + (dense + unit // kv_heads) * ITEM
    position = load_i32(word(step, STEP_POSITIONS) + load_i32(item) * 4)
    places = map_of(args, load_i32(item + 28), unit % kv_heads)
    latest, known = max(0, position + 1 - word(args, 17)) // BLOCK, position // BLOCK + 1
    # the count-th largest, from its highest byte to its lowest
    least, left, all_fit = 0, count, latest - first <= count
    for byte in (24, 16, 8, 0):
        if all_fit:
            break
        clear(scratch, 256)
        for block in range(first, latest):
            value = _order(places + block * 4)
            if value >> (byte + 8) == least >> (byte + 8):
                at = scratch + (value >> byte & 255) * 4
                store_i32(at, load_i32(at) + 1)
        digit = 255
        while load_i32(scratch + digit * 4) < left:
            left -= load_i32(scratch + digit * 4)
            digit -= 1
        least |= digit << byte
    for block in range(known):
        keep = block < first or block >= latest or all_fit
        if not keep:
            value = _order(places + block * 4)
            keep = value > least
            if value == least and left > 0:
                keep = True
                left -= 1
        store_i32(places + block * 4, 1 if keep else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What sparse positions share in all layers of a program."""

    sparse: Sparse
    scored: Buffer  # chunks whose blocks are scored
    tokens: int
    blocks: int  # of the longest sequence

    @classmethod
    def sized(cls, sparse: Sparse, limits: StepLimits) -> Choice:
        chunks = -(-limits.context // CHUNK)
        scored = Buffer(limits.tokens * chunks * ITEM, "chunks that are scored")
        return cls(sparse, scored, limits.tokens, -(-limits.context // BLOCK))

    def places(self, kv_heads: int) -> Buffer:
        return Buffer(self.tokens * kv_heads * self.blocks * 4, "chosen blocks")

    def ops(
        self, kept: Kept, q: Buffer, cache: Any, block_bytes: int, shape: tuple[Any, ...], items: Buffer, places: Buffer
    ) -> list[Op]:
        """To come before a layer's attention."""
        sink, top = self.sparse.blocks(BLOCK)
        behind = (0, cache, block_bytes, *shape, places, self.blocks, sink, self.sparse.recent, top)
        return [
            Op(SCORES[kept], (q, 0, self.scored, *behind), reads=(q, self.scored), writes=(places,)),
            Op(choose, (q, 0, items, *behind), reads=(items, places), writes=(places,)),
        ]
