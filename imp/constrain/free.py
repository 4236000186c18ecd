"""Text without a constraint, up to a marker from which on there is one.

Free text is any sequence of bytes, since a token may hold half a character, and of the control tokens one allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from .compile import byte_trie
from .nfa import Nfa, special

CONTROL = 0xFF  # begins a control token: nfa.special
BEGINNING = b""  # stands as a symbol of its own where a text begins
WHITE_SPACE = frozenset((b" ", b"\t", b"\r", b"\n"))
Symbols = tuple[bytes, ...]  # single bytes, and control tokens as a whole


def spelled(text: str, controls: Mapping[str, int]) -> bytes:
    """The bytes of a text in the automaton; `controls`: ids of the vocabulary's control tokens, by spelling."""
    found = bytearray()
    at = plain = 0
    longest = max(map(len, controls), default=0)
    while at < len(text):
        for size in range(min(longest, len(text) - at), 0, -1):
            if text[at : at + size] in controls:
                found += text[plain:at].encode() + special(controls[text[at : at + size]])
                at += size
                plain = at
                break
        else:
            at += 1
    return bytes(found + text[plain:].encode())


def unspelled(text: bytes, controls: Mapping[str, int]) -> bytes:
    """What `spelled` made of a text, with all control tokens as ordinary text: who reads an output may not be able to
    tell these apart."""
    spellings = {special(token): spelling.encode() for spelling, token in controls.items()}
    return b"".join(spellings.get(symbol, symbol) for symbol in symbols_of(text))


def free_text(
    nfa: Nfa,
    markers: Mapping[bytes, int],
    controls: Iterable[int],
    ends: bool,
    first: Mapping[bytes, int] = MappingProxyType({}),
) -> int:
    """Free text until the first marker is complete, then the marker's node.

    markers: `spelled` markers, none empty; without one all text is free. controls: control tokens that may come, those
    that end a text not among them. ends: the text may end in `nfa.ret` before a marker came. first: markers, none with
    white space in front, that count where the text begins, behind white space at most.
    """
    targets = {symbols_of(marker): node for marker, node in markers.items()}
    targets |= {(BEGINNING, *symbols_of(marker)): node for marker, node in first.items()}
    prefixes = {marker[:size] for marker in targets for size in range(len(marker))} | {()}
    bodies = {prefix: nfa.byte() for prefix in sorted(prefixes)}
    entries = {prefix: nfa.eps(body, nfa.ret) if ends else body for prefix, body in bodies.items()}
    allowed = {special(token) for token in controls}
    alphabet = {symbol for marker in targets for symbol in marker} - {BEGINNING} | (WHITE_SPACE if first else set())
    for prefix, body in bodies.items():
        ways: dict[int, list[bytes]] = {}
        for symbol in sorted(allowed | alphabet):
            ways.setdefault(_after(prefix, symbol, targets, entries), []).append(symbol)
        other = entries[()]
        known = {symbol[0] for symbol in alphabet if len(symbol) == 1}
        for low, high in _gaps(known):
            nfa.edge(body, low, high, other)
        for node, symbols in ways.items():
            for symbol in symbols:
                if len(symbol) == 1:
                    nfa.edge(body, symbol[0], symbol[0], node)
            tokens = [symbol[1:] for symbol in symbols if len(symbol) > 1]
            if tokens:
                nfa.edge(body, CONTROL, CONTROL, byte_trie(nfa, tokens, node))
    return entries[(BEGINNING,) if first else ()]


def symbols_of(marker: bytes) -> Symbols:
    """The bytes of a text, its control tokens each as one."""
    found: list[bytes] = []
    at = 0
    while at < len(marker):
        size = 4 if marker[at] == CONTROL else 1
        found.append(marker[at : at + size])
        at += size
    return tuple(found)


def _after(prefix: Symbols, symbol: bytes, targets: Mapping[Symbols, int], entries: Mapping[Symbols, int]) -> int:
    """Where free text that ends in `prefix` goes on after `symbol` (Aho and Corasick 1975)."""
    text = prefix if prefix == (BEGINNING,) and symbol in WHITE_SPACE else (*prefix, symbol)
    suffixes = [text[start:] for start in range(len(text) + 1)]
    complete = [targets[suffix] for suffix in suffixes if suffix in targets]
    return complete[0] if complete else next(entries[suffix] for suffix in suffixes if suffix in entries)


def _gaps(known: Iterable[int]) -> Sequence[tuple[int, int]]:
    """Ranges of the bytes below CONTROL that are not in `known`."""
    bounds = [-1, *sorted(known), CONTROL]
    return [(a + 1, b - 1) for a, b in pairwise(bounds) if a + 1 <= b - 1]
