r"""GBNF, the grammar notation of llama.cpp: `root ::= "a" [b-c]+ (d | "e"){2,5}`.

Read as its README describes it, and a little wider: a rule ends where the next `name ::=` begins, names may hold `_`,
and left recursion is allowed. `<[id]>` and `<text>` name tokens where the caller can tell their bytes.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator

from . import expr as e
from .charset import ALL, CharSet
from .errors import Code, ConstraintError, too_large
from .expr import Expr
from .grammar import compile_rules
from .nfa import UNBOUNDED, Nfa
from .scan import MAX_GRAMMAR, Scanner

TokenBytes = Callable[[int | str], bytes | None]  # a token by id or text, as the automaton spells it
_NAME = frozenset(string.ascii_letters + string.digits + "-_")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "\\": 92, '"': 34, "[": 91, "]": 93, "-": 45, "^": 94}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


def compile_gbnf(text: str, nfa: Nfa, tokens: TokenBytes | None = None) -> int:
    """The node at which texts of the rule `root` begin; they end in `nfa.ret`.

    Raises ConstraintError; `where` is "line L, column C" for what is wrong with the text of the grammar.
    """
    if len(text) > MAX_GRAMMAR:
        raise too_large(f"the grammar has more than {MAX_GRAMMAR} characters")
    parser = _Parser(text, tokens)
    return compile_rules(parser.rules(), "root", nfa, lambda name: parser.position(parser.places[name]))


class _Parser(Scanner):
    def __init__(self, text: str, tokens: TokenBytes | None):
        super().__init__(text, comments=("#",))
        self.tokens = tokens
        self.defined: dict[str, Expr] = {}
        self.places: dict[str, int] = {}  # of the defined ones
        self.used: dict[str, int] = {}  # where first

    def rules(self) -> dict[str, Expr]:
        self.skip()
        while self.at < len(self.text):
            start = self.at
            name = self.name()
            if not name:
                raise self.invalid(start, "a rule name is missing here")
            self.skip()
            if not self.take("::="):
                raise self.invalid(self.at, f"'::=' is missing after the rule name '{name}'")
            if name in self.defined:
                raise self.invalid(start, f"rule '{name}' is defined twice")
            self.places[name] = start
            self.defined[name] = self.body(name, start)
        for name, at in self.used.items():
            if name not in self.defined:
                raise self.invalid(at, f"rule '{name}' is used but not defined")
        if "root" not in self.defined:
            raise ConstraintError(Code.INVALID, "", "the grammar has no rule 'root'")
        return self.defined

    def name(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in _NAME:
            self.at += 1
        return self.text[start : self.at]

    def body(self, name: str, rule: int) -> Expr:
        """Alternatives up to the next rule or the end."""
        nest, opened, anything = e.Nest(), list[int](), False
        while self.skip() < len(self.text) and (opened or not self.rule_begins()):
            start, char = self.at, self.text[self.at]
            anything = True
            if char == "(":
                self.at += 1
                if nest.depth == e.MAX_NESTING:
                    raise self.refused(Code.TOO_LARGE, start, f"nesting of more than {e.MAX_NESTING} groups")
                nest.open()
                opened.append(start)
            elif char == ")":
                self.at += 1
                if not opened:
                    raise self.invalid(start, "unmatched ')'")
                opened.pop()
                item = self.quantified(nest.close())
                nest.items.append(item)
            elif char == "|":
                self.at += 1
                nest.alternative()
            else:
                nest.items.append(self.quantified(self.atom(char, start)))
        if opened:
            raise self.invalid(opened[-1], "unclosed '('")
        if not anything:
            raise self.invalid(rule, f"rule '{name}' has no body; write \"\" for the empty text")
        return nest.close()

    def rule_begins(self) -> bool:
        start = self.at
        found = bool(self.name()) and self.text.startswith("::=", self.skip())
        self.at = start
        return found

    def atom(self, char: str, start: int) -> Expr:
        self.at += 1
        if char == '"':
            return self.literal(start)
        if char == "[":
            return e.Chars(self.char_class(start))
        if char == ".":
            return e.Chars(ALL)
        if char in "<!":
            return self.token(start)
        if char in "*+?{":
            raise self.invalid(start, f"nothing to repeat before '{char}'")
        self.at = start
        name = self.name()
        if not name:
            raise self.invalid(start, f"unexpected {char!r}")
        self.used.setdefault(name, start)
        return e.Reference(name)

    def quantifier(self) -> tuple[int, int] | None:
        for sign, bounds in (("*", (0, UNBOUNDED)), ("+", (1, UNBOUNDED)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        start = self.at
        if not self.take("{"):
            return None
        low = self.skip_number()
        comma = self.skip() < len(self.text) and self.take(",")
        high = self.skip_number() if comma else low
        self.skip()
        if not self.take("}") or (low is None and high is None):
            raise self.invalid(start, "a repetition is written {m}, {m,} or {m,n}")
        least, most = low or 0, UNBOUNDED if high is None else high
        if UNBOUNDED < most < least:
            raise self.invalid(start, "numbers out of order in a repetition")
        return least, most

    def skip_number(self) -> int | None:
        self.skip()
        return self.number()

    def literal(self, start: int) -> Expr:
        return self.word(self.code_points(start))

    def code_points(self, start: int) -> Iterator[int]:
        """Of a literal that began at `start`, up to its end."""
        while not self.take('"'):
            yield self.code_point(start, "'\"'")

    def char_class(self, start: int) -> CharSet:
        negated, spans = self.take("^"), list[tuple[int, int]]()
        while not self.take("]"):
            first = self.code_point(start, "'['")
            last = first
            if self.peek("-") and not self.peek("-]"):
                dash = self.at
                self.at += 1
                last = self.code_point(start, "'['")
                if last < first:
                    raise self.invalid(dash, "range out of order in a class")
            spans.append((first, last))
        chars = CharSet.of(*spans)
        return ~chars if negated else chars

    def code_point(self, opened: int, what: str) -> int:
        """One character of a literal or a class, escaped or not."""
        start = self.at
        char = self.one(opened, what)
        if char != "\\":
            return ord(char)
        kind = self.one(opened, what)
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind not in _HEX_LENGTHS:
            raise self.invalid(start, f"unknown escape '\\{kind}'")
        return self.hexadecimal(_HEX_LENGTHS[kind], start)

    def token(self, start: int) -> Expr:
        """`<[id]>`, `<text>`; `!` before it stands for any text, so it needs `*` or `+` behind it."""
        self.at = start
        negated = self.take("!")
        if not self.take("<"):
            raise self.invalid(start, "a token, as in '!<token>', must follow '!'")
        name = "<" + self.until(">", start, "'<'") + ">"
        number = name[2:-2] if name.startswith("<[") and name.endswith("]>") else ""
        if number and not (number.isascii() and number.isdigit() and len(number) < 10):
            raise self.invalid(start, f"{name[:40]} is no token: an id is a number")
        if self.tokens is None:
            raise self.refused(Code.UNSUPPORTED, start, f"the token {name[:40]} cannot be told here")
        data = self.tokens(int(number) if number else name)
        if data is None:
            raise self.invalid(start, f"{name[:40]} is no token of this model")
        if not negated:
            return e.Token(data)
        self.skip()
        if not (self.peek("*") or self.peek("+")):
            raise self.refused(
                Code.UNSUPPORTED, start, f"'!{name[:40]}' without '*' or '+' behind it: one token of any length"
            )
        return e.Chars(ALL)
