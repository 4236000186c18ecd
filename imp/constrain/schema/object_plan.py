"""How objects of a set are written member by member: a state after each, and which names may follow it.

A state is which names may still come, what `clauses` still ask for, how many members there are as far as that matters,
and which families of `some` still wait for a witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from ..clock import tick
from ..language import Language
from .algebra import Algebra
from .budget import too_large
from .formula import FALSE, TRUE, Formula
from .objects import Clause, Objects
from .presence import Presence, given

MAX_ANY_ORDER = 64
MAX_WITNESSES = 6
Productive = Callable[[Formula], bool]
Key = tuple[int, frozenset[int]]  # a family of names, and the conditions that a member with such a name is a witness of
NONE: frozenset[Any] = frozenset()


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
        tick(8)
        known = objects.known_names()
        self.names, self.values = tuple(known), tuple(known.values())
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
        self._chosen: dict[Key, Language] = {}
        self._meets = [
            frozenset(at for at, (wanted, _) in enumerate(objects.some) if not (wanted & family).is_empty)
            for family, _ in self.families
        ]
        self._required = set(objects.required)
        names = zip(self.names, self.values, strict=True)
        self._needed = [(i, value) for i, (name, value) in enumerate(names) if name in self._required]
        self._last_required = self._needed[-1][0] if self._needed else -1
        counted = objects.high is not None or objects.low > len(objects.required)
        self._low = objects.low if counted else 0
        self._cap = (objects.low if objects.high is None else objects.high) if counted else 0
        self.first = State(0, NONE, objects.clauses, 0, frozenset(range(len(objects.some))))
        self._productive: Productive = lambda formula: True
        self._finishes: dict[State, bool] = {}
        # where only required names matter, two numbers are enough to know what may follow a state
        self._simple = not (any_order or counted or objects.clauses or objects.some)
        self._finishes_from = 0  # behind the last required name without a value
        self._conditions = [self._accepting(name) if objects.some else NONE for name in self.names]
        spoken_of = {name for clause in objects.clauses for name, _ in clause}
        self._tied = [i for i, name in enumerate(self.names) if name in spoken_of or self._conditions[i]]
        endless = any(value is TRUE for _, value in self.families)
        self._presence = Presence(
            self.names,
            frozenset(self._required),
            self._conditions,
            low_matters=self._low > 0 and not endless,
            high_matters=objects.high is not None,
        )
        if not self._simple:
            self._presence.check(self._tied, objects.clauses, self.first.some)
        self._untied: list[_Untied] = []

    @property
    def size(self) -> int:
        return sum(len(name) + 12 for name in self.names)

    def formulas(self) -> Iterator[Formula]:
        if not self._objects.some:
            values = (*self.values, *(value for _, value in self.families))
            yield from (value for value in values if value is not FALSE)
            return
        for index, value in enumerate(self.values):
            yield from (formula for _, formula in self._witnessing(value, self._conditions[index]))
        yield from (formula for _, formula in self._family_members())

    def key_languages(self) -> Iterator[tuple[Key, Language]]:
        """All that `key_language` can say."""
        if not self._objects.some:
            return (((index, NONE), family) for index, (family, _) in enumerate(self.families))
        return ((key, self._family(*key)) for key, _ in self._family_members())

    def _family_members(self) -> Iterator[tuple[Key, Formula]]:
        for index, (_, value) in enumerate(self.families):
            for chosen, formula in self._witnessing(value, self._meets[index]):
                self._family(index, chosen)  # too large is found out now
                yield (index, chosen), formula

    def _witnessing(self, value: Formula, possible: frozenset[int]) -> Iterator[tuple[frozenset[int], Formula]]:
        """The value as a witness for each subset of conditions."""
        for size in range(len(possible) + 1):
            for chosen in combinations(sorted(possible), size):
                formula = self._algebra.formulas.all_of((value, *(self._objects.some[at][1] for at in chosen)))
                if formula is not FALSE:
                    yield frozenset(chosen), formula

    def _accepting(self, name: str) -> frozenset[int]:
        return frozenset(at for at, (family, _) in enumerate(self._objects.some) if family.accepts(name))

    def exists(self, productive: Productive) -> bool:
        """From now on `productive` says which values there are."""
        self._settle(productive)
        return self._can_finish(self.first)

    def _settle(self, productive: Productive) -> None:
        self._productive = productive
        if self._simple:
            barren = [i for i, value in self._needed if not productive(value)]
            self._finishes_from = barren[-1] + 1 if barren else 0
            return
        self._finishes = {}
        self._presence.know(cache(self._ways), cache(self._fewest_others))
        self._endless = any(productive(value) for _, value in self.families)
        self._untied = self._untied_from_each()

    # --- what may follow ----------------------------------------------------------------------------------------------

    def closes(self, state: State) -> bool:
        """No name that may still come has to."""
        if self._simple:
            return state.start > self._last_required
        if state.some or state.members < self._low:
            return False
        if any(all(there for _, there in clause) for clause in state.clauses):
            return False
        if self._any_order:
            return not any(self.names[index] in self._required for index in self._open(state))
        return state.start > self._last_required

    def skipped(self, state: State) -> State | None:
        """In order: the state when the next name is left out."""
        if self._any_order or state.start >= len(self.names) or self.names[state.start] in self._required:
            return None
        clauses = given(state.clauses, self.names[state.start], False)
        return None if clauses is None else State(state.start + 1, NONE, clauses, state.members, state.some)

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
        if self._simple:
            following = State(index + 1, NONE, NONE, 0, NONE)
            if self._productive(self.values[index]) and self._can_finish(following):
                yield Member(index, None, self.values[index], following)
            return
        clauses = given(state.clauses, self.names[index], True)
        if clauses is None:
            return
        after = self._counted(state)
        if after is None:
            return
        moved = after._replace(used=state.used | {index}) if self._any_order else after._replace(start=index + 1)
        moved = moved._replace(clauses=clauses)
        for chosen, formula in self._witnessing(self.values[index], state.some & self._conditions[index]):
            following = moved._replace(some=state.some - chosen)
            if self._productive(formula) and self._can_finish(following):
                yield Member(index, None, formula, following)

    def _unnamed(self, state: State) -> Iterator[Member]:
        after = self._counted(state)
        if after is None:
            return
        for index, (_, value) in enumerate(self.families):
            for chosen, formula in self._witnessing(value, state.some & self._meets[index]):
                following = after._replace(some=state.some - chosen)
                if self._family(index, chosen).is_empty or not self._productive(formula):
                    continue
                if self._can_finish(following):
                    yield Member(None, index, formula, following)

    def key_language(self, state: State, member: Member) -> Language:
        """The names of a family that witness what this member is a witness of."""
        return self._family(*self.key(state, member))

    @staticmethod
    def key(state: State, member: Member) -> Key:
        assert member.family is not None
        return member.family, state.some - member.after.some

    def _family(self, index: int, chosen: frozenset[int]) -> Language:
        """Known as long as this plan is, since it may be large."""
        known = self._chosen.get((index, chosen))
        if known is None:
            known = self.families[index][0]
            for at in chosen:
                known = known & self._objects.some[at][0]
            known = self._undeclared(known) if index == self.free and chosen else known
            self._chosen[index, chosen] = known
        return known

    def _undeclared(self, family: Language) -> Language:
        """Without the known names."""
        return family - Language.of([name for name in self.names if family.accepts(name)])

    def _counted(self, state: State) -> State | None:
        if self._objects.high is not None and state.members >= self._objects.high:
            return None
        return state._replace(members=min(state.members + 1, self._cap))

    # --- whether an object can be finished ----------------------------------------------------------------------------

    def _can_finish(self, state: State) -> bool:
        if self._simple:
            return state.start >= self._finishes_from
        known = self._finishes.get(state)
        if known is None:
            known = self._finishes[state] = self._finds_members(state)
        return known

    def _finds_members(self, state: State) -> bool:
        """Some choice of what else is there fulfils everything."""
        tick(4)
        tied = [index for index in self._tied if index >= state.start and index not in state.used]
        counts, needed, optional = 1, 0, 0  # counts: how many members there may be, one bit a number
        bound = set[int]()
        for group in self._presence.groups(tied, state.clauses, state.some) if state.clauses or state.some else ():
            if not (found := self._presence.numbers(group)):
                return False
            counts = _sums(counts, found)
            bound.update(group.names)
        untied = self._untied[state.start] if not self._any_order else self._untied_among(self._open(state))
        for index in tied:
            if index not in bound:
                untied = untied.joined(self._untied_alone(index))
        if untied.impossible:
            return False
        needed, optional = untied.needed, untied.optional
        return self._fits(counts << (state.members + needed), optional)

    def _fits(self, counts: int, optional: int) -> bool:
        """One of these numbers of members, with up to so many more, is neither too small nor too large."""
        least = (counts & -counts).bit_length() - 1
        high = self._objects.high
        if high is not None and max(least, self._low) > high:
            return False
        if self._endless:
            return True
        if high is not None and high < counts.bit_length():
            counts &= (1 << high + 1) - 1
        return counts.bit_length() - 1 + optional >= self._low

    def _untied_alone(self, index: int) -> _Untied:
        productive = self._productive(self.values[index])
        needed = self.names[index] in self._required
        return _Untied(int(needed), int(productive and not needed), needed and not productive)

    def _untied_among(self, indices: Iterable[int]) -> _Untied:
        tied, found = set(self._tied), NOTHING_UNTIED
        for index in indices:
            if index not in tied:
                found = found.joined(self._untied_alone(index))
        return found

    def _untied_from_each(self) -> list[_Untied]:
        """In order: for each name what comes from it on."""
        tied, found = set(self._tied), [NOTHING_UNTIED]
        for index in reversed(range(len(self.names))):
            found.append(found[-1] if index in tied else found[-1].joined(self._untied_alone(index)))
        return found[::-1]

    def _ways(self, index: int) -> list[frozenset[int]]:
        ways = self._witnessing(self.values[index], self._conditions[index])
        return [chosen for chosen, formula in ways if self._productive(formula)]

    def _fewest_others(self, some: frozenset[int]) -> int | None:
        """How many members with other names it takes to be the witnesses that are still missing."""
        if not some:
            return 0
        fewest = []
        for index, (_, value) in enumerate(self.families):
            for chosen, formula in self._witnessing(value, some & self._meets[index]):
                if not chosen or self._family(index, chosen).is_empty or not self._productive(formula):
                    continue
                rest = self._fewest_others(some - chosen)
                if rest is not None:
                    fewest.append(rest + 1)
        return min(fewest, default=None)


class _Untied(NamedTuple):
    """Of names whose presence nothing but `required` speaks of: how many have to be there, and may; whether one that
    has to has no value."""

    needed: int
    optional: int
    impossible: bool

    def joined(self, other: _Untied) -> _Untied:
        return _Untied(self.needed + other.needed, self.optional + other.optional, self.impossible or other.impossible)


NOTHING_UNTIED = _Untied(0, 0, False)


def _sums(some: int, others: int) -> int:
    """All sums of a number of each set; one bit a number."""
    found = 0
    while others:
        lowest = others & -others
        found |= some << lowest.bit_length() - 1
        others ^= lowest
    return found
