"""What a value may be, as a formula over schemas: interned, so equal formulas are one object and work is done once.

A formula says nothing yet about how values look: `algebra.expand` makes a `Shape` of it, one level deep. The members of
arrays and objects inside a shape are formulas again, so recursive schemas are finite.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import StrEnum


class Kind(StrEnum):
    SHAPE = "shape"  # what it holds
    ALL = "all"  # every one of args
    ANY = "any"  # at least one of args
    ONE = "one"  # exactly one of args
    NOT = "not"  # not args[0]
    REFERENCE = "reference"  # what the schema at a place says


class Formula:
    """Compared by identity. Made by `Formulas` alone."""

    __slots__ = ("args", "held", "kind")

    def __init__(self, kind: Kind, args: tuple[Formula, ...] = (), held: object = None) -> None:
        self.kind, self.args, self.held = kind, args, held

    @property
    def key(self) -> Hashable:
        return self.kind, self.args, self.held

    def __repr__(self) -> str:
        return f"{self.kind.value}({self.held if self.held is not None else ', '.join(map(repr, self.args))})"


TRUE = Formula(Kind.ALL)
FALSE = Formula(Kind.ANY)


class Formulas:
    """The interning table, and the laws by which formulas become smaller when they are made."""

    def __init__(self, known: Mapping[Hashable, Formula]) -> None:
        """known: formulas that others have as well, by `key`."""
        self._made = dict(known)

    def holding(self, kind: Kind, held: Hashable) -> Formula:
        return self._intern(kind, (), held)

    def all_of(self, formulas: Iterable[Formula]) -> Formula:
        args = _flat(Kind.ALL, formulas)
        if FALSE in args or any(f.kind is Kind.NOT and f.args[0] in args for f in args):
            return FALSE
        args.pop(TRUE, None)
        return self._compound(Kind.ALL, args, TRUE)

    def any_of(self, formulas: Iterable[Formula]) -> Formula:
        args = _flat(Kind.ANY, formulas)
        if TRUE in args or any(f.kind is Kind.NOT and f.args[0] in args for f in args):
            return TRUE
        args.pop(FALSE, None)
        return self._compound(Kind.ANY, args, FALSE)

    def one_of(self, formulas: Iterable[Formula]) -> Formula:
        args = [formula for formula in formulas if formula is not FALSE]
        if len(args) < 2:
            return args[0] if args else FALSE
        return self._intern(Kind.ONE, tuple(args), None)

    def negation(self, formula: Formula) -> Formula:
        match formula.kind:
            case Kind.NOT:
                return formula.args[0]
            case Kind.ALL:
                return self.any_of(map(self.negation, formula.args))
            case Kind.ANY:
                return self.all_of(map(self.negation, formula.args))
        return self._intern(Kind.NOT, (formula,), None)

    def _compound(self, kind: Kind, args: dict[Formula, None], neutral: Formula) -> Formula:
        if len(args) < 2:
            return next(iter(args), neutral)
        return self._intern(kind, tuple(args), None)

    def _intern(self, kind: Kind, args: tuple[Formula, ...], held: Hashable) -> Formula:
        key: Hashable = (kind, args, held)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Formula(kind, args, held)
        return made


def _flat(kind: Kind, formulas: Iterable[Formula]) -> dict[Formula, None]:
    """The arguments in order, each once, with those of nested formulas of the same kind in their place."""
    args: dict[Formula, None] = {}
    for formula in formulas:
        if formula.kind is kind and formula is not TRUE and formula is not FALSE:
            args.update(dict.fromkeys(formula.args))
        else:
            args[formula] = None
    return args
