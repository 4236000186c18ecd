"""Attention over the paged KV cache, bit for bit the same however a step is cut up.

Owns how attention is recorded, and the law its parts keep. Knows no models and no sequences. A token's output
depends on its query and its keys only: not on the row it is computed in (decode or prompt), the step's other rows, the
chunking of its prompt or the number of threads. So a cache hit, a preemption or a retry cannot change a text.

What makes it so: for a query, keys are taken in blocks of a fixed place, in order, by the same operations whatever the
queries beside it (attention_micro.py, attention_floats.py). Every CHUNK keys the sums (m, l, o) are closed and *merged*
into those of the chunks before, in order, by one formula (attention_chunks.py). Units differ only in which queries they
hold and which chunks they close themselves (attention_plan.py): the other chunks' sums pass through memory and are
merged by `merge`. The cache is as kept.py says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model.buffers import Buffer
from ..model.ops import Attention, StepLimits
from .attention_chunks import merge
from .attention_floats import FLOATS
from .attention_floats import scratch_bytes as floats_scratch
from .attention_plan import CHUNK, DECODE_QUERIES, ITEM, MERGE, PARTIALS, TILE, plan
from .attention_tiles import TILED
from .attention_tiles import scratch_bytes as tiles_scratch
from .kept import Kept
from .program import SCRATCH_BYTES, Op

if TYPE_CHECKING:
    from .choosing import Choice


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWork:
    """The lists all attention layers of a program share; filled anew in every step by the op `planned`."""

    items: Buffer
    merges: Buffer
    partials: int  # chunk sums there is room for
    tokens: int
    kind: str  # of the code (variants.py)
    choice: Choice | None = None  # which positions choose their blocks; None: none does

    @classmethod
    def sized(cls, limits: StepLimits, kind: str, choice: Choice | None = None) -> AttentionWork:
        chunks = -(-limits.context // CHUNK)
        partials = min(PARTIALS, limits.rows * DECODE_QUERIES * chunks)
        return cls(
            items=Buffer((limits.tokens + partials) * ITEM, "attention items"),
            merges=Buffer(partials * MERGE, "attention merges"),
            partials=partials,
            tokens=limits.tokens,
            kind=kind,
            choice=choice,
        )

    def planned(self) -> Op:
        """The op that has to come before the first attention of a program."""
        lists = (self.items, self.merges)
        if self.choice is None:
            return Op(plan, (*lists, self.partials, 0, 0), writes=lists)
        scored = self.choice.scored
        return Op(plan, (*lists, self.partials, self.choice.sparse.least, scored), writes=(*lists, scored))

    def attended(
        self, q: Buffer, attention: Attention, cache: Any, block_bytes: int, kept: Kept
    ) -> tuple[list[Op], Buffer]:
        """The ops of one layer and what they make, [T, H*d]. `cache` is (the address of) the layer's part of the KV
        cache, kept like this, `block_bytes` the distance of its blocks. Queries are turned where keys are."""
        a = attention
        tiled = self.kind == "amx" and kept in TILED
        attend, scratch_bytes = (TILED[kept], tiles_scratch) if tiled else (FLOATS[kept], floats_scratch)
        needed = scratch_bytes(TILE * a.heads // a.kv_heads, a.head_dim)
        assert a.head_dim % 8 == 0, "head_dim is a multiple of 8"
        assert needed <= SCRATCH_BYTES, "a tile's sums fit the scratch"
        out = Buffer(self.tokens * a.heads * a.head_dim * 4, "attended")
        partials = Buffer(self.partials * a.heads * (a.head_dim + 8) * 4, "attention partials")
        # scores are in units of log2; tanh wants them in units of the cap
        factor = a.scale / a.softcap if a.softcap else a.scale * math.log2(math.e)
        cap = a.softcap * math.log2(math.e) if a.softcap else 0.0
        stored = kept.format.record_bytes(a.head_dim), int(kept.format.turns)
        shape = (a.kv_heads, a.heads // a.kv_heads, a.head_dim, float(factor), a.window or 0, float(cap), *stored)
        choosing: tuple[Any, ...] = (0, 0)
        chosen: list[Buffer] = []
        ops: list[Op] = []
        if self.choice is not None and a.window is None:
            places = self.choice.places(a.kv_heads)
            choosing, chosen = (places, self.choice.blocks), [places]
            ops = self.choice.ops(kept, q, cache, block_bytes, shape, self.items, places)
        first = (q, out, self.items, partials, cache, block_bytes, *shape, *choosing)
        then = (q, out, self.merges, partials, cache, block_bytes, *shape)
        return [
            *ops,
            Op(attend, first, reads=(q, self.items, *chosen), writes=(out, partials)),
            Op(merge, then, reads=(self.merges, partials), writes=(out,)),
        ], out
