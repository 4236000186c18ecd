"""Names of members other than some."""

from __future__ import annotations

from collections.abc import Sequence

from ..charset import CharSet, Encoding, add_template, template
from ..nfa import Nfa

QUOTE = 0x22
ESCAPED = CharSet.of((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PLAIN = CharSet.of((0x00, 0x7F)) - ESCAPED
WIDE = ~(ESCAPED | PLAIN)
Edge = tuple[int, int, int]


class OtherNames:
    """The rule for any name that is none of `names`, from behind its opening quote to its closing one.

    Up to where it differs from all of them it is spelled canonically, so that no escape can spell one of them.
    `free` is the rule for the rest of any string.
    """

    def __init__(self, nfa: Nfa, names: Sequence[str], free: int) -> None:
        self._nfa, self._free = nfa, free
        self._edges: dict[CharSet, list[Edge]] = {}
        self.start = self._diverging(sorted(set(names)), 0) if names else free

    def _diverging(self, names: list[str], depth: int) -> int:
        """`names`: those that begin with the `depth` characters read so far."""
        nfa = self._nfa
        node = nfa.byte([(QUOTE, QUOTE, nfa.ret)] if len(names[0]) > depth else [])
        groups: dict[str, list[str]] = {}
        for name in names:
            if len(name) > depth:
                groups.setdefault(name[depth], []).append(name)
        taken = CharSet.chars("".join(groups))
        for part in (PLAIN, ESCAPED, WIDE):
            for first, last, target in self._leaving(part - taken):
                nfa.edge(node, first, last, target)
        for char, group in groups.items():
            below = nfa.lazy(lambda group=group: self._diverging(group, depth + 1))  # type: ignore[misc]
            add_template(nfa, node, template(CharSet.chars(char), Encoding.JSON), below)
        return node

    def _leaving(self, chars: CharSet) -> list[Edge]:
        """The edges of one character of the set, then anything."""
        if chars not in self._edges:
            node = self._nfa.byte()
            add_template(self._nfa, node, template(chars, Encoding.JSON), self._free)
            self._edges[chars] = self._nfa.nodes[node].edges
        return self._edges[chars]
