"""What a text may go on with: what followed the same tokens in it before, in its prompt, in what the caller expects it
to be, or in earlier outputs of the same tenant. Implements types.Lookup; belongs to the engine thread.

Outputs are kept for their tenant alone: one API key with one cache salt. Whether a guess is right shows in how fast an
answer comes, and in its usage; so whoever shares a store could learn by trial what the others were told. It is bounded
in tokens: the tenants asked least recently are forgotten first, and of one tenant the older half.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from ..types import Guess, Sequence, Source
from .history import BUFFER, History, search_code
from .search import GAP, LENGTH_BITS

BEFORE = 8  # prompt tokens kept with an output, so that its beginning can be found
SHARE = 4  # one tenant may have this part of the store
SURE = 16  # own matches of so many tokens are not compared with others'

_BYTE = (1 << LENGTH_BITS) - 1
_SOURCES = (Source.RUN, Source.NEAR, Source.REPLACEMENT)


Tenant = tuple[str, bytes]


def tenant_of(seq: Sequence) -> Tenant | None:
    """Whose outputs may serve this one."""
    request = seq.request
    return (request.owner, request.salt) if request.drafting.shares else None


class SuffixLookup:
    """least: tokens of the shortest run that is followed.  shared_tokens: kept of ended outputs, over all tenants."""

    def __init__(self, cache_dir: Path, least: int, shared_tokens: int) -> None:
        self.code, self.least, self.shared_tokens = search_code(cache_dir), least, shared_tokens
        self.tenants: OrderedDict[Tenant | None, History] = OrderedDict()  # the one asked most recently last
        self.kept = 0  # tokens all of them have room for

    def guess(self, seq: Sequence, ahead: list[int], most: int) -> Guess | None:
        own = seq.history
        if own is None:
            own = seq.history = self._begin(seq)
        fresh = seq.tokens[own.known :]
        own.known += len(fresh)
        if len(fresh) + len(ahead) + most >= BUFFER:
            own.extend(fresh)
            fresh = []
        found = own.continuation(fresh, ahead, most)
        matched, source = found >> LENGTH_BITS & _BYTE, _SOURCES[found >> 2 * LENGTH_BITS & _BYTE]
        tokens = self.code.buffer[: found & _BYTE]
        store = self.tenants.get(tenant_of(seq)) if self.tenants and matched < SURE else None
        if store is not None:
            shared = store.continuation_of(own, len(ahead), most)
            if (shared >> LENGTH_BITS & _BYTE) > matched:
                return Guess(self.code.buffer[: shared & _BYTE], Source.SHARED, shared >> LENGTH_BITS & _BYTE)
        if not tokens:
            return None
        return Guess(tokens, source, matched, found >> 3 * LENGTH_BITS)

    def ended(self, seq: Sequence) -> None:
        """Keep its output for the tenant."""
        tenant, seq.history = tenant_of(seq), None
        output = seq.tokens[max(len(seq.request.prompt) - BEFORE, 0) :]
        limit = self.shared_tokens // SHARE
        if not seq.request.drafting.shares or seq.generated <= self.least or len(output) >= limit // 2:
            return
        store = self.tenants.pop(tenant, None) or History(self.code, self.least)
        self.kept -= store.capacity if len(store) else 0
        if len(store) + len(output) + 1 > limit:
            store = store.newest(limit // 2 - len(output))
        store.extend([*output, GAP])
        self.tenants[tenant] = store
        self.kept += store.capacity
        while self.kept > self.shared_tokens:
            _, oldest = self.tenants.popitem(last=False)
            self.kept -= oldest.capacity

    def forget(self) -> None:
        self.tenants.clear()
        self.kept = 0

    def _begin(self, seq: Sequence) -> Text:
        expected, text = seq.request.drafting.prediction, seq.tokens
        own = Text(self.code, self.least, len(expected) + len(text) + 1)
        if expected:
            own.extend([*expected, GAP])
        own.extend(text[: len(seq.request.prompt)])
        own.known = len(seq.request.prompt)
        if expected:
            own.follow(len(expected))
        if tenant_of(seq) in self.tenants:
            self.tenants.move_to_end(tenant_of(seq))
        return own


class Text(History):
    """Of one sequence, behind what is expected of it."""

    __slots__ = ("known",)

    known: int  # tokens of the sequence that are in it
