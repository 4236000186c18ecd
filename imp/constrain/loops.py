"""Loops of an automaton that eat one character a round, found in its structure.

Where a state stands in such a loop, all tokens made of the loop's characters are allowed at once: masks are filled by
whole ranges and ready-made rows instead of token by token. Front ends need not know: what is not recognised here is
only slower.

A character is described by a small automaton, `BODY` for the inside of a JSON string (RFC 8259: raw characters from
U+0020 but the quote and the backslash, the short escapes, and \\uXXXX where surrogates come in pairs), of which UTF-8
(RFC 3629, no surrogates, at most U+10FFFF) is a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .layout import ANY_BYTE, ESCAPED, EXACT, UNICODE
from .nfa import Kind, Nfa, Node

HOME = "home"
AROUND = (Kind.EPS, Kind.INC)
MAX_WAYS = 32  # that are looked at from one node
Step = tuple[int, int, str]  # first byte, last byte, next state

UTF8: dict[str, list[Step]] = {
    "lead": [
        *[(0xC2, 0xDF, "one more"), (0xE0, 0xE0, "after E0"), (0xE1, 0xEC, "two more"), (0xED, 0xED, "after ED")],
        *[(0xEE, 0xEF, "two more"), (0xF0, 0xF0, "after F0"), (0xF1, 0xF3, "three more"), (0xF4, 0xF4, "after F4")],
    ],
    "one more": [(0x80, 0xBF, HOME)],
    "two more": [(0x80, 0xBF, "one more")],
    "three more": [(0x80, 0xBF, "two more")],
    "after E0": [(0xA0, 0xBF, "one more")],
    "after ED": [(0x80, 0x9F, "one more")],
    "after F0": [(0x90, 0xBF, "two more")],
    "after F4": [(0x80, 0x8F, "two more")],
}


def _digits(after: str) -> list[Step]:
    return [(0x30, 0x39, after), (0x41, 0x46, after), (0x61, 0x66, after)]


ESCAPE: dict[str, list[Step]] = {
    "escape": [*((byte, byte, HOME) for byte in b'"\\/bfnrt'), (0x75, 0x75, "u")],
    "u": [
        *[(0x30, 0x39, "3 digits"), (0x41, 0x43, "3 digits"), (0x61, 0x63, "3 digits")],
        *[(0x44, 0x44, "uD"), (0x64, 0x64, "uD"), (0x45, 0x46, "3 digits"), (0x65, 0x66, "3 digits")],
    ],
    "3 digits": _digits("2 digits"),
    "2 digits": _digits("1 digit"),
    "1 digit": _digits(HOME),
    "uD": [(0x30, 0x37, "2 digits"), (0x38, 0x39, "high"), (0x41, 0x42, "high"), (0x61, 0x62, "high")],
    "high": _digits("high 1"),
    "high 1": _digits("pair"),
    "pair": [(0x5C, 0x5C, "pair u")],
    "pair u": [(0x75, 0x75, "low")],
    "low": [(0x44, 0x44, "low D"), (0x64, 0x64, "low D")],
    "low D": [(0x43, 0x46, "2 digits"), (0x63, 0x66, "2 digits")],
}
PLAIN: list[Step] = [(0x20, 0x21, HOME), (0x23, 0x5B, HOME), (0x5D, 0x7F, HOME)]
BODY: dict[str, list[Step]] = {
    HOME: [*PLAIN, (0x5C, 0x5C, "escape"), *UTF8["lead"]],
    **{state: steps for state, steps in UTF8.items() if state != "lead"},
    **ESCAPE,
}
TEXT: dict[str, list[Step]] = {
    HOME: [(0, 0x7F, HOME), *UTF8["lead"]],
    **{state: steps for state, steps in UTF8.items() if state != "lead"},
}


def steps_table(automaton: dict[str, list[Step]], dead: int) -> np.ndarray:
    """uint8 [states, 256]; state 0 is HOME."""
    numbers = {state: number for number, state in enumerate(automaton)}
    table = np.full((len(automaton), 256), dead, np.uint8)
    for state, steps in automaton.items():
        for first, last, after in steps:
            table[numbers[state], first : last + 1] = numbers[after]
    return table


@dataclass(slots=True)
class Loop:
    """The loop at one BYTE node. inside: the nodes between the bytes of a character of it (not those of an escape:
    there the bytes of the loop's own characters may mean anything)."""

    node: int
    test: int  # the TEST that counts its rounds, or -1
    chars: int  # set of ASCII characters, bit by bit
    flags: int = 0
    edges: set[tuple[int, int, int]] = field(default_factory=set)  # those that are part of it
    inside: set[int] = field(default_factory=set)


def may_loop(nodes: Sequence[Node], number: int, own: int = 0) -> bool:
    """Whether an ASCII byte of BYTE node `number` leads back to it: false of most nodes, and soon said.

    own: no node before this one leads to any from it on."""
    before = -1
    for first, _, target in nodes[number].edges:
        if target >= own and target != before and first < 0x80:
            if target == number or (nodes[target].kind in AROUND and _way_back(nodes, number, target) is not None):
                return True
            before = target
    return False


def _way_back(nodes: Sequence[Node], home: int, target: int) -> int | None:
    """The TEST on a way without bytes from `target` to `home`; -1 where there is a way without one; None for no way."""
    if target == home:
        return -1
    work, seen = [(target, -1)], {target}
    while work and len(seen) < MAX_WAYS:
        place, test = work.pop()
        if place == home:
            return test
        node = nodes[place]
        if node.kind is Kind.EPS and len(node.edges) < MAX_WAYS:
            ways = [(edge[2], test) for edge in node.edges]
        elif node.kind is Kind.INC and test < 0:
            ways = [(nodes[node.a].a, node.a)]
        else:
            continue
        work += [way for way in ways if way[0] not in seen]
        seen |= {place for place, _ in ways}
    return None


def find_loop(nfa: Nfa, node: int) -> Loop | None:
    """The loop in which BYTE node `node` decides on the first byte of every character, if there is one."""
    return _Search(nfa, node).loop()


class _Search:
    """Looks at one node: which of its edges come back to it, whatever else they lead to."""

    def __init__(self, nfa: Nfa, node: int) -> None:
        self._nfa, self._node = nfa, node
        self._returns: dict[int, int | None] = {}  # by target: the TEST passed, -1, or None for no return
        self._places: set[int] = set()  # where characters come back to

    def loop(self) -> Loop | None:
        edges = self._nfa.nodes[self._node].edges
        back = [(edge, self._return(edge[2])) for edge in edges if edge[0] < 128]
        tests = {test for _, test in back if test is not None}
        if len(tests) != 1:
            return None
        found = Loop(self._node, tests.pop(), 0)
        for edge, test in back:
            if test is not None:
                found.chars |= (1 << min(edge[1], 127) + 1) - (1 << edge[0])
                self._places.add(edge[2])
                if edge[1] < 128:
                    found.edges.add(edge)
        if any(edge[1] >= 0x80 for edge in edges):
            if found.test < 0:
                self._extend(found, [(0x80, 0xFE, HOME)], ANY_BYTE)
            self._extend(found, UTF8["lead"], UNICODE)
        if found.flags & UNICODE and self._is_body(found):
            self._extend(found, BODY[HOME][len(PLAIN) : len(PLAIN) + 1], ESCAPED)
        found.flags |= EXACT * (len(self._places) == 1)
        return found if found.chars else None

    def _is_body(self, found: Loop) -> bool:
        return found.chars == sum((1 << last + 1) - (1 << first) for first, last, _ in PLAIN)

    def _extend(self, found: Loop, steps: list[Step], flag: int) -> None:
        """If the node's edges are `steps` over these bytes, and all that follows is a character too: note it."""
        used: set[tuple[int, int, int]] = set()
        inside: dict[tuple[int, str], bool] = {}
        if self._follows(self._node, steps, inside, used):
            found.flags |= flag
            found.edges |= used
            if flag == UNICODE:
                found.inside |= {node for node, _ in inside}

    def _follows(
        self, node: int, steps: list[Step], inside: dict[tuple[int, str], bool], used: set[tuple[int, int, int]]
    ) -> bool:
        """Whether `node` goes on exactly as `steps` over their bytes (and over no others, but for the loop's node)."""
        edges = self._nfa.nodes[node].edges
        covered = 0
        for first, last, after in steps:
            for edge in edges:
                if edge[0] <= last and edge[1] >= first:
                    if not self._leads(edge[2], after, inside, used):
                        return False
                    covered += min(edge[1], last) - max(edge[0], first) + 1
                    used.add(edge)
        wanted = sum(last - first + 1 for first, last, _ in steps)
        whole = node == self._node or wanted == sum(last - first + 1 for first, last, _ in edges)
        return covered == wanted and whole

    def _leads(
        self, target: int, after: str, inside: dict[tuple[int, str], bool], used: set[tuple[int, int, int]]
    ) -> bool:
        if after == HOME:
            if self._return(target) is None:
                return False
            self._places.add(target)
            return True
        target = self._skip(target)
        if self._nfa.nodes[target].kind is not Kind.BYTE or target == self._node:
            return False
        if (target, after) not in inside:
            inside[target, after] = True
            inside[target, after] = self._follows(target, BODY[after], inside, used)
        return inside[target, after]

    def _skip(self, target: int) -> int:
        """Past EPS nodes with one way on."""
        nodes = self._nfa.nodes
        for _ in range(8):
            if nodes[target].kind is not Kind.EPS or len(nodes[target].edges) != 1:
                break
            target = nodes[target].edges[0][2]
        return target

    def _return(self, target: int) -> int | None:
        if target not in self._returns:
            self._returns[target] = _way_back(self._nfa.nodes, self._node, target)
        return self._returns[target]


__all__ = ["BODY", "TEXT", "Loop", "find_loop", "may_loop", "steps_table"]
