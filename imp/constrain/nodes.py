"""The nodes of an automaton as machine code reads them: three arrays that follow an Nfa as it grows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from . import layout
from .context import Context, Forms, Piece
from .loops import find_loop, may_loop
from .nfa import UNBOUNDED, Kind, Nfa

MOST = 2**31 - 2  # rounds of a loop that can be told apart
NODE_FORMS: Forms = {  # as the arrays begin
    layout.NODES: ((512, 8), np.int32),
    layout.LOOPS: ((512, 4), np.uint64),
    layout.EDGES: ((2048, 4), np.int32),
}


class NodeTables:
    """NODES, LOOPS and EDGES of one Nfa, in a context that has them."""

    def __init__(self, nfa: Nfa, context: Context) -> None:
        self._nfa, self._arrays = nfa, context
        self._read = self._edges = 0  # how much of the Nfa is in the arrays
        self._own = len(nfa.base.nodes) if nfa.base else 0  # the first node that is not the base's
        self.loops: list[int] = []  # nodes that decide on characters of loops
        if nfa.base is not None:
            self._copy(_tables_of(nfa.base))
        self.read()

    def _copy(self, base: NodeTables) -> None:
        for slot, used in ((layout.NODES, base._read), (layout.LOOPS, base._read), (layout.EDGES, base._edges)):
            self._arrays.reserve(slot, used)
            self._arrays[slot][:used] = base._arrays[slot][:used]
        self._read, self._edges = base._read, base._edges

    def read(self, changed: Sequence[int] = ()) -> None:
        """Copy new nodes, and the `changed` ones (EPS now, LAZY before), into the arrays."""
        nodes, read = self._nfa.nodes, self._read
        new = nodes[read:]
        ways = [node.edges for node in new]
        flat = array("i")
        for edge in [edge for way in ways for edge in way]:
            flat.extend(edge)
        at = self._edges + len(flat) // 3
        self._arrays.reserve(layout.NODES, len(nodes))
        self._arrays.reserve(layout.LOOPS, len(nodes))
        self._arrays.reserve(layout.EDGES, at + len(changed))
        table, edges = self._arrays[layout.NODES], self._arrays[layout.EDGES]
        if new:
            own = array("i", [number for node in new for number in (node.kind, node.a, node.b)])
            ends = array("i", accumulate(map(len, ways), initial=self._edges))
            rows = table[read : len(nodes)]
            rows[:, : layout.LOW] = np.frombuffer(own, np.int32).reshape(-1, 3)
            rows[:, layout.LOW : layout.FIRST_EDGE] = 0, UNBOUNDED
            rows[:, layout.FIRST_EDGE], rows[:, layout.LAST_EDGE], rows[:, layout.TEST] = ends[:-1], ends[1:], -1
            self._arrays[layout.LOOPS][read : len(nodes)] = 0
        if flat:
            edges[self._edges : at, :3] = np.frombuffer(flat, np.int32).reshape(-1, 3)
            edges[self._edges : at, layout.EDGE_LOOPS] = 0
        for number in changed:
            edges[at] = *nodes[number].edges[0], 0
            table[number] = nodes[number].kind, -1, -1, 0, UNBOUNDED, at, at + 1, -1
            at += 1
        self._read, self._edges, self._nfa.sealed = len(nodes), at, len(nodes)
        for number, node in enumerate(new, read):
            if node.kind is Kind.BYTE:
                if may_loop(nodes, number, self._own):
                    self._note_loop(number)
            elif node.kind is Kind.TEST:
                table[number, layout.LOW : layout.FIRST_EDGE] = min(node.low, MOST), min(node.high, MOST)

    def _note_loop(self, number: int) -> None:
        loop = find_loop(self._nfa, number)
        if loop is None:
            return
        nodes, loops, edges = self._arrays[layout.NODES], self._arrays[layout.LOOPS], self._arrays[layout.EDGES]
        self.loops.append(number)
        low, high = loop.chars & (1 << 64) - 1, loop.chars >> 64
        first = nodes[number, layout.FIRST_EDGE]
        for place, edge in enumerate(self._nfa.nodes[number].edges):
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
