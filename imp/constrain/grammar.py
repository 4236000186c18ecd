"""From the rules of a grammar to nodes of the automaton; left recursion becomes loops on the way.

A rule A that begins with itself, perhaps through others, is read from its left corner: first something that begins with
no rule of the cycle, which completes some rule X of the cycle; then, as often as wanted, what a rule Y has behind an X
at its beginning, which completes Y. When A is complete, the text may end.
"""

from __future__ import annotations

from collections.abc import Callable

from . import expr as e
from .charset import Encoding, char_node
from .clock import tick
from .errors import Code, ConstraintError, too_large
from .expr import Expr
from .nfa import UNBOUNDED, Nfa
from .normal import Rules, Size, cycles, facts, first_rules, normal, references, split
from .scan import MAX_LEAVES

MAX_NODES = 200_000


def compile_rules(rules: Rules, root: str, nfa: Nfa, where: Callable[[str], str] = lambda name: "") -> int:
    """The node at which texts of the rule `root` begin; they end in `nfa.ret`. Every reference must be defined.

    where(name): the place of a rule, for errors.
    Raises ConstraintError: UNSATISFIABLE for rules no finite text matches, TOO_LARGE.
    """
    rules = _reachable(rules, root)
    parts = sum(len(e.leaves(expr)) for expr in rules.values())
    if parts > MAX_LEAVES:
        raise too_large(f"the grammar has more than {MAX_LEAVES} characters and references in its rules")
    known = facts(rules)
    barren = [name for name in rules if name not in known.productive]
    if barren:
        raise ConstraintError(Code.UNSATISFIABLE, where(barren[0]), f"rule '{barren[0]}' matches no finite text")
    size = Size()
    whole = normal(e.Reference(root), known, size).whole
    assert whole is not None
    filled = {name: normal(expr, known, size).filled for name, expr in rules.items()}
    return _Writer({name: expr for name, expr in filled.items() if expr is not None}, nfa, size).expr(whole, nfa.ret)


def _reachable(rules: Rules, root: str) -> dict[str, Expr]:
    found = {root: rules[root]}
    work = [root]
    while work:
        for name in references(found[work.pop()]):
            if name not in found:
                found[name] = rules[name]
                work.append(name)
    return found


class _Writer:
    """Writes normal expressions, and every rule they need once."""

    def __init__(self, rules: Rules, nfa: Nfa, size: Size):
        self.rules, self.nfa, self.size = rules, nfa, size
        self.cycles = cycles({name: first_rules(expr) for name, expr in rules.items()})
        self.starts: dict[str, int] = {}
        self.unwritten: list[str] = []
        self.limit = len(nfa.nodes) + MAX_NODES

    def expr(self, expr: Expr, after: int) -> int:
        start = self.write(expr, after)
        while self.unwritten:
            name = self.unwritten.pop()
            if name in self.cycles:
                self.recursive(name, self.cycles[name])
            else:
                self.nfa.link(self.starts[name], self.write(self.rules[name], self.nfa.ret))
        return start

    def rule(self, name: str) -> int:
        if name not in self.starts:
            self.starts[name] = self.nfa.eps()
            self.unwritten.append(name)
        return self.starts[name]

    def write(self, expr: Expr, after: int) -> int:
        """The node that reads `expr`, then goes on at `after`."""
        start = self.nfa.eps()
        work = [(start, expr, after)]
        while work:
            tick(4)
            place, node, then = work.pop()
            self.part(place, node, then, work)
            if len(self.nfa.nodes) > self.limit:
                raise too_large(f"the grammar needs more than {MAX_NODES} nodes")
        return start

    def part(self, place: int, node: Expr, after: int, work: list[tuple[int, Expr, int]]) -> None:
        """Link EPS node `place` to what reads `node`; parts that need more than a node go to `work`."""
        nfa = self.nfa
        match node:
            case e.Concat(items):
                for item in reversed(items[1:]):
                    tick()
                    slot = nfa.eps()
                    work.append((slot, item, after))
                    after = slot
                if items:
                    work.append((place, items[0], after))
                else:
                    nfa.link(place, after)
            case e.Alternate(items):
                work += [(place, item, after) for item in items]
            case e.Repeat(body, low, high):
                self.repeat(place, body, low, high, after, work)
            case _:
                nfa.link(place, self.leaf(node, after))

    def repeat(
        self, place: int, body: Expr, low: int, high: int, after: int, work: list[tuple[int, Expr, int]]
    ) -> None:
        nfa = self.nfa
        if (low, high) == (0, 1):
            nfa.link(place, after)
            work.append((place, body, after))
        elif high == UNBOUNDED and low <= 1:
            loop, again = nfa.eps(after), nfa.eps()
            nfa.link(loop, again)
            nfa.link(place, again if low else loop)
            work.append((again, body, loop))
        else:

            def rounds(then: int) -> int:
                slot = nfa.eps()
                work.append((slot, body, then))
                return slot

            nfa.link(place, nfa.call(nfa.repeat(low, high, nfa.ret, rounds), after))

    def leaf(self, node: Expr, after: int) -> int:
        seen = 0
        while isinstance(node, e.Reference) and not isinstance(
            self.rules[node.name], e.Concat | e.Alternate | e.Repeat
        ):
            node, seen = self.rules[node.name], seen + 1  # a rule that is a set or another's name needs no call
            if seen > len(self.rules):
                break
        match node:
            case e.Chars(chars):
                return char_node(self.nfa, chars, after, Encoding.RAW)
            case e.Token(data):
                return self.nfa.literal(data, after)
            case e.Reference(name):
                return self.nfa.call(self.rule(name), after)
        raise TypeError(f"{type(node).__name__} is no part of a grammar")

    def recursive(self, name: str, cycle: frozenset[str]) -> None:
        """Write the left-recursive rule `name`; `cycle`: the rules that begin with each other."""
        complete = {member: self.nfa.eps() for member in sorted(cycle)}
        self.nfa.link(complete[name], self.nfa.ret)
        for member in sorted(cycle):
            parts = split(self.rules[member], cycle, self.size)
            for base in parts.base:
                self.nfa.link(self.starts[name], self.write(base, complete[member]))
            for left, rest in parts.lefts:
                self.nfa.link(complete[left], self.rest(rest, name, complete[member], alone=len(cycle) == 1))

    def rest(self, rest: Expr, name: str, after: int, alone: bool) -> int:
        """What follows the left corner. A rule alone on its cycle that ends with itself goes back to its own start.

        A = B (r A | s)* is B (r B | s)*: the inner A's loops can as well be the outer's, and no stack grows.
        """
        items = rest.items if isinstance(rest, e.Concat) else (rest,)
        if alone and items and isinstance(items[-1], e.Reference) and items[-1].name == name:
            return self.write(e.concat(items[:-1]), self.starts[name])
        return self.write(rest, after)
