"""An Earley recogniser for GBNF, written from the notation alone: it shares nothing with the compiler it judges."""

from __future__ import annotations

import re
from itertools import count

TOKEN = re.compile(r'\s*(?:(?P<rule>\w+)\s*::=|(?P<str>"[^"]*")|(?P<cls>\[\^?[^\]]*\])|(?P<rep>[*+?]|\{\d+(?:,\d*)?\})|(?P<sign>[()|])|(?P<ref>\w+))')
Symbol = str | tuple[str, bool]  # a rule, or (characters, negated)


class Earley:
    """Names, strings, simple classes, groups and repetitions, as plain productions."""

    def __init__(self, grammar: str) -> None:
        self.productions: dict[str, list[tuple[Symbol, ...]]] = {}
        self._fresh = count()
        tokens = [(match.lastgroup, match[match.lastgroup]) for match in TOKEN.finditer(grammar)]
        at = 0
        while at < len(tokens):
            kind, name = tokens[at]
            assert kind == "rule"
            alternatives, at = self._alternatives(tokens, at + 1)
            self.productions[name] = alternatives
        self._nullable = self._fixpoint(lambda symbol, known: isinstance(symbol, str) and symbol in known)
        self._productive = self._fixpoint(lambda symbol, known: not isinstance(symbol, str) or symbol in known)

    def _new(self, alternatives: list[tuple[Symbol, ...]]) -> str:
        name = f"#{next(self._fresh)}"
        self.productions[name] = alternatives
        return name

    def _alternatives(self, tokens, at):
        found: list[list[Symbol]] = [[]]
        while at < len(tokens) and tokens[at][0] != "rule" and tokens[at][1] != ")":
            kind, text = tokens[at]
            at += 1
            if text == "|" and kind == "sign":
                found.append([])
            elif text == "(" and kind == "sign":
                inner, at = self._alternatives(tokens, at)
                found[-1].append(self._new(inner))
                at += 1
            elif kind == "str":
                found[-1].append(self._new([tuple((char, False) for char in text[1:-1])]))
            elif kind == "cls":
                negated = text[1] == "^"
                found[-1].append((text[1 + negated : -1], negated))
            elif kind == "ref":
                found[-1].append(text)
            else:
                found[-1].append(self._repeated(found[-1].pop(), text))
        return [tuple(items) for items in found], at

    def _repeated(self, symbol: Symbol, text: str) -> str:
        if text[0] == "{":
            low, comma, high = text[1:-1].partition(",")
            least, most = int(low), int(high) if high else None if comma else int(low)
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
        if most is not None:
            return self._new([(symbol,) * rounds for rounds in range(least, most + 1)])
        loop = self._new([()])
        self.productions[loop].append((loop, symbol))
        return self._new([(symbol,) * least + (loop,)])

    def _fixpoint(self, test) -> set[str]:
        known: set[str] = set()
        while True:
            more = {n for n, ps in self.productions.items() if any(all(test(s, known) for s in p) for p in ps)}
            if more == known:
                return known
            known = more

    def productive(self, name: str) -> bool:
        return name in self._productive

    def _columns(self, text: str) -> list[set[tuple[str, tuple[Symbol, ...], int, int]]]:
        columns: list[set] = [set() for _ in range(len(text) + 1)]
        columns[0] = {("root", production, 0, 0) for production in self.productions["root"]}
        for at, column in enumerate(columns):
            work = list(column)
            while work:
                name, production, dot, origin = work.pop()
                found = []
                if dot == len(production):
                    found = [(n, p, d + 1, o) for n, p, d, o in columns[origin] if d < len(p) and p[d] == name]
                elif isinstance(production[dot], str):
                    found = [(production[dot], p, 0, at) for p in self.productions[production[dot]]]
                    if production[dot] in self._nullable:
                        found.append((name, production, dot + 1, origin))
                elif at < len(text) and (text[at] in production[dot][0]) != production[dot][1]:
                    columns[at + 1].add((name, production, dot + 1, origin))
                for item in found:
                    if item not in column:
                        column.add(item)
                        work.append(item)
        return columns

    def recognises(self, text: str) -> bool:
        return any(n == "root" and d == len(p) and o == 0 for n, p, d, o in self._columns(text)[-1])

    def viable(self, text: str) -> bool:
        """Is `text` the beginning of a text of the grammar? All rules must be productive."""
        return bool(self._columns(text)[-1])
