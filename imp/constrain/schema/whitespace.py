"""What may stand between the tokens of a JSON text."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ..nfa import Nfa

INDENT = 40
BLANKS = ((0x09, 0x09), (0x20, 0x20))


class Whitespace(Enum):
    COMPACT = "compact"  # nothing
    BOUNDED = "bounded"  # nothing, a space, or a newline and up to INDENT spaces and tabs
    ANY = "any"  # any amount


class Spacer:
    """`before(node)`: whitespace, then `node`."""

    def __init__(self, nfa: Nfa, mode: Whitespace) -> None:
        self._nfa, self._made = nfa, dict[int, int]()
        self._make: Callable[[int], int] = {
            Whitespace.COMPACT: lambda after: after,
            Whitespace.BOUNDED: self._bounded,
            Whitespace.ANY: self._any,
        }[mode]
        self._indent: int | None = None

    def before(self, after: int) -> int:
        if after not in self._made:
            self._made[after] = self._make(after)
        return self._made[after]

    def _bounded(self, after: int) -> int:
        if self._indent is None:
            self._indent = self._nfa.repeat(
                0, INDENT, self._nfa.ret, lambda following: self._nfa.byte([(*blank, following) for blank in BLANKS])
            )
        indented = self._nfa.call(self._indent, after)
        return self._nfa.eps(self._nfa.byte([(0x20, 0x20, after), (0x0A, 0x0A, indented)]), after)

    def _any(self, after: int) -> int:
        loop = self._nfa.eps(after)
        self._nfa.link(loop, self._nfa.byte([(byte, byte, loop) for byte in b"\t\n\r "]))
        return loop
