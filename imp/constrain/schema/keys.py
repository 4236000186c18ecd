"""Names of members other than some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..charset import CharSet, Encoding, add_template, template
from ..nfa import Nfa

QUOTE = 0x22
ESCAPED = CharSet.of((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PLAIN = CharSet.of((0x00, 0x7F)) - ESCAPED
WIDE = ~(ESCAPED | PLAIN)
Edge = tuple[int, int, int]
Trie = dict[str, "Trie"]  # the empty string as a key: a name ends here


class OtherNames:
    """The rule for any name that is none of `names`, from behind its opening quote to its closing one.

    Up to where it differs from all of them it is spelled canonically, so that no escape can spell one of them.
    `free` is the rule for the rest of any string; characters beyond ASCII lead into it by its own nodes, so that it is
    the same string to whoever compares states.
    """

    def __init__(self, nfa: Nfa, names: Sequence[str], free: int) -> None:
        self._nfa, self._free = nfa, free
        self._edges: dict[CharSet, list[Edge]] = {WIDE: _wide_edges(nfa, free)}
        self.start = self._diverging(names) if names else free

    def _diverging(self, names: Iterable[str]) -> int:
        """One node for each beginning of a name, the longest first."""
        root: Trie = {}
        order = [root]
        for name in names:
            place = root
            for char in name:
                if char not in place:
                    place[char] = {}
                    order.append(place[char])
                place = place[char]
            place[""] = {}
        made: dict[int, int] = {}
        for place in reversed(order):
            below = {char: made[id(trie)] for char, trie in place.items() if char}
            edges = [] if "" in place else [(QUOTE, QUOTE, self._nfa.ret)]
            made[id(place)] = self._node(below, edges)
        return made[id(root)]

    def _node(self, below: dict[str, int], edges: list[Edge]) -> int:
        """A name goes on in `below`, or leaves all names with another character."""
        codes = sorted(map(ord, below))
        if all(code in PLAIN for code in codes):
            first = 0
            for code in [*codes, 0x80]:
                edges += self._between(first, code - 1)
                first = code + 1
            edges += [(ord(char), ord(char), node) for char, node in below.items()]
            return self._nfa.byte(edges + self._leaving(ESCAPED) + self._leaving(WIDE))
        taken = CharSet.chars("".join(below))
        node = self._nfa.byte(edges + [edge for part in (PLAIN, ESCAPED, WIDE) for edge in self._leaving(part - taken)])
        for char, target in below.items():
            add_template(self._nfa, node, template(CharSet.chars(char), Encoding.JSON), target)
        return node

    def _between(self, first: int, last: int) -> Iterable[Edge]:
        """Characters that stand for themselves."""
        for low, high in PLAIN.ranges:
            if first <= high and low <= last:
                yield max(first, low), min(last, high), self._free

    def _leaving(self, chars: CharSet) -> list[Edge]:
        """The edges of one character of the set, then anything."""
        if chars not in self._edges:
            node = self._nfa.byte()
            add_template(self._nfa, node, template(chars, Encoding.JSON), self._free)
            self._edges[chars] = self._nfa.nodes[node].edges
        return self._edges[chars]


def _wide_edges(nfa: Nfa, free: int) -> list[Edge]:
    """The edges of characters beyond ASCII, of the rule for the rest of any string: one of the ways it begins."""
    ways = (nfa.nodes[target].edges for _, _, target in nfa.nodes[free].edges)
    return [edge for edges in ways for edge in edges if edge[0] >= 0x80]
