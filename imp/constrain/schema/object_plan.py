"""How objects of a set are written member by member: a state after each, and which names may follow it.

A state is which names may still come, what `clauses` still ask for, how many members there are as far as that matters,
and which families of `some` still wait for a witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

from ..language import Language
from .algebra import Algebra
from .budget import too_large
from .formula import FALSE, Formula
from .objects import Clause, Objects

MAX_ANY_ORDER = 64
MAX_WITNESSES = 6
MAX_PRESENCE_STATES = 20_000
Productive = Callable[[Formula], bool]


class State(NamedTuple):
    start: int  # names before this one in the order are over; in any order: 0
    used: frozenset[int]  # in any order: names that are there
    clauses: frozenset[Clause]
    members: int
    some: frozenset[int]


class Member(NamedTuple):
    """One member that may come next."""

    name: int | None  # a known name
    family: int | None  # or one of a family
    formula: Formula
    after: State


class ObjectPlan:
    def __init__(self, objects: Objects, algebra: Algebra, any_order: bool) -> None:
        self._objects, self._algebra = objects, algebra
        self._any_order = any_order
        known = objects.known_names()
        self.names, self.values = list(known), list(known.values())
        if any_order and len(self.names) > MAX_ANY_ORDER:
            raise too_large(f"an object with more than {MAX_ANY_ORDER} names in any order")
        if len(objects.some) > MAX_WITNESSES:
            raise too_large(f"more than {MAX_WITNESSES} conditions that some member must fulfil")
        self.families: list[tuple[Language, Formula]] = []  # without the known names
        self.free: int | None = None  # the family of all other names
        for family, formula in objects.rest:
            if family.is_everything:
                self.free = len(self.families)
                self.families.append((family, formula))
            elif not (rest := self._undeclared(family)).is_empty:
                self.families.append((rest, formula))
        self._required = set(objects.required)
        counted = objects.high is not None or objects.low > len(objects.required)
        self._low = objects.low if counted else 0
        self._cap = (objects.low if objects.high is None else objects.high) if counted else 0
        self.first = State(0, frozenset(), objects.clauses, 0, frozenset(range(len(objects.some))))
        self._productive: Productive = lambda formula: True
        self._finishes: dict[tuple[object, ...], bool] = {}
        self._relevant = self._names_that_matter()

    def _names_that_matter(self) -> list[int]:
        """Names whose presence decides more than how many there are."""
        mentioned = {name for clause in self._objects.clauses for name, _ in clause} | self._required
        chosen = {name for clause in self._objects.clauses for name, _ in clause}
        relevant = [
            index
            for index, name in enumerate(self.names)
            if name in mentioned or any(family.accepts(name) for family, _ in self._objects.some)
        ]
        return sorted(relevant, key=lambda index: self.names[index] not in chosen)  # the sooner no clause is left

    def formulas(self) -> Iterator[Formula]:
        for index, value in enumerate(self.values):
            accepting = frozenset(self._accepting(self.names[index]))
            yield from (formula for _, formula in self._witnessing(value, accepting))
        for index, (family, value) in enumerate(self.families):
            meets = {at for at, (wanted, _) in enumerate(self._objects.some) if not (wanted & family).is_empty}
            for chosen, formula in self._witnessing(value, frozenset(meets)):
                self._family(index, chosen)  # too large is found out now
                yield formula

    def _witnessing(self, value: Formula, possible: frozenset[int]) -> Iterator[tuple[frozenset[int], Formula]]:
        """The value as a witness for each subset of conditions."""
        for size in range(len(possible) + 1):
            for chosen in combinations(sorted(possible), size):
                formula = self._algebra.formulas.all_of((value, *(self._objects.some[at][1] for at in chosen)))
                if formula is not FALSE:
                    yield frozenset(chosen), formula

    def _accepting(self, name: str) -> set[int]:
        return {at for at, (family, _) in enumerate(self._objects.some) if family.accepts(name)}

    def exists(self, productive: Productive) -> bool:
        self._productive = productive
        self._finishes = {}
        return self._can_finish(self.first)

    # --- what may follow ----------------------------------------------------------------------------------------------

    def closes(self, state: State) -> bool:
        """No name that may still come has to."""
        if state.some or state.members < self._low:
            return False
        clauses: frozenset[Clause] | None = state.clauses
        for index in self._open(state):
            if self.names[index] in self._required:
                return False
            clauses = _given(clauses, self.names[index], False) if clauses else clauses
            if clauses is None:
                return False
        return True

    def skipped(self, state: State) -> State | None:
        """In order: the state when the next name is left out."""
        if self._any_order or state.start >= len(self.names) or self.names[state.start] in self._required:
            return None
        clauses = _given(state.clauses, self.names[state.start], False)
        return None if clauses is None else state._replace(start=state.start + 1, clauses=clauses)

    def members(self, state: State) -> Iterator[Member]:
        """What may come next without leaving a name out; and other names where no known one is left in order."""
        indices = self._open(state) if self._any_order else range(state.start, min(state.start + 1, len(self.names)))
        for index in indices:
            yield from self._named(state, index)
        if self._any_order or state.start == len(self.names):
            yield from self._unnamed(state)

    def has_member(self, state: State) -> bool:
        following: State | None = state
        while following is not None:
            if any(True for _ in self.members(following)):
                return True
            following = self.skipped(following)
        return False

    def _open(self, state: State) -> list[int]:
        return [index for index in range(state.start, len(self.names)) if index not in state.used]

    def _named(self, state: State, index: int) -> Iterator[Member]:
        clauses = _given(state.clauses, self.names[index], True)
        if clauses is None:
            return
        after = self._counted(state)
        if after is None:
            return
        moved = after._replace(used=state.used | {index}) if self._any_order else after._replace(start=index + 1)
        moved = moved._replace(clauses=clauses)
        for chosen, formula in self._witnessing(self.values[index], state.some & self._accepting(self.names[index])):
            following = moved._replace(some=state.some - chosen)
            if self._productive(formula) and self._can_finish(following):
                yield Member(index, None, formula, following)

    def _unnamed(self, state: State) -> Iterator[Member]:
        after = self._counted(state)
        if after is None:
            return
        for index, (_, value) in enumerate(self.families):
            for chosen, formula in self._witnessing(value, state.some):
                following = after._replace(some=state.some - chosen)
                if self._family(index, chosen).is_empty or not self._productive(formula):
                    continue
                if self._can_finish(following):
                    yield Member(None, index, formula, following)

    def key_language(self, state: State, member: Member) -> Language:
        """The names of a family that witness what this member is a witness of."""
        assert member.family is not None
        return self._family(member.family, state.some - member.after.some)

    def _family(self, index: int, chosen: frozenset[int]) -> Language:
        family = self.families[index][0]
        for at in chosen:
            family = family & self._objects.some[at][0]
        return self._undeclared(family) if index == self.free and chosen else family

    def _undeclared(self, family: Language) -> Language:
        """Without the known names."""
        return family - Language.of([name for name in self.names if family.accepts(name)])

    def _counted(self, state: State) -> State | None:
        if self._objects.high is not None and state.members >= self._objects.high:
            return None
        return state._replace(members=min(state.members + 1, self._cap))

    # --- whether an object can be finished ----------------------------------------------------------------------------

    def _can_finish(self, state: State) -> bool:
        known = self._finishes.get(state)
        if known is None:
            relevant = tuple(i for i in self._relevant if i >= state.start and i not in state.used)
            free = 0
            if self._cap:
                free = sum(self._productive(self.values[i]) for i in self._open(state) if i not in relevant)
            here = state.members
            known = self._finishes[state] = self._presence(relevant, state.clauses, state.some, here, here + free)
        return known

    def _presence(
        self, names: tuple[int, ...], clauses: frozenset[Clause], some: frozenset[int], least: int, most: int
    ) -> bool:
        """Some choice of which of `names` are there fulfils everything; `least` to `most` members are there already."""
        high = self._objects.high
        if high is not None and least > high:
            return False
        if not clauses and not some:
            needed = [index for index in names if self.names[index] in self._required]
            available = sum(self._productive(self.values[index]) for index in names)
            return all(self._productive(self.values[index]) for index in needed) and self._fits(
                least + len(needed), most + available
            )
        if not names:
            return not clauses and self._witnessed(some, least, most)
        key = (names, clauses, some, least, most)
        if key not in self._finishes:
            if len(self._finishes) > MAX_PRESENCE_STATES:
                raise too_large("which members must be there together")
            self._finishes[key] = self._choose(names, clauses, some, least, most)
        return self._finishes[key]

    def _choose(
        self, names: tuple[int, ...], clauses: frozenset[Clause], some: frozenset[int], least: int, most: int
    ) -> bool:
        index, rest = names[0], names[1:]
        there = _given(clauses, self.names[index], True)
        if there is not None:
            for chosen, formula in self._witnessing(self.values[index], some & self._accepting(self.names[index])):
                if self._productive(formula) and self._presence(rest, there, some - chosen, least + 1, most + 1):
                    return True
        absent = None if self.names[index] in self._required else _given(clauses, self.names[index], False)
        return absent is not None and self._presence(rest, absent, some, least, most)

    def _witnessed(self, some: frozenset[int], least: int, most: int) -> bool:
        """Other names can be the witnesses that are still missing."""
        if not some:
            return self._fits(least, most)
        for index, (_, value) in enumerate(self.families):
            for chosen, formula in self._witnessing(value, some):
                if not chosen or self._family(index, chosen).is_empty or not self._productive(formula):
                    continue
                if self._witnessed(some - chosen, least + 1, most + 1):
                    return True
        return False

    def _fits(self, least: int, most: int) -> bool:
        high = self._objects.high
        endless = any(self._productive(value) for _, value in self.families)
        return (high is None or least <= high) and (endless or most >= self._low)


def _given(clauses: frozenset[Clause], name: str, there: bool) -> frozenset[Clause] | None:
    """What the clauses still ask for when this is known about a name; None: they are broken."""
    if not clauses:
        return clauses
    kept = []
    for clause in clauses:
        if (name, there) in clause:
            continue
        clause = clause - {(name, not there)}
        if not clause:
            return None
        kept.append(clause)
    return frozenset(kept)
