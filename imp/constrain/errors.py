"""What a constraint is refused with: always before the first token, always naming what and where."""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """Why; the values are the API's error codes."""

    UNSUPPORTED = "unsupported_constraint"  # valid, and not enforceable here
    UNSATISFIABLE = "unsatisfiable_constraint"  # no text fulfils it
    INVALID = "invalid_constraint"  # not a schema, a regex, a grammar
    TOO_LARGE = "constraint_too_large"  # a budget ended


class ConstraintError(Exception):
    """`where: reason; advice`, e.g. `#/properties/a: 'pattern' uses lookahead, which ...; rewrite it without`.

    param: the field of the request that is meant, where it has several; "" where it has one.
    where: a JSON pointer into the schema, or a position in the regex or grammar ("line 3, column 7", "offset 0");
    "" for the whole constraint.  advice: what to do, may be empty.
    """

    def __init__(self, code: Code, where: str, reason: str, advice: str = "", param: str = ""):
        self.code, self.where, self.reason, self.advice, self.param = code, where, reason, advice, param
        super().__init__(self.message)

    @property
    def message(self) -> str:
        text = f"{self.where}: {self.reason}" if self.where else self.reason
        return f"{text}; {self.advice}" if self.advice else text


def too_large(what: str) -> ConstraintError:
    return ConstraintError(Code.TOO_LARGE, "", f"too large: {what}")
