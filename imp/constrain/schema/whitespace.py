"""What may stand between the tokens of a JSON text."""

from __future__ import annotations

from enum import Enum

from ..nfa import Nfa

INDENT = 40
BLANKS = ((0x09, 0x09), (0x20, 0x20))


class Whitespace(Enum):
    COMPACT = "compact"  # nothing
    BOUNDED = "bounded"  # nothing, a space, or a newline and up to INDENT spaces and tabs
    ANY = "any"  # any amount


class Spacer:
    """`before(node)`: whitespace, then `node`. One rule for all of it."""

    def __init__(self, nfa: Nfa, mode: Whitespace) -> None:
        self._nfa, self._made = nfa, dict[int, int]()
        rules = {Whitespace.COMPACT: lambda: None, Whitespace.BOUNDED: self._bounded, Whitespace.ANY: self._any}
        self._rule: int | None = rules[mode]()

    def before(self, after: int) -> int:
        if self._rule is None:
            return after
        if after not in self._made:
            self._made[after] = self._nfa.call(self._rule, after)
        return self._made[after]

    def _bounded(self) -> int:
        nfa = self._nfa
        indent = nfa.repeat(0, INDENT, nfa.ret, lambda following: nfa.byte([(*blank, following) for blank in BLANKS]))
        return nfa.eps(nfa.ret, nfa.byte([(0x20, 0x20, nfa.ret), (0x0A, 0x0A, indent)]))

    def _any(self) -> int:
        loop = self._nfa.eps(self._nfa.ret)
        self._nfa.link(loop, self._nfa.byte([(byte, byte, loop) for byte in b"\t\n\r "]))
        return loop
