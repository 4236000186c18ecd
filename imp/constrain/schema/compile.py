"""A schema becomes rules of an automaton, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..clock import SECONDS, Stop, timed
from ..errors import Code, ConstraintError
from ..nfa import Nfa
from .budget import Budget, too_large
from .check import Reachable
from .explain import explain
from .load import Document, Draft
from .lower import Lowering
from .parse import Parser
from .whitespace import Whitespace


class PropertyOrder(Enum):
    DECLARED = "declared"  # as in `properties`, then names that are only required, then others
    ANY = "any"


@dataclass(frozen=True)
class SchemaOptions:
    """How values are written, and what compiling may cost."""

    whitespace: Whitespace = Whitespace.BOUNDED
    property_order: PropertyOrder = PropertyOrder.DECLARED
    draft: Draft | None = None  # None: what `$schema` says, or 2020-12
    seconds: float = SECONDS
    cancelled: Stop = lambda: False


@dataclass(frozen=True)
class Schema:
    """A schema in an automaton."""

    start: int  # the rule: one value, then `ret`
    ignored_formats: tuple[str, ...]  # names of formats that nobody knows, for a warning


DEFAULTS = SchemaOptions()


def compile_rule(schema: object, nfa: Nfa, options: SchemaOptions = DEFAULTS) -> Schema:
    """The rule for one value of the schema. Raises ConstraintError, before any token, for what will not be enforced."""
    try:
        with timed(options.seconds, options.cancelled):
            return _compile(schema, nfa, options)
    except RecursionError:
        raise too_large("the schema is nested too deeply") from None


def compile_schema(schema: object, nfa: Nfa, options: SchemaOptions = DEFAULTS) -> int:
    """The first node of the rule for one value of the schema; see `compile_rule`."""
    return compile_rule(schema, nfa, options).start


def emit_value(schema: object, nfa: Nfa, after: int, options: SchemaOptions = DEFAULTS) -> int:
    """A node that reads one value of the schema, then goes on at `after`."""
    return nfa.call(compile_schema(schema, nfa, options), after)


def _compile(schema: object, nfa: Nfa, options: SchemaOptions) -> Schema:
    document = Document(schema, options.draft)
    budget = Budget()
    parser = Parser(document, budget)
    root = parser.root()
    reachable = Reachable(parser.algebra, budget, options.property_order is PropertyOrder.ANY, parser)
    reachable.add(root)
    if not reachable.exists(root):
        where, reason = explain(document, lambda place: parser.algebra.surely_empty(parser.schema(place)))
        raise ConstraintError(Code.UNSATISFIABLE, where, reason, "relax one of them")
    lowering = Lowering(nfa, reachable, options.whitespace)
    lowering.prepare()
    return Schema(lowering.rule(root), parser.ignored_formats)
