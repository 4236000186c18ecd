"""Grammars in a form that automata like: no rule matches the empty text; where it may be absent says who uses it.

Then a repetition's rounds are never empty, so counting them ends, and it is plain which rules a rule may begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from . import expr as e
from .charset import NONE
from .clock import tick
from .errors import too_large
from .expr import Expr
from .nfa import UNBOUNDED

Rules = Mapping[str, Expr]
MAX_PARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Facts:
    """Of which rules does it hold?"""

    productive: frozenset[str]  # some text matches
    nullable: frozenset[str]  # the empty text matches
    filled: frozenset[str]  # some other text matches


def facts(rules: Rules) -> Facts:
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, expr in rules.items():
        for used in references(expr):
            users[used].add(name)
    productive = _least(rules, users, lambda expr, known: e.fold(expr, partial(_productive, known=known)))
    nullable = _least(rules, users, lambda expr, known: e.fold(expr, partial(_nullable, known=known)))
    fill = partial(_filled, productive=productive)
    filled = _least(rules, users, lambda expr, known: e.fold(expr, partial(fill, known=known))[1])
    return Facts(productive, nullable, filled)


def _least(
    rules: Rules, users: Mapping[str, set[str]], test: Callable[[Expr, AbstractSet[str]], bool]
) -> frozenset[str]:
    """The least set of rules for which `test`, given the set, is true."""
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and test(rules[name], found):
            found.add(name)
            waiting += users[name]
    return frozenset(found)


def references(expr: Expr) -> list[str]:
    return [leaf.name for leaf in e.leaves(expr) if isinstance(leaf, e.Reference)]


def _productive(node: Expr, below: list[bool], known: AbstractSet[str]) -> bool:
    match node:
        case e.Chars(chars):
            return bool(chars)
        case e.Reference(name):
            return name in known
        case e.Alternate():
            return any(below)
        case e.Repeat(_, low, _):
            return low == 0 or below[0]
    return all(below)


def _nullable(node: Expr, below: list[bool], known: AbstractSet[str]) -> bool:
    match node:
        case e.Chars() | e.Token():
            return False
        case e.Reference(name):
            return name in known
        case e.Alternate():
            return any(below)
        case e.Repeat(_, low, _):
            return low == 0 or below[0]
    return all(below)


def _filled(
    node: Expr, below: list[tuple[bool, bool]], productive: AbstractSet[str], known: AbstractSet[str]
) -> tuple[bool, bool]:
    """(some text matches, some text that is not empty matches)"""
    matches = _productive(node, [some for some, _ in below], productive)
    match node:
        case e.Chars() | e.Token():
            return matches, matches
        case e.Reference(name):
            return matches, name in known
        case e.Repeat(_, _, high):
            return matches, high != 0 and below[0][1]
    return matches, matches and any(filled for _, filled in below)


@dataclass(frozen=True, slots=True)
class Normal:
    """An expression: whether it may be empty, what else it may be (None: nothing), and both (None: nothing at all)."""

    empty: bool
    filled: Expr | None
    whole: Expr | None


NOTHING = Normal(False, None, None)
ONLY_EMPTY = Normal(True, None, e.EMPTY)


class Size:
    """How much was written; ConstraintError TOO_LARGE when it is too much."""

    def __init__(self) -> None:
        self._parts = 0

    def add(self, parts: int) -> None:
        self._parts += parts
        tick(parts)
        if self._parts > MAX_PARTS:
            raise too_large("the grammar can begin in too many ways")


def normal(expr: Expr, of: Facts, size: Size) -> Normal:
    return e.fold(expr, lambda node, below: _normal(node, below, of, size))


def _normal(node: Expr, below: list[Normal], of: Facts, size: Size) -> Normal:
    match node:
        case e.Chars(chars):
            return Normal(False, node, node) if chars else NOTHING
        case e.Token():
            return Normal(False, node, node)
        case e.Reference(name):
            return _joined(name in of.nullable, node if name in of.filled else None)
        case e.Concat():
            return _sequence(below, size)
        case e.Alternate():
            return _joined(any(item.empty for item in below), union([item.filled for item in below if item.filled]))
        case e.Repeat(_, low, high):
            return _rounds(below[0], low, high)
    raise TypeError(f"{type(node).__name__} is no part of a grammar")


def _joined(empty: bool, filled: Expr | None) -> Normal:
    if filled is None:
        return ONLY_EMPTY if empty else NOTHING
    return Normal(empty, filled, e.optional(filled) if empty else filled)


def _sequence(items: list[Normal], size: Size) -> Normal:
    wholes = [item.whole for item in items]
    if None in wholes:
        return NOTHING
    parts = [whole for whole in wholes if whole is not None]
    filled: list[Expr] = []
    for at, item in enumerate(items):
        if item.filled is not None:
            size.add(len(parts) - at)
            filled.append(e.concat([item.filled, *parts[at + 1 :]]))
        if not item.empty:
            return Normal(False, union(filled), e.concat(parts))
    return Normal(True, union(filled), e.concat(parts))


def _rounds(body: Normal, low: int, high: int) -> Normal:
    if body.filled is None or high == 0:
        return ONLY_EMPTY if low == 0 or body.empty or high == 0 else NOTHING
    low = 0 if body.empty else low
    return Normal(low == 0, _repeat(body.filled, max(low, 1), high), _repeat(body.filled, low, high))


def _repeat(body: Expr, low: int, high: int) -> Expr:
    """body{low,high}, where (x{a,b}){c,d} is x{ac,bd} if every number between can be reached."""
    if isinstance(body, e.Repeat):
        least, most = body.low, body.high
        dense = most == UNBOUNDED or max(low, 1) * (most - least) + 1 >= least
        if dense and (low > 0 or least <= 1):
            top = UNBOUNDED if UNBOUNDED in (most, high) else most * high
            return e.repeat(body.body, least * low, top)
    return e.repeat(body, low, high)


def union(items: list[Expr]) -> Expr | None:
    """The alternatives; single characters become one set. None for none."""
    chars = NONE
    others: list[Expr] = []
    for item in items:
        if isinstance(item, e.Chars):
            chars |= item.chars
        else:
            others += item.items if isinstance(item, e.Alternate) else [item]
    if chars:
        others.insert(0, e.Chars(chars))
    return e.alternate(others) if others else None


# --- left recursion ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """A normal expression as `base`, or a rule of the set it was split by and then the rest, or perhaps nothing."""

    empty: bool
    base: tuple[Expr, ...]
    lefts: tuple[tuple[str, Expr], ...]


def split(expr: Expr, rules: frozenset[str], size: Size) -> Split:
    """By the rules it may begin with."""
    return e.fold(expr, lambda node, below: _split(node, below, rules, size))


def _split(node: Expr, below: list[Split], rules: frozenset[str], size: Size) -> Split:
    match node:
        case e.Reference(name) if name in rules:
            return Split(False, (), ((name, e.EMPTY),))
        case e.Concat(items):
            base: list[Expr] = []
            lefts: list[tuple[str, Expr]] = []
            for at, part in enumerate(below):
                rest = items[at + 1 :]
                size.add((len(rest) + 1) * (len(part.base) + len(part.lefts)))
                base += [e.concat([first, *rest]) for first in part.base]
                lefts += [(name, e.concat([after, *rest])) for name, after in part.lefts]
                if not part.empty:
                    return Split(False, tuple(base), tuple(lefts))
            return Split(True, tuple(base), tuple(lefts))
        case e.Alternate():
            return Split(
                any(part.empty for part in below),
                tuple(first for part in below for first in part.base),
                tuple(left for part in below for left in part.lefts),
            )
        case e.Repeat(body, low, high):
            more = e.repeat(body, max(low - 1, 0), UNBOUNDED if high == UNBOUNDED else high - 1)
            return Split(
                low == 0,
                tuple(e.concat([first, more]) for first in below[0].base),
                tuple((name, e.concat([rest, more])) for name, rest in below[0].lefts),
            )
    return Split(False, (node,), ())


def first_rules(expr: Expr) -> set[str]:
    """The rules a normal expression may begin with."""

    def firsts(node: Expr, below: list[tuple[bool, set[str]]]) -> tuple[bool, set[str]]:
        match node:
            case e.Reference(name):
                return False, {name}
            case e.Concat():
                found: set[str] = set()
                for empty, names in below:
                    found |= names
                    if not empty:
                        return False, found
                return True, found
            case e.Alternate():
                return any(empty for empty, _ in below), set().union(*(names for _, names in below))
            case e.Repeat(_, low, _):
                return low == 0, below[0][1]
        return False, set()

    return e.fold(expr, firsts)[1]


def cycles(calls: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    """For each rule on a cycle: all the rules that reach it and are reached from it (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: dict[str, int] = {}  # in order, with their places
    found: dict[str, frozenset[str]] = {}
    for root in calls:
        work = [(root, iter(calls[root]))] if root not in index else []
        while work:
            name, targets = work[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                stack[name] = len(stack)
            for target in targets:
                if target not in index:
                    work.append((target, iter(calls[target])))
                    break
                if target in stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    members = frozenset(stack.popitem()[0] for _ in range(len(stack) - stack[name]))
                    if len(members) > 1 or name in calls[name]:
                        found |= dict.fromkeys(members, members)
    return found
