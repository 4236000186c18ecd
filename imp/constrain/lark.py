r"""Grammars in Lark's notation, the part of it that people send for constrained output.

Rules and terminals, strings (`"a"i`), ranges, `/regex/flags` in the dialect of regex.py, groups, `[optional]`, `* + ?`,
`~n`, `~n..m`, `%ignore`, `%import common.X`, comments. Modifiers, priorities and aliases shape trees, not texts: they
are read and mean nothing. Ignored text may stand before each terminal of a rule. Texts begin with the rule `start`.
"""

from __future__ import annotations

import re

from . import expr as e
from . import regex
from .charset import CharSet
from .errors import Code, ConstraintError, too_large
from .expr import Expr
from .gbnf import TokenBytes
from .grammar import compile_rules
from .nfa import UNBOUNDED, Nfa
from .scan import MAX_GRAMMAR, Scanner
from .unicode_sets import any_case

_COMMON = {  # https://github.com/lark-parser/lark/blob/master/lark/grammars/common.lark, as regular expressions
    "DIGIT": "[0-9]", "HEXDIGIT": "[a-fA-F0-9]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+", "_EXP": "[eE][+-]?[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "LETTER": "[a-zA-Z]", "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*", "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+",
    "CR": r"\r", "LF": r"\n", "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*", "CPP_COMMENT": r"\/\/[^\n]*", "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
}  # fmt: skip
_DEFINITION = re.compile(r"[?!]*(?P<name>_*[A-Za-z]\w*)(?:\.-?[0-9]+)?(?P<template>\s*\{[^}\n]*\})?\s*:", re.ASCII)
_NAME = re.compile(r"_*[A-Za-z]\w*", re.ASCII)
_FLAGS = re.compile("[imslux]*")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "b": 8, "0": 0, "\\": 92, '"': 34, "'": 39, "/": 47}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_IGNORED = "%ignore"  # the rule for what may stand before a terminal; no rule of a grammar can be called so
_CLOSERS = {"(": ")", "[": "]"}


def compile_lark(text: str, nfa: Nfa, tokens: TokenBytes | None = None) -> int:
    """The node at which texts of the rule `start` begin; they end in `nfa.ret`.

    Raises ConstraintError; `where` is "line L, column C" for what is wrong with the text of the grammar.
    """
    if len(text) > MAX_GRAMMAR:
        raise too_large(f"the grammar has more than {MAX_GRAMMAR} characters")
    parser = _Parser(text, tokens)
    rules = parser.rules()
    return compile_rules(rules, "start", nfa, lambda name: parser.position(parser.places.get(name, 0)))


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Parser(Scanner):
    def __init__(self, text: str, tokens: TokenBytes | None):
        super().__init__(text, comments=("//", "#"))
        self.tokens = tokens
        self.defined: dict[str, Expr] = {}
        self.places: dict[str, int] = {}
        self.used: dict[str, int] = {}  # where first
        self.ignored: list[Expr] = []

    def rules(self) -> dict[str, Expr]:
        while self.skip() < len(self.text):
            start = self.at
            if self.take("%"):
                self.directive(start)
                continue
            match = _DEFINITION.match(self.text, start)
            if match is None:
                raise self.invalid(start, "a definition, 'name: ...', is missing here")
            if match["template"]:
                raise self.refused(Code.UNSUPPORTED, match.start("template"), "templates are not supported")
            self.at = match.end()
            name = match["name"]
            self.define(name, self.body(name, start, _is_terminal(name)), start)
        for name, at in self.used.items():
            if name not in self.defined:
                raise self.invalid(at, f"'{name}' is used but not defined")
        if "start" not in self.defined:
            raise ConstraintError(Code.INVALID, "", "the grammar has no rule 'start'")
        return self.defined | {_IGNORED: e.star(e.alternate(self.ignored)) if self.ignored else e.EMPTY}

    def define(self, name: str, expr: Expr, start: int) -> None:
        if name in self.defined:
            raise self.invalid(start, f"'{name}' is defined twice")
        self.defined[name], self.places[name] = expr, start

    # directives -----------------------------------------------------------------------------------------------------

    def directive(self, start: int) -> None:
        word = self.name()
        if word == "ignore":
            self.ignored.append(self.body("%ignore", start, terminal=True))
        elif word == "import":
            self.imports(start)
        else:
            raise self.refused(Code.UNSUPPORTED, start, f"'%{word}' is not supported")

    def imports(self, start: int) -> None:
        """`common.X`, `common.X -> Y` or `common (X, Y)`."""
        self.skip()
        if self.name() != "common":
            raise self.refused(Code.UNSUPPORTED, start, "only 'common' can be imported from")
        self.skip()
        if self.take("."):
            name = self.name()
            self.skip()
            alias = name
            if self.take("->"):
                self.skip()
                alias = self.name()
            self.common(name, alias, start)
        elif self.take("("):
            for name in self.until(")", start, "'('").split(","):
                self.common(name.strip(), name.strip(), start)
        else:
            raise self.invalid(start, "an import is written '%import common.NAME'")

    def common(self, name: str, alias: str, start: int) -> None:
        if name not in _COMMON or not alias:
            raise self.invalid(start, f"'common' has no terminal '{name[:40]}'")
        if alias not in self.defined:  # importing it again is no mistake
            self.define(alias, regex.parse(_COMMON[name]), start)

    # bodies ---------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        match = _NAME.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def body(self, name: str, rule: int, terminal: bool) -> Expr:
        """Alternatives up to the next definition or directive, or the end."""
        nest, opened, anything = e.Nest(), list[tuple[str, int]](), False
        while self.skip() < len(self.text) and not self.peek("%") and not _DEFINITION.match(self.text, self.at):
            start, char = self.at, self.text[self.at]
            anything = True
            if char in _CLOSERS:
                self.at += 1
                if nest.depth == e.MAX_NESTING:
                    raise self.refused(Code.TOO_LARGE, start, f"nesting of more than {e.MAX_NESTING} groups")
                nest.open()
                opened.append((char, start))
            elif char in ")]":
                self.at += 1
                if not opened or _CLOSERS[opened[-1][0]] != char:
                    raise self.invalid(start, f"unmatched '{char}'")
                group = nest.close()
                item = self.quantified(e.optional(group) if opened.pop()[0] == "[" else group)
                nest.items.append(item)
            elif char == "|":
                self.at += 1
                nest.alternative()
            elif self.take("->"):
                self.alias(start)
            else:
                nest.items.append(self.quantified(self.atom(char, start, terminal)))
        if opened:
            raise self.invalid(opened[-1][1], f"unclosed '{opened[-1][0]}'")
        if not anything:
            raise self.invalid(rule, f"'{name}' has no body; write \"\" for the empty text")
        return nest.close()

    def alias(self, start: int) -> None:
        self.skip()
        if not self.name():
            raise self.invalid(start, "a name is missing after '->'")

    def atom(self, char: str, start: int, terminal: bool) -> Expr:
        if char == '"':
            found = self.string_or_range(start)
        elif char == "/":
            found = self.regex(start)
        elif char == "<":
            return self.token(start)
        else:
            name = self.name()
            if not name:
                raise self.invalid(start, f"unexpected {char!r}")
            if self.peek("{"):
                raise self.refused(Code.UNSUPPORTED, self.at, "templates are not supported")
            if terminal and not _is_terminal(name):
                raise self.invalid(start, f"a terminal cannot use the rule '{name}'")
            self.used.setdefault(name, start)
            found = e.Reference(name)
            if not _is_terminal(name):
                return found
        return found if terminal else e.Concat((e.Reference(_IGNORED), found))

    def token(self, start: int) -> Expr:
        self.at += 1
        name = "<" + self.until(">", start, "'<'") + ">"
        data = self.tokens(name) if self.tokens is not None else None
        if data is None:
            raise self.invalid(start, f"{name[:40]} is no token of this model")
        return e.Token(data)

    def quantifier(self) -> tuple[int, int] | None:
        if _DEFINITION.match(self.text, self.at):  # `?name:` is the next rule
            return None
        for sign, bounds in (("*", (0, UNBOUNDED)), ("+", (1, UNBOUNDED)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        start = self.at
        if not self.take("~"):
            return None
        self.skip()
        low = self.number()
        self.skip()
        high = low
        if self.take(".."):
            self.skip()
            high = self.number()
        if low is None or high is None or high < low:
            raise self.invalid(start, "a repetition is written '~ n' or '~ n..m'")
        return low, high

    # terminals ------------------------------------------------------------------------------------------------------

    def string_or_range(self, start: int) -> Expr:
        text = self.string(start)
        if not self.take(".."):
            if self.take("i"):
                return e.concat([e.Chars(any_case(CharSet.of((code, code)))) for code in text])
            return self.word(text)
        last = self.string(self.at) if self.peek('"') else []
        if len(text) != 1 or len(last) != 1 or last < text:
            raise self.invalid(start, 'a range is written "a".."z"')
        return e.Chars(CharSet.of((text[0], last[0])))

    def string(self, start: int) -> list[int]:
        self.at += 1
        codes = []
        while not self.take('"'):
            at = self.at
            char = self.one(start, "'\"'")
            if char == "\n":
                raise self.invalid(start, "unclosed '\"'")
            codes.append(self.escaped(at, start) if char == "\\" else ord(char))
        return codes

    def escaped(self, at: int, start: int) -> int:
        kind = self.one(start, "'\"'")
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind not in _HEX_LENGTHS:
            raise self.invalid(at, f"unknown escape '\\{kind}'")
        return self.hexadecimal(_HEX_LENGTHS[kind], at)

    def regex(self, start: int) -> Expr:
        self.at += 1
        begin = self.at
        while not self.peek("/"):
            char = self.one(start, "'/'")
            if char == "\n":
                raise self.invalid(start, "unclosed '/'")
            if char == "\\":
                self.one(start, "'/'")
        pattern = self.text[begin : self.at]
        self.at += 1
        flags = _FLAGS.match(self.text, self.at)
        assert flags is not None
        self.at = flags.end()
        letters = "".join(sorted(set(flags[0]) & set("imsx")))
        try:
            found = regex.parse(f"(?{letters}){pattern}" if letters else pattern)
        except regex.RegexError as error:
            raise ConstraintError(error.code, self.position(start), f"the pattern {error.predicate}") from error
        if any(isinstance(leaf, e.Assert) for leaf in e.leaves(found)):
            raise self.refused(Code.UNSUPPORTED, start, "an anchor in a terminal")
        return found
