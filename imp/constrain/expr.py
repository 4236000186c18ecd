"""Expressions over characters, the common tongue of regexes and grammars, and how to walk them without recursion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .charset import CharSet
from .clock import tick
from .nfa import UNBOUNDED

MAX_NESTING = 256


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a set; of an empty set: nothing matches."""

    chars: CharSet


@dataclass(frozen=True, slots=True, eq=False)
class Concat:
    """One after the other; of nothing: the empty text."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternate:
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    body: Expr
    low: int
    high: int  # UNBOUNDED: no end


@dataclass(frozen=True, slots=True, eq=False)
class Assert:
    """An empty match where the neighbours allow it: a set of `context(before, after)` bits."""

    contexts: int
    offset: int = 0  # where the pattern says so


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A rule of a grammar."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token a grammar names: its bytes in the automaton."""

    data: bytes


Expr = Chars | Concat | Alternate | Repeat | Assert | Reference | Token
EMPTY = Concat(())


class Side:
    """What stands beside a place between two characters: nothing, or a character of a kind."""

    EDGE, LINE, WORD, OTHER = range(4)


def context(before: int, after: int) -> int:
    return 1 << (4 * before + after)


def contexts(test: Callable[[int, int], bool]) -> int:
    return sum(context(b, a) for b in range(4) for a in range(4) if test(b, a))


EVERYWHERE = contexts(lambda before, after: True)
TEXT_START = contexts(lambda before, after: before == Side.EDGE)
TEXT_END = contexts(lambda before, after: after == Side.EDGE)
LINE_START = contexts(lambda before, after: before in (Side.EDGE, Side.LINE))
LINE_END = contexts(lambda before, after: after in (Side.EDGE, Side.LINE))
WORD_EDGE = contexts(lambda before, after: (before == Side.WORD) != (after == Side.WORD))
NO_WORD_EDGE = EVERYWHERE & ~WORD_EDGE


def concat(items: Sequence[Expr]) -> Expr:
    """Concatenation without needless nesting."""
    flat: list[Expr] = []
    for item in items:
        flat += item.items if isinstance(item, Concat) else [item]
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternate(items: Sequence[Expr]) -> Expr:
    return items[0] if len(items) == 1 else Alternate(tuple(items))


def repeat(body: Expr, low: int, high: int) -> Expr:
    return body if (low, high) == (1, 1) else EMPTY if high == 0 else Repeat(body, low, high)


def optional(body: Expr) -> Expr:
    return Repeat(body, 0, 1)


def star(body: Expr) -> Expr:
    return Repeat(body, 0, UNBOUNDED)


class Nest:
    """Groups being read, without recursion: items of alternatives of groups in groups."""

    def __init__(self) -> None:
        self._groups: list[tuple[list[Expr], list[Expr]]] = [([], [])]  # (alternatives, items of the newest)

    @property
    def depth(self) -> int:
        """Open groups, the outermost not counted."""
        return len(self._groups) - 1

    @property
    def items(self) -> list[Expr]:
        """Of the alternative being read."""
        tick(2)
        return self._groups[-1][1]

    def open(self) -> None:
        self._groups.append(([], []))

    def alternative(self) -> None:
        branches, items = self._groups[-1]
        branches.append(concat(items))
        items.clear()

    def close(self) -> Expr:
        """The innermost group, which is no longer open."""
        self.alternative()
        return alternate(self._groups.pop()[0])


def children(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Concat | Alternate):
        return expr.items
    return (expr.body,) if isinstance(expr, Repeat) else ()


def fold[Result](expr: Expr, combine: Callable[[Expr, list[Result]], Result]) -> Result:
    """combine(node, results of its children) from the leaves up, left to right."""
    results: list[Result] = []
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        node, done = stack.pop()
        below = children(node)
        if below and not done:
            stack.append((node, True))
            stack += [(child, False) for child in reversed(below)]
            continue
        tick(2)
        first = len(results) - len(below)
        results[first:] = [combine(node, results[first:])]
    return results[0]


def leaves(expr: Expr) -> list[Expr]:
    """The nodes without children, left to right."""
    found: list[Expr] = []
    stack = [expr]
    while stack:
        tick()
        node = stack.pop()
        below = children(node)
        stack += reversed(below)
        if not below:
            found.append(node)
    return found
