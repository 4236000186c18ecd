"""The nodes of an automaton as machine code reads them: three arrays that follow an Nfa as it grows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from . import layout
from .clock import tick
from .context import Context, Forms, Piece
from .loops import find_loop, may_loop
from .nfa import UNBOUNDED, Kind, Nfa, Node

MOST = 2**31 - 2  # rounds of a loop that can be told apart
AT_ONCE = 512  # nodes copied, in half a millisecond
NODE_FORMS: Forms = {  # as the arrays begin
    layout.NODES: ((512, 8), np.int32),
    layout.LOOPS: ((512, 4), np.uint64),
    layout.EDGES: ((2048, 4), np.int32),
}


class NodeTables:
    """NODES, LOOPS and EDGES of one Nfa, in a context that has them."""

    def __init__(self, nfa: Nfa, context: Context) -> None:
        self._arrays = context
        self._read = self._edges = 0  # how much of the Nfa is in the arrays
        self._own = len(nfa.base.nodes) if nfa.base else 0  # the first node that is not the base's
        self.loops: list[int] = []  # nodes that decide on characters of loops
        if nfa.base is not None:
            self._copy(_tables_of(nfa.base))
        for work in self._append(nfa):
            tick(work)

    def _copy(self, base: NodeTables) -> None:
        for slot, used in ((layout.NODES, base._read), (layout.LOOPS, base._read), (layout.EDGES, base._edges)):
            self._arrays.reserve(slot, used)
            self._arrays[slot][:used] = base._arrays[slot][:used]
        self._read, self._edges = base._read, base._edges

    def read(self, nfa: Nfa, changed: Sequence[int] = ()) -> None:
        """Copy new nodes, and the `changed` ones (EPS now, LAZY before), into the arrays: all of it, however long it
        takes, since what is half done could not be gone on with."""
        for _ in self._append(nfa):
            pass
        self._arrays.reserve(layout.EDGES, self._edges + len(changed))
        table, edges = self._arrays[layout.NODES], self._arrays[layout.EDGES]
        for number in changed:
            edges[self._edges] = *nfa.nodes[number].edges[0], 0
            table[number] = nfa.nodes[number].kind, -1, -1, 0, UNBOUNDED, self._edges, self._edges + 1, -1
            self._edges += 1

    def _append(self, nfa: Nfa) -> Iterator[int]:
        """Copy new nodes, in pieces; yields how much each was, as `tick` counts it."""
        first = self._read
        self._arrays.reserve(layout.NODES, len(nfa.nodes))
        self._arrays.reserve(layout.LOOPS, len(nfa.nodes))
        while self._read < len(nfa.nodes):
            self._copy_fields(nfa.nodes[self._read : self._read + AT_ONCE])
            yield AT_ONCE
        nfa.sealed, table = len(nfa.nodes), self._arrays[layout.NODES]
        for number in range(first, len(nfa.nodes)):
            node = nfa.nodes[number]
            if node.kind is Kind.BYTE:
                yield 1
                if may_loop(nfa.nodes, number, self._own):
                    self._note_loop(nfa, number)
                    yield 32
            elif node.kind is Kind.TEST:
                table[number, layout.LOW : layout.FIRST_EDGE] = min(node.low, MOST), min(node.high, MOST)

    def _copy_fields(self, nodes: list[Node]) -> None:
        """What of these is said by their own fields."""
        ways = [node.edges for node in nodes]
        flat = array("i")
        for edge in [edge for way in ways for edge in way]:
            flat.extend(edge)
        first, last = self._edges, self._edges + len(flat) // 3
        self._arrays.reserve(layout.EDGES, last)
        own = array("i", [number for node in nodes for number in (node.kind, node.a, node.b)])
        ends = array("i", accumulate(map(len, ways), initial=first))
        read = self._read + len(nodes)
        rows = self._arrays[layout.NODES][self._read : read]
        rows[:, : layout.LOW] = np.frombuffer(own, np.int32).reshape(-1, 3)
        rows[:, layout.LOW : layout.FIRST_EDGE] = 0, UNBOUNDED
        rows[:, layout.FIRST_EDGE], rows[:, layout.LAST_EDGE], rows[:, layout.TEST] = ends[:-1], ends[1:], -1
        self._arrays[layout.LOOPS][self._read : read] = 0
        if flat:
            edges = self._arrays[layout.EDGES][first:last]
            edges[:, :3] = np.frombuffer(flat, np.int32).reshape(-1, 3)
            edges[:, layout.EDGE_LOOPS] = 0
        self._read, self._edges = read, last

    def _note_loop(self, nfa: Nfa, number: int) -> None:
        loop = find_loop(nfa, number)
        if loop is None:
            return
        nodes, loops, edges = self._arrays[layout.NODES], self._arrays[layout.LOOPS], self._arrays[layout.EDGES]
        self.loops.append(number)
        low, high = loop.chars & (1 << 64) - 1, loop.chars >> 64
        first = nodes[number, layout.FIRST_EDGE]
        for place, edge in enumerate(nfa.nodes[number].edges):
            edges[first + place, layout.EDGE_LOOPS] = edge in loop.edges
        for node in {number, *loop.inside}:
            inside = 0 if node == number else layout.INSIDE
            loops[node] = low, high, loop.flags | inside, 0
            nodes[node, layout.TEST] = loop.test
            if inside:
                edges[nodes[node, layout.FIRST_EDGE] : nodes[node, layout.LAST_EDGE], layout.EDGE_LOOPS] = 1


@cache
def _tables_of(base: Nfa) -> NodeTables:
    context = Context()
    context.add(Piece(NODE_FORMS))
    return NodeTables(base, context)
