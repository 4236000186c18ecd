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

    def __init__(self, nfa: Nfa, rule: int | None) -> None:
        """rule: what `whitespace_rule` wrote."""
        self._nfa, self._rule, self._made = nfa, rule, dict[int, int]()

    def before(self, after: int) -> int:
        if self._rule is None:
            return after
        if after not in self._made:
            self._made[after] = self._nfa.call(self._rule, after)
        return self._made[after]


def whitespace_rule(nfa: Nfa, mode: Whitespace) -> int | None:
    """The rule for all that may stand in one place; None where that is nothing."""
    if mode is Whitespace.COMPACT:
        return None
    return _bounded(nfa) if mode is Whitespace.BOUNDED else _any(nfa)


def _bounded(nfa: Nfa) -> int:
    indent = nfa.repeat(0, INDENT, nfa.ret, lambda following: nfa.byte([(*blank, following) for blank in BLANKS]))
    return nfa.eps(nfa.ret, nfa.byte([(0x20, 0x20, nfa.ret), (0x0A, 0x0A, indent)]))


def _any(nfa: Nfa) -> int:
    loop = nfa.eps(nfa.ret)
    nfa.link(loop, nfa.byte([(byte, byte, loop) for byte in b"\t\n\r "]))
    return loop
