"""Names of members other than some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..charset import CharSet, Encoding, add_template, template
from ..nfa import Nfa

QUOTE = 0x22
ESCAPED = CharSet.of((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PLAIN = CharSet.of((0x00, 0x7F)) - ESCAPED
WIDE = ~(ESCAPED | PLAIN)
Edge = tuple[int, int, int]
Trie = dict[str, "Trie"]  # the empty string as a key: a name ends here


def unplain(nfa: Nfa, free: int) -> int:
    """The rest of any string, if it begins with a character that is not PLAIN, spelled canonically.

    free: the rule for the rest of any string. Characters beyond ASCII lead into it by its own nodes, so that it is the
    same string to whoever compares states."""
    ways = (nfa.nodes[target].edges for _, _, target in nfa.nodes[free].edges)
    node = nfa.byte(edge for edges in ways for edge in edges if edge[0] >= 0x80)
    add_template(nfa, node, template(ESCAPED, Encoding.JSON), free)
    return node


def other_names(nfa: Nfa, names: Sequence[str], free: int, unplain: int) -> int:
    """The rule for any name that is none of `names`, from behind its opening quote to its closing one.

    Up to where it differs from all of them it is spelled canonically, so that no escape can spell one of them.
    """
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
    for place in reversed(order):  # one node for each beginning of a name, the longest first
        below = {char: made[id(trie)] for char, trie in place.items() if char}
        end = [] if "" in place else [(QUOTE, QUOTE, nfa.ret)]
        made[id(place)] = _node(nfa, below, end, free, unplain)
    return made[id(root)] if names else free


def _node(nfa: Nfa, below: dict[str, int], edges: list[Edge], free: int, unplain: int) -> int:
    """A name goes on in `below`, or leaves all names with another character."""
    others = _others("".join(below))
    if others is not None:
        edges += [(first, last, free) for first, last in others]
        edges += [(ord(char), ord(char), node) for char, node in below.items()]
        return nfa.eps(nfa.byte(edges), unplain)
    taken = CharSet.chars("".join(below))
    node = nfa.byte(edges)
    for part in (PLAIN, ESCAPED, WIDE):
        add_template(nfa, node, template(part - taken, Encoding.JSON), free)
    for char, target in below.items():
        add_template(nfa, node, template(CharSet.chars(char), Encoding.JSON), target)
    return node


@lru_cache(maxsize=4096)
def _others(chars: str) -> tuple[tuple[int, int], ...] | None:
    """The characters but these that stand for themselves, if these do."""
    taken = CharSet.chars(chars)
    return None if taken - PLAIN else (PLAIN - taken).ranges
