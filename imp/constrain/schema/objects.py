"""Sets of objects as a schema can describe them: values by name, families of other names, and who must be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..clock import tick
from ..language import Language
from .formula import FALSE, TRUE, Formula, Formulas
from .strings import EVERYTHING

Literal = tuple[str, bool]  # this name is there, or is not
Clause = frozenset[Literal]  # at least one of these holds
Family = tuple[Language, Formula]

MERGED_CLAUSES = 32


@dataclass(frozen=True, slots=True)
class Objects:
    """`names` have values as their formula says, other names as the family they are in; names in none are forbidden.

    `some`: for each of these families at least one name in it has a value as its formula says.
    """

    names: tuple[tuple[str, Formula], ...] = ()
    rest: tuple[Family, ...] = ((EVERYTHING, TRUE),)
    required: tuple[str, ...] = ()
    clauses: frozenset[Clause] = frozenset()
    low: int = 0  # members
    high: int | None = None
    some: tuple[Family, ...] = ()

    def value(self, name: str) -> Formula:
        """What the value under this name must be."""
        for declared, formula in self.names:
            if declared == name:
                return formula
        return self.undeclared(name)

    def undeclared(self, name: str) -> Formula:
        for family, formula in self.rest:
            if family.is_everything or family.accepts(name):
                return formula
        return FALSE

    def known_names(self) -> dict[str, Formula]:
        """Declared names in order, then those that only presence speaks of."""
        known = dict(self.names)
        mentioned = sorted({name for clause in self.clauses for name, _ in clause})
        for name in (*self.required, *mentioned):
            if name not in known:
                known[name] = self.undeclared(name)
        return known

    def and_(self, other: Objects, formulas: Formulas) -> Objects | None:
        """The objects in both; None where names that must and must not be there leave none."""
        here, there = dict(self.names), dict(other.names)
        tick(1 + len(here) + len(there))
        names = {n: formulas.all_of((f, there[n] if n in there else other.undeclared(n))) for n, f in here.items()}
        for name, formula in there.items():
            if name not in here:
                names[name] = formulas.all_of((self.undeclared(name), formula))
        highs = [high for high in (self.high, other.high) if high is not None]
        both = Objects(
            tuple(names.items()),
            tuple(_common_families(self.rest, other.rest, formulas)),
            tuple(dict.fromkeys((*self.required, *other.required))),
            self.clauses | other.clauses,
            max(self.low, other.low),
            min(highs, default=None),
            tuple(dict.fromkeys((*self.some, *other.some))),
        )
        return both.simplified() if both.clauses else both

    def simplified(self) -> Objects | None:
        """With clauses reduced by what is required and forbidden; None where they cannot hold together."""
        required = dict.fromkeys(self.required)
        forbidden = {name for name, formula in self.names if formula is FALSE}
        clauses = set(self.clauses)
        changed = True
        while changed:
            changed = False
            kept = set()
            tick(len(clauses))
            for clause in clauses:
                if any((name in required) if there else (name in forbidden) for name, there in clause):
                    continue
                open_ = frozenset((n, there) for n, there in clause if n not in (forbidden if there else required))
                if not open_:
                    return None
                if len(open_) == 1:
                    ((name, there),) = open_
                    changed = True
                    if there:
                        required[name] = None
                    else:
                        forbidden.add(name)
                else:
                    kept.add(open_)
            clauses = kept
        if any(name in forbidden for name in required):
            return None
        absent = forbidden - {name for name, formula in self.names if formula is FALSE}
        units = {frozenset([(name, False)]) for name in absent}
        return replace(self, required=tuple(required), clauses=frozenset(clauses | units))

    def complement(self, formulas: Formulas) -> Iterator[Objects]:
        """Sets whose union is every object that is not in this one."""
        values = {name: self.value(name) for name in self.required}
        if free := [name for name, value in values.items() if value is TRUE]:
            yield Objects(clauses=frozenset([frozenset((name, False) for name in free)]))
        for name, value in values.items():
            if value is not TRUE:  # it is not there, or what it must not be
                yield Objects(names=((name, formulas.negation(value)),))
        for clause in self.clauses:
            yield from _drop_none([_literals((name, not there) for name, there in clause).simplified()])
        for name, formula in self.names:
            if name not in values and (wrong := formulas.negation(formula)) is not FALSE:
                yield Objects(names=((name, wrong),), required=(name,))
        yield from (Objects(some=(family,)) for family in self._wrong_families(formulas))
        if self.low:
            yield Objects(high=self.low - 1)
        if self.high is not None:
            yield Objects(low=self.high + 1)
        for family, formula in self.some:
            rest = [(family, formulas.negation(formula)), (~family, TRUE)]
            yield Objects(rest=tuple((f, v) for f, v in rest if v is not FALSE and not f.is_empty))

    def _wrong_families(self, formulas: Formulas) -> Iterator[Family]:
        """Families one of whose names with such a value is enough to be outside of this set."""
        if self.rest == ((EVERYTHING, TRUE),):
            return
        declared = Language.of([name for name, _ in self.names])
        allowed = declared
        for family, formula in self.rest:
            wrong = formulas.negation(formula)
            if wrong is not FALSE and not (undeclared := family - declared).is_empty:
                yield undeclared, wrong
            allowed = allowed | family
        if not allowed.is_everything:
            yield ~allowed, TRUE


def merged(records: Iterable[Objects]) -> list[Objects]:
    """The same union with fewer members: those that differ only in who must be there become one."""
    groups: dict[Objects, list[Objects]] = {}
    for record in records:
        tick(8)
        groups.setdefault(replace(record, required=(), clauses=frozenset()), []).append(record)
    return [record for base, members in groups.items() for record in _merge_presence(base, members)]


def _merge_presence(base: Objects, members: list[Objects]) -> list[Objects]:
    """One member for all where the distributed clauses stay few."""
    done: list[Objects] = []
    for member in members:
        clauses = _all_clauses(member)
        tick(4 + len(clauses))
        if not clauses:
            return [member]
        joined = _either(_all_clauses(done[-1]), clauses) if done else clauses
        if joined is None:
            done.append(member)
            continue
        order = [name for record in (*done[-1:], member) for name in record.required]
        united = replace(base, clauses=frozenset(joined)).simplified()
        if united is None:  # neither has members
            done[-1:] = []
            continue
        rank = {name: index for index, name in reversed(list(enumerate(order)))}
        required = tuple(sorted(united.required, key=lambda name: rank.get(name, len(rank))))
        done[-1:] = [replace(united, required=required)]
    return done


def _either(some: set[Clause], others: set[Clause]) -> set[Clause] | None:
    """What holds where all of `some` do, or all of `others`; None: more clauses than are worth it."""
    common = some & others
    some, others = some - common, others - common
    if len(some) * len(others) > MERGED_CLAUSES**2:
        return None
    tick(len(some) * len(others))
    joined = {a | b for a in some for b in others}
    joined = {clause for clause in joined if not any((name, not there) in clause for name, there in clause)} | common
    joined = {clause for clause in joined if clause in common or not any(other < clause for other in joined)}
    return joined if len(joined) <= MERGED_CLAUSES else None


def _all_clauses(record: Objects) -> set[Clause]:
    return {*record.clauses, *(frozenset([(name, True)]) for name in record.required)}


def _literals(literals: Iterable[Literal]) -> Objects:
    """Objects for which all of these hold."""
    return Objects(clauses=frozenset(frozenset([literal]) for literal in literals))


def _drop_none(records: Iterable[Objects | None]) -> Iterator[Objects]:
    return (record for record in records if record is not None)


def _common_families(a: tuple[Family, ...], b: tuple[Family, ...], formulas: Formulas) -> Iterator[Family]:
    for one, formula in a:
        for other, another in b:
            value = formulas.all_of((formula, another))
            family = other if one.is_everything else one if other.is_everything else one & other
            if value is not FALSE and not family.is_empty:
                yield family, value


EVERY_OBJECT = Objects()
