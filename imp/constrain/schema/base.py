"""Rules that most JSON grammars need, written once a process: an automaton that others begin with."""

from __future__ import annotations

from functools import cache

from ..nfa import Nfa
from .algebra import Algebra
from .budget import Budget
from .check import Reachable
from .formula import Formula
from .lower import JsonBase, Lowering
from .plain import ALWAYS
from .whitespace import Whitespace


@cache
def json_base(whitespace: Whitespace) -> Nfa:
    """An automaton for `Nfa(base)`, with rules for any value and for any of one type."""

    def resolve(reference: Formula) -> Formula:
        raise AssertionError("there are no references here")

    base, budget = JsonBase(whitespace), Budget()
    lowering = Lowering(base, Reachable(Algebra(resolve, budget), budget, any_order=False), whitespace)
    for formula in ALWAYS:
        lowering.rule(formula)
    while base.pending:
        base.lower(next(iter(base.pending)))
    base.written = lowering.written
    return base
