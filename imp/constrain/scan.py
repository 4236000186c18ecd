"""Reading the text of a grammar: a place in it, what stands there, and errors that say where."""

from __future__ import annotations

import string
from collections.abc import Iterable

from . import expr as e
from .charset import CharSet
from .clock import tick
from .errors import Code, ConstraintError, too_large
from .expr import Expr

MAX_GRAMMAR = 1 << 20  # characters
MAX_DIGITS = 9  # of a number: counters are int32
MAX_LEAVES = 100_000  # characters and references of all rules; each is looked at several times


class Scanner:
    def __init__(self, text: str, comments: tuple[str, ...]):
        self.text, self.at, self.comments = text, 0, comments
        self._characters: dict[int, Expr] = {}  # one serves all places where it stands
        self._leaves = 0  # of what `word` returned

    def position(self, at: int) -> str:
        line = self.text.count("\n", 0, at)
        return f"line {line + 1}, column {at - self.text.rfind('\n', 0, at)}"

    def refused(self, code: Code, at: int, reason: str) -> ConstraintError:
        return ConstraintError(code, self.position(at), f"the grammar is refused: {reason}")

    def invalid(self, at: int, reason: str) -> ConstraintError:
        return ConstraintError(Code.INVALID, self.position(at), f"the grammar is not valid: {reason}")

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) * found
        return found

    def skip(self) -> int:
        """Past white space and comments; returns the new place."""
        tick()
        while self.at < len(self.text):
            if self.text[self.at] in string.whitespace:
                self.at += 1
            elif self.text.startswith(self.comments, self.at):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                break
        return self.at

    def one(self, opened: int, what: str) -> str:
        """The next character of something that began at `opened`."""
        if self.at >= len(self.text):
            raise self.invalid(opened, f"unclosed {what}")
        tick()
        self.at += 1
        return self.text[self.at - 1]

    def word(self, codes: Iterable[int]) -> Expr:
        """These code points, one after the other."""
        items: list[Expr] = []
        for code in codes:
            tick()
            if code not in self._characters:
                self._characters[code] = e.Chars(CharSet.of((code, code)))
            items.append(self._characters[code])
            self._leaves += 1
            if self._leaves > MAX_LEAVES:
                raise too_large(f"the grammar has more than {MAX_LEAVES} characters and references in its rules")
        return e.concat(items)

    def until(self, close: str, opened: int, what: str) -> str:
        end = self.text.find(close, self.at)
        if end < 0:
            raise self.invalid(opened, f"unclosed {what}")
        text, self.at = self.text[self.at : end], end + len(close)
        return text

    def number(self) -> int | None:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in string.digits:
            self.at += 1
        if self.at - start > MAX_DIGITS:
            raise self.refused(Code.TOO_LARGE, start, f"a number of more than {MAX_DIGITS} digits")
        return int(self.text[start : self.at]) if self.at > start else None

    def hexadecimal(self, count: int, start: int) -> int:
        """A code point in `count` digits; `start` is where its escape begins."""
        digits = self.text[self.at : self.at + count]
        self.at += count
        if len(digits) < count or not all(char in string.hexdigits for char in digits) or int(digits, 16) > 0x10FFFF:
            raise self.invalid(start, "bad hexadecimal escape")
        return int(digits, 16)

    def quantified(self, item: Expr) -> Expr:
        """With the quantifiers that follow; several apply one after the other."""
        for _ in range(e.MAX_NESTING):
            self.skip()
            bounds = self.quantifier()
            if bounds is None:
                return item
            item = e.Repeat(item, *bounds)
        raise self.refused(Code.TOO_LARGE, self.at, f"nesting of more than {e.MAX_NESTING} quantifiers")

    def quantifier(self) -> tuple[int, int] | None:
        """The bounds of the quantifier that is next, consumed; None: there is none. Each notation has its own."""
        return None
