"""Which names can still be there together in an object, and how many of them.

What ties names to one another (clauses, and conditions that some member must fulfil) falls into groups that share no
name. A group is either small, and then all its choices are tried, or of a kind for which resolving units is enough:
clauses with at most one positive literal (Horn), with at most one negative one, or of two literals. Other groups are
refused when the schema is compiled. What is left of a group when a name is decided is of the same kind and no larger,
so that no question is too hard while an object is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..clock import tick
from .budget import too_large
from .objects import Clause

Clauses = frozenset[Clause]
Conditions = frozenset[int]
MAX_TRIES = 20_000  # choices of one group, about 50 ms
CONDITIONS = -1  # among names, when they are grouped


@dataclass(frozen=True, slots=True)
class Group:
    """Names, and what ties them."""

    names: tuple[int, ...]  # those that clauses speak of first: the sooner no clause is left
    clauses: Clauses
    some: Conditions

    @property
    def tries(self) -> int:
        chosen = len({name for clause in self.clauses for name, _ in clause})
        return len(self.names) * 2**chosen * 4 ** len(self.some)

    @property
    def is_horn(self) -> bool:
        return all(sum(there for _, there in clause) <= 1 for clause in self.clauses)

    @property
    def is_mirrored_horn(self) -> bool:
        return all(sum(not there for _, there in clause) <= 1 for clause in self.clauses)

    @property
    def has_pairs_alone(self) -> bool:
        return all(len(clause) <= 2 for clause in self.clauses)


class Presence:
    """For the objects of one plan. Sets of numbers of members are integers, one bit a number."""

    def __init__(
        self,
        names: Sequence[str],
        required: frozenset[str],
        accepting: Sequence[Conditions],
        low_matters: bool,
        high_matters: bool,
    ) -> None:
        """accepting: for each name the conditions it may fulfil.  low_matters: there may be too few members, whatever
        comes besides these names.  high_matters: there may be too many."""
        self._names, self._required, self._accepting = names, required, accepting
        self._numbers = {name: index for index, name in enumerate(names)}
        self._low_matters, self._high_matters = low_matters, high_matters
        self.know(lambda index: [], lambda some: None)

    def know(self, ways: Callable[[int], Sequence[Conditions]], others: Callable[[Conditions], int | None]) -> None:
        """ways(name): sets of conditions that one value of it can fulfil; none where it has no value.
        others(some): how many members with other names it takes to fulfil these conditions; None: these cannot."""
        self._ways, self._others = ways, others
        self._tried: dict[tuple[tuple[int, ...], Clauses, Conditions], int] = {}

    def check(self, open_: Iterable[int], clauses: Clauses, some: Conditions) -> None:
        """ConstraintError where one of the groups is too hard."""
        for group in self.groups(open_, clauses, some):
            if group.tries > MAX_TRIES and not self._is_resolvable(group):
                raise too_large(f"which of {len(group.names)} members must be there together")

    def _is_resolvable(self, group: Group) -> bool:
        if group.some or (self._low_matters and self._high_matters):
            return False
        if self._low_matters:
            return group.is_mirrored_horn
        if self._high_matters:
            return group.is_horn
        return group.is_horn or group.is_mirrored_horn or group.has_pairs_alone

    def groups(self, open_: Iterable[int], clauses: Clauses, some: Conditions) -> list[Group]:
        """What ties these names; those that nothing ties are in none. All conditions are in one group, since one member
        with another name may fulfil several."""
        leader: dict[int, int] = {}

        def find(one: int) -> int:
            while (above := leader.setdefault(one, one)) != one:
                leader[one] = leader[above]
                one = above
            return one

        indices = list(open_)
        for clause in clauses:
            first, *others = (self._numbers[name] for name, _ in clause)
            find(first)
            for other in others:
                leader[find(other)] = find(first)
        if some:
            find(CONDITIONS)
            for index in indices:
                if self._accepting[index] & some:
                    leader[find(index)] = find(CONDITIONS)
        spoken_of = {self._numbers[name] for clause in clauses for name, _ in clause}
        names: dict[int, list[int]] = {find(one): [] for one in list(leader)}
        tying: dict[int, list[Clause]] = {one: [] for one in names}
        for index in sorted(indices, key=lambda index: (index not in spoken_of, index)):
            if index in leader:
                names[find(index)].append(index)
        for clause in clauses:
            tying[find(self._numbers[next(iter(clause))[0]])].append(clause)
        whose = find(CONDITIONS) if some else None
        return [Group(tuple(names[one]), frozenset(tying[one]), some if one == whose else frozenset()) for one in names]

    def numbers(self, group: Group) -> int:
        """How many members there can be: those of the group, and others that fulfil its conditions. Of groups that are
        not small, the numbers that matter."""
        if group.tries <= MAX_TRIES:
            return self._try(group.names, group.clauses, group.some)
        return self._resolve(group)

    def _try(self, names: tuple[int, ...], clauses: Clauses, some: Conditions) -> int:
        if not names:
            others = self._others(some) if not clauses else None
            return 0 if others is None else 1 << others
        key = (names, clauses, some)
        known = self._tried.get(key)
        if known is None:
            tick(4)
            name, rest, found = self._names[names[0]], names[1:], 0
            there = given(clauses, name, True)
            if there is not None:
                for fulfilled in self._ways(names[0]):
                    if fulfilled <= some:
                        found |= self._try(rest, there, some - fulfilled) << 1
            absent = None if name in self._required else given(clauses, name, False)
            if absent is not None:
                found |= self._try(rest, absent, some)
            known = self._tried[key] = found
        return known

    def _resolve(self, group: Group) -> int:
        """As a set with one number in it: the greatest where there may be too few, else the least."""
        present: dict[str, bool] = {}
        for index in group.names:
            if not self._ways(index):
                present[self._names[index]] = False
            if self._names[index] in self._required:
                if self._names[index] in present:
                    return 0
                present[self._names[index]] = True
        clauses = _resolved(group.clauses, present)
        if clauses is None:
            return 0
        if self._low_matters:
            return 1 << sum(present.get(self._names[index], True) for index in group.names)
        left = Group(group.names, clauses, group.some)
        if left.is_horn or left.is_mirrored_horn:
            return 1 << (sum(present.values()) if left.is_horn else 0)
        return int(_satisfiable(clauses))


def given(clauses: Clauses, name: str, there: bool) -> Clauses | None:
    """What the clauses still ask for when this is known about a name; None: they are broken."""
    if not clauses:
        return clauses
    kept = []
    tick(len(clauses))
    for clause in clauses:
        if (name, there) in clause:
            continue
        clause = clause - {(name, not there)}
        if not clause:
            return None
        kept.append(clause)
    return frozenset(kept)


def _resolved(clauses: Clauses, present: dict[str, bool]) -> Clauses | None:
    """The clauses with what is known of some names, and what follows from it, which is added to `present`; None: they
    are broken."""
    waiting, left = list(present.items()), clauses
    while True:
        for name, there in waiting:
            narrowed = given(left, name, there)
            if narrowed is None:
                return None
            left = narrowed
        waiting = [next(iter(clause)) for clause in left if len(clause) == 1]
        if not waiting:
            return left
        present.update(waiting)


def _satisfiable(clauses: Clauses) -> bool:
    """Whether clauses of two literals hold together: what one name leads to without a contradiction takes nothing from
    the others (Davis and Putnam 1960)."""
    while clauses:
        name = min(name for clause in clauses for name, _ in clause)
        left = _resolved(clauses, {name: True})
        left = _resolved(clauses, {name: False}) if left is None else left
        if left is None:
            return False
        clauses = left
    return True
