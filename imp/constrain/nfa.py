"""The automaton every front end writes: nodes over bytes, with calls (a stack) and counters.

A configuration is (node, counter, stack). BYTE nodes eat a byte along one of their edges. EPS nodes go on without one.
CALL starts a rule with a counter of 0 and remembers where to go on and the caller's counter; RET goes on there, and at
the outermost level it accepts. TEST and INC are a counted loop: one frame has one counter, so a counted loop inside
another one stands behind a CALL; leaving a loop sets the counter to 0, so one may follow another. LAZY is a node whose
continuation is written when the automaton first reaches it; what that adds may lead to older nodes, and changes none.

Control tokens of a vocabulary are bytes too, and no text contains them: 0xFF, then the token id in three bytes,
highest first (`special`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

UNBOUNDED = -1


class Kind(IntEnum):
    BYTE = 0
    CALL = 1
    RET = 2
    EPS = 3
    TEST = 4
    INC = 5
    LAZY = 6


@dataclass(slots=True)
class Node:
    kind: Kind
    a: int = -1  # CALL: the rule's first node.  TEST: the body's first node.  INC: its TEST
    b: int = -1  # CALL: where to go on.  TEST: where to leave to
    low: int = 0  # TEST: rounds at least
    high: int = UNBOUNDED  # TEST: rounds at most
    edges: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # BYTE: (first byte, last byte, target); EPS: (0, 0, target)


class Nfa:
    """A growing list of nodes; node 0 is the one RET. Front ends build backwards: what follows exists first."""

    def __init__(self, base: Nfa | None = None) -> None:
        """base: a finished one, nothing LAZY in it, whose nodes this one begins with."""
        assert base is None or not base.pending
        self.base = base
        self.nodes: list[Node] = [Node(Kind.RET)] if base is None else base.nodes.copy()
        self.pending: dict[int, Callable[[], int]] = {}
        self.sealed = 0 if base is None else len(base.nodes)  # nodes before this one are in use: they get no more edges

    ret = 0

    def _new(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def byte(self, edges: Iterable[tuple[int, int, int]] = ()) -> int:
        """A BYTE node; edges (first byte, last byte, target), more may be added with `edge`."""
        return self._new(Node(Kind.BYTE, edges=list(edges)))

    def edge(self, node: int, first: int, last: int, target: int) -> None:
        assert node >= self.sealed, "this node is in use"
        self.nodes[node].edges.append((first, last, target))

    def eps(self, *targets: int) -> int:
        """An EPS node to any of `targets`; more may be added with `link`."""
        return self._new(Node(Kind.EPS, edges=[(0, 0, target) for target in targets]))

    def link(self, eps: int, target: int) -> None:
        assert eps >= self.sealed, "this node is in use"
        self.nodes[eps].edges.append((0, 0, target))

    def literal(self, text: bytes, after: int) -> int:
        """These bytes, then `after`."""
        for byte in reversed(text):
            after = self.byte([(byte, byte, after)])
        return after

    def call(self, rule: int, after: int) -> int:
        """The rule that starts at node `rule` (it ends in `ret`), then `after`."""
        return self._new(Node(Kind.CALL, a=rule, b=after))

    def repeat(self, low: int, high: int, after: int, body: Callable[[int], int]) -> int:
        """`low` to `high` rounds (UNBOUNDED: no end), then `after`. body(next) builds one round that goes on at next.

        Uses the frame's counter: neither the body nor anything else of the same rule may use it at the same time.
        """
        test = self._new(Node(Kind.TEST, b=after, low=low, high=high))
        self.nodes[test].a = body(self._new(Node(Kind.INC, a=test)))
        return test

    def test(self, low: int, high: int, body: int, after: int) -> int:
        """On to `body` while the frame's counter is below `high` (UNBOUNDED: always), to `after` once it is `low`."""
        return self._new(Node(Kind.TEST, a=body, b=after, low=low, high=high))

    def inc(self, test: int) -> int:
        """Count one, then on to the TEST. Where that has no upper limit, the counter stops at its lower one."""
        return self._new(Node(Kind.INC, a=test))

    def lazy(self, lower: Callable[[], int]) -> int:
        """A node whose continuation `lower()` builds when it is first reached. What can be refused, refuse before."""
        node = self._new(Node(Kind.LAZY))
        self.pending[node] = lower
        return node

    def forget(self) -> None:
        """Nobody will lower anything any more. What would be written refers to all that it is written from, and often
        to this: without that all of it goes at once, and does not wait for a collection of garbage."""
        self.pending.clear()

    def lower(self, node: int) -> None:
        """Make a LAZY node an EPS to its continuation."""
        target = self.pending[node]()  # where it raises, it will for the next one too
        del self.pending[node]
        self.nodes[node].kind, self.nodes[node].edges = Kind.EPS, [(0, 0, target)]


def special(token: int) -> bytes:
    """The bytes that stand for a control token."""
    return b"\xff" + token.to_bytes(3, "big")
