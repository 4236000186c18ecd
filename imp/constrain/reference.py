"""What an automaton of nfa.py means, in plain Python: sets of configurations, advanced byte by byte.

For whoever has no vocabulary and needs no speed: front ends that check themselves, and the judge of the fast form
(automaton.py), which computes the same sets in machine code.
"""

from __future__ import annotations

from .errors import Code, ConstraintError
from .nfa import UNBOUNDED, Kind, Nfa

Configuration = tuple[int, int, int]  # (node, counter, stack: a number of `_stacks`)
BOTTOM = -1  # the stack of the outermost level

CLOSURE = 1 << 16  # configurations of one state at most, those passed on the way included


class Reference:
    """The determinised automaton of `nfa` from `start`, computed as far as it is walked. States are frozen sets of
    BYTE configurations, with None among them where the text may end. Lowers LAZY nodes when it reaches them."""

    def __init__(self, nfa: Nfa, start: int) -> None:
        self._nfa = nfa
        self._steps: dict[tuple[frozenset[Configuration | None], int], frozenset[Configuration | None]] = {}
        self._stacks: list[Configuration] = []  # where to go on, with the caller's counter and stack
        self._numbers: dict[Configuration, int] = {}
        self.first = self._closure([(start, 0, BOTTOM)])

    def advance(self, state: frozenset[Configuration | None], data: bytes) -> frozenset[Configuration | None]:
        """The state after `data`; empty where no text of the language begins like that."""
        for byte in data:
            following = self._steps.get((state, byte))
            if following is None:
                following = self._steps[state, byte] = self._step(state, byte)
            state = following
        return state

    def _step(self, state: frozenset[Configuration | None], byte: int) -> frozenset[Configuration | None]:
        moved = [
            (target, configuration[1], configuration[2])
            for configuration in state
            if configuration is not None
            for first, last, target in self._nfa.nodes[configuration[0]].edges
            if first <= byte <= last
        ]
        return self._closure(moved)

    def _closure(self, work: list[Configuration]) -> frozenset[Configuration | None]:
        """All that is reached without a byte; raises ConstraintError where that does not end."""
        seen, result = set(work), set[Configuration | None]()
        work = list(seen)
        while work:
            for reached in self._reached(work.pop(), result):
                if reached not in seen:
                    seen.add(reached)
                    work.append(reached)
            if len(seen) > CLOSURE:
                raise ConstraintError(Code.TOO_LARGE, "", "a rule calls itself before any text, or is too ambiguous")
        return frozenset(result)

    def _reached(self, configuration: Configuration, result: set[Configuration | None]) -> list[Configuration]:
        """One step without a byte. Adds what waits for a byte, or for the end, to `result`."""
        place, count, stack = configuration
        node = self._nfa.nodes[place]
        if node.kind is Kind.LAZY:
            self._nfa.lower(place)
        match node.kind:
            case Kind.BYTE:
                result.add(configuration)
            case Kind.EPS:
                return [(target, count, stack) for _, _, target in node.edges]
            case Kind.CALL:
                tail = self._nfa.nodes[node.b].kind is Kind.RET
                return [(node.a, 0, stack if tail else self._push((node.b, count, stack)))]
            case Kind.RET if stack == BOTTOM:
                result.add(None)
            case Kind.RET:
                return [self._stacks[stack]]
            case Kind.TEST:
                body = [(node.a, count, stack)] if node.high == UNBOUNDED or count < node.high else []
                return body + ([(node.b, 0, stack)] if count >= node.low else [])
            case Kind.INC:
                test = self._nfa.nodes[node.a]
                return [(node.a, min(count + 1, test.low) if test.high == UNBOUNDED else count + 1, stack)]
        return []

    def _push(self, cell: Configuration) -> int:
        number = self._numbers.setdefault(cell, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(cell)
        return number


def accepts(nfa: Nfa, start: int, data: bytes) -> bool:
    """Whether `data`, whole, is a text of the language that begins at node `start`."""
    reference = Reference(nfa, start)
    return None in reference.advance(reference.first, data)
