"""Sets of code points, and the UTF-8 bytes they are spelled with. Knows no regex and no grammar.

The universe is Unicode's scalar values: surrogates have no UTF-8 form, so no text contains them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from itertools import pairwise

from .clock import tick
from .nfa import Nfa

Range = tuple[int, int]  # first and last code point
MAX_CODE_POINT = 0x10FFFF
SCALARS: tuple[Range, ...] = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))


@dataclass(frozen=True)
class CharSet:
    """A set of scalar values as sorted, disjoint ranges that do not touch. Build with `CharSet.of`."""

    ranges: tuple[Range, ...]

    @staticmethod
    def of(*ranges: Range) -> CharSet:
        """The union of ranges in any order; surrogates in them are dropped."""
        return CharSet(_overlap(_normal(ranges), SCALARS))

    @staticmethod
    def chars(text: str) -> CharSet:
        return CharSet.of(*((ord(char), ord(char)) for char in text))

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet(_normal(self.ranges + other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        return CharSet(_overlap(self.ranges, other.ranges))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        gaps, start = [], 0
        for first, last in self.ranges:
            gaps.append((start, first - 1))
            start = last + 1
        gaps.append((start, MAX_CODE_POINT))
        return CharSet(_overlap([gap for gap in gaps if gap[0] <= gap[1]], SCALARS))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __contains__(self, code_point: int) -> bool:
        at = bisect_right(self._starts, code_point) - 1
        return at >= 0 and code_point <= self.ranges[at][1]

    def __iter__(self) -> Iterator[int]:
        return (code_point for first, last in self.ranges for code_point in range(first, last + 1))

    @cached_property
    def _starts(self) -> list[int]:
        return [first for first, _ in self.ranges]


def _normal(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sorted, and merged where they overlap or touch."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _overlap(left: Iterable[Range], right: Iterable[Range]) -> tuple[Range, ...]:
    """The intersection of two sorted lists of disjoint ranges."""
    lefts, rights, common = list(left), list(right), []
    i = j = 0
    while i < len(lefts) and j < len(rights):
        first, last = max(lefts[i][0], rights[j][0]), min(lefts[i][1], rights[j][1])
        if first <= last:
            common.append((first, last))
        if lefts[i][1] < rights[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


NONE = CharSet(())
ALL = CharSet(SCALARS)
DIGITS = CharSet.of((0x30, 0x39))
WORD = CharSet.of((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_TERMINATORS = CharSet.chars("\n\r\u2028\u2029")
# ECMA-262 WhiteSpace and LineTerminator: Zs, the ASCII controls, NBSP and the byte order mark
SPACES = CharSet.of((9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)) | CharSet.of(
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)
)


def partition(sets: Iterable[CharSet]) -> list[tuple[CharSet, int]]:
    """The coarsest partition of all scalar values that every set is a union of, in order of first code points.

    Returns (part, mask): bit i of the mask says that the part lies in the i-th set.
    """
    toggles: dict[int, int] = {}
    count = 0
    for count, chars in enumerate([ALL, *sets]):
        tick(len(chars.ranges))
        for first, last in chars.ranges:
            toggles[first] = toggles.get(first, 0) ^ (1 << count)
            toggles[last + 1] = toggles.get(last + 1, 0) ^ (1 << count)
    parts: dict[int, list[Range]] = {}
    bounds = sorted(toggles)
    mask = 0
    for first, end in pairwise(bounds):
        tick()
        mask ^= toggles[first]
        if mask & 1:
            parts.setdefault(mask >> 1, []).append((first, end - 1))
    return [(CharSet(_normal(ranges)), mask) for mask, ranges in parts.items()]


class Encoding(Enum):
    """How a text is written into the output."""

    RAW = "raw"  # its UTF-8 bytes
    JSON = "json"  # between the quotes of a JSON string: `"`, `\` and controls as json.dumps escapes them


# --- bytes ------------------------------------------------------------------------------------------------------------

# lead byte and code points of what has 1, 2 and 3 continuation bytes (RFC 3629)
_MULTIBYTE = ((0xC0, 0x80, 0x7FF), (0xE0, 0x800, 0xFFFF), (0xF0, 0x10000, 0x10FFFF))
AFTER = -1  # in an edge of a template: the character is complete
Edge = tuple[int, int, int]  # first byte, last byte, index of the next node or AFTER


@dataclass(frozen=True)
class Template:
    """The bytes of one character of a set as a graph: edges of the root, and of the nodes, children first."""

    root: tuple[Edge, ...]
    nodes: tuple[tuple[Edge, ...], ...]


class _Graph:
    """Nodes of a template; equal nodes are one node, so a wide class needs a handful."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[Edge, ...], int] = {}

    def node(self, edges: Iterable[Edge]) -> int:
        return self.nodes.setdefault(_joined(edges), len(self.nodes))

    def tail(self, ranges: tuple[Range, ...], count: int) -> int:
        """The node that reads `count` continuation bytes holding a number within `ranges`."""
        return AFTER if count == 0 else self.node(self.blocks(ranges, count - 1, 0x80))

    def blocks(self, ranges: tuple[Range, ...], rest: int, base: int) -> list[Edge]:
        """Edges for one byte, `base` plus the number's high bits, followed by `rest` continuation bytes."""
        shift = 6 * rest
        low_bits = (1 << shift) - 1
        partial: dict[int, list[Range]] = {}
        edges: list[Edge] = []
        for first, last in ranges:
            start, end = first >> shift, last >> shift
            if first & low_bits:
                stop = min(last - (start << shift), low_bits)
                partial.setdefault(start, []).append((first & low_bits, stop))
                start += 1
            if start <= end and (last + 1) & low_bits:
                partial.setdefault(end, []).append((0, last & low_bits))
                end -= 1
            if start <= end:
                edges.append((base + start, base + end, self.tail(((0, low_bits),), rest)))
        edges += [(base + block, base + block, self.tail(tuple(parts), rest)) for block, parts in partial.items()]
        return edges

    def utf8(self, chars: CharSet) -> list[Edge]:
        edges = [(first, last, AFTER) for first, last in _overlap(chars.ranges, [(0, 0x7F)])]
        for rest, (base, first, last) in enumerate(_MULTIBYTE, 1):
            edges += self.blocks(_overlap(chars.ranges, [(first, last)]), rest, base)
        return edges

    def words(self, words: Iterable[bytes]) -> list[Edge]:
        """Edges of a trie of byte strings, none a prefix of another."""
        heads: dict[int, list[bytes]] = {}
        for word in words:
            heads.setdefault(word[0], []).append(word[1:])
        return [(h, h, AFTER if rests == [b""] else self.node(self.words(rests))) for h, rests in heads.items()]

    def hexadecimal(self, target: int, allowed: str = "0123456789abcdef") -> int:
        return self.node(_hex_edges(target, allowed))

    def every_escape(self) -> list[Edge]:
        """The eight short escapes, and \\uXXXX with surrogates in pairs alone (RFC 8259)."""
        low = self.hexadecimal(self.hexadecimal(AFTER))
        low = self.node([(d, d, self.hexadecimal(low, "cdef")) for d in b"Dd"])
        low = self.node([(0x5C, 0x5C, self.node([(0x75, 0x75, low)]))])
        high = self.hexadecimal(self.hexadecimal(low))
        two = self.hexadecimal(self.hexadecimal(AFTER))
        after_d = self.node(_hex_edges(two, "01234567") + _hex_edges(high, "89ab"))
        unit = _hex_edges(self.hexadecimal(two), "0123456789abcef") + [(d, d, after_d) for d in b"Dd"]
        short = [(char, char, AFTER) for char in b'"\\/bfnrt']
        return [(0x5C, 0x5C, self.node([*short, (0x75, 0x75, self.node(unit))]))]

    def template(self, root: Iterable[Edge]) -> Template:
        return Template(_joined(root), tuple(self.nodes))


def _hex_edges(target: int, allowed: str) -> list[Edge]:
    return [(ord(char), ord(char), target) for digit in allowed for char in {digit, digit.upper()}]


def _joined(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Sorted, neighbours with one target as one edge."""
    joined: list[Edge] = []
    for first, last, target in sorted(edges):
        if joined and joined[-1][2] == target and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last, target)
        else:
            joined.append((first, last, target))
    return tuple(joined)


_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_ESCAPED = CharSet.of((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


def _raw(chars: CharSet) -> Template:
    graph = _Graph()
    return graph.template(graph.utf8(chars))


def _json(chars: CharSet) -> Template:
    graph = _Graph()
    words = [_SHORT.get(code, b"\\u%04x" % code) for code in chars & _ESCAPED]
    return graph.template(graph.utf8(chars - _ESCAPED) + graph.words(words))


_TEMPLATES: dict[Encoding, Callable[[CharSet], Template]] = {Encoding.RAW: _raw, Encoding.JSON: _json}


@lru_cache(maxsize=2048)
def template(chars: CharSet, encoding: Encoding) -> Template:
    """The bytes that spell one character of `chars`."""
    return _TEMPLATES[encoding](chars)


@lru_cache(maxsize=1)
def json_template() -> Template:
    """Any character of a JSON string's body in any spelling: as itself, or escaped in every way RFC 8259 knows."""
    graph = _Graph()
    return graph.template(graph.utf8(ALL - _ESCAPED) + graph.every_escape())


def add_template(nfa: Nfa, node: int, bytes_of: Template, after: int) -> None:
    """Give a BYTE node the edges that read one character and go on at `after`."""
    places: list[int] = []
    for edges in bytes_of.nodes:
        places.append(nfa.byte((first, last, after if to == AFTER else places[to]) for first, last, to in edges))
    for first, last, to in bytes_of.root:
        nfa.edge(node, first, last, after if to == AFTER else places[to])


def char_node(nfa: Nfa, chars: CharSet, after: int, encoding: Encoding) -> int:
    """A BYTE node that reads one character of `chars` in that encoding, then `after`."""
    node = nfa.byte()
    add_template(nfa, node, template(chars, encoding), after)
    return node
