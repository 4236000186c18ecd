r"""Regular expressions: ECMA-262 with the flag `u`, and the Python spellings people send. Text in, an `Expr` out.

`\d` and `\w` are ASCII, `\s` has Unicode's spaces, `.` no line terminators, `$` is the very end. From Python:
`(?P<n>...)`, `\A`, `\Z`, `(?#...)`, inline flags `i m s x`, escaped punctuation, `{,n}`. Lazy quantifiers are read and
change nothing: they choose between matches, and what counts here is whether there is one.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from . import expr as e
from .charset import ALL, DIGITS, LINE_TERMINATORS, SPACES, WORD, CharSet
from .errors import Code, ConstraintError
from .expr import Expr
from .nfa import UNBOUNDED
from .unicode_sets import any_case, property_set

MAX_PATTERN = 100_000  # characters
MAX_DIGITS = 9  # of a repetition bound: counters are int32
_STREAM = "which a streaming automaton cannot enforce"


class RegexError(ConstraintError):
    """A pattern that is refused. `predicate` is the reason without its subject: "uses lookahead, which ..."."""

    def __init__(self, code: Code, offset: int, predicate: str):
        self.predicate = predicate
        super().__init__(code, f"offset {offset}", f"the pattern {predicate}")


def _invalid(offset: int, what: str) -> RegexError:
    return RegexError(Code.INVALID, offset, f"is not a valid regular expression: {what}")


def _unsupported(offset: int, what: str) -> RegexError:
    return RegexError(Code.UNSUPPORTED, offset, f"uses {what}")


def parse(pattern: str) -> Expr:
    """The expression of a pattern; anchors are `Assert`s. Raises RegexError, `where` is "offset N"."""
    if len(pattern) > MAX_PATTERN:
        raise RegexError(Code.TOO_LARGE, MAX_PATTERN, f"is longer than {MAX_PATTERN} characters")
    expr = _Parser(pattern).parse()
    _refuse_inner_word_edges(expr)
    return expr


def _refuse_inner_word_edges(expr: Expr) -> None:
    r"""Refuse `\b` and `\B` with something to match on both sides of them."""
    words = (e.WORD_EDGE, e.NO_WORD_EDGE)
    if not any(isinstance(leaf, e.Assert) and leaf.contexts in words for leaf in e.leaves(expr)):
        return
    eats: dict[int, bool] = {}

    def note(node: Expr, below: list[bool]) -> bool:
        return eats.setdefault(id(node), isinstance(node, e.Chars) or any(below))

    e.fold(expr, note)
    stack = [(expr, False, False)]  # (node, something before it, something after it)
    while stack:
        node, before, after = stack.pop()
        if isinstance(node, e.Assert) and node.contexts in words and before and after:
            raise _unsupported(node.offset, f"a word boundary between two parts, {_STREAM}")
        below = e.children(node)
        if isinstance(node, e.Repeat) and node.high != 1 and eats[id(node)]:
            before = after = True
        if not isinstance(node, e.Concat):
            stack += [(child, before, after) for child in below]
            continue
        eating = [at for at, child in enumerate(below) if eats[id(child)]]
        for at, child in enumerate(below):
            first, last = (eating[0], eating[-1]) if eating else (at, at)
            stack.append((child, before or first < at, after or last > at))


@dataclass(frozen=True, slots=True)
class _Flags:
    """Inline flags in force."""

    i: bool = False  # case does not matter
    m: bool = False  # ^ and $ also stand at line ends
    s: bool = False  # `.` takes line terminators
    x: bool = False  # white space and comments are skipped

    def changed(self, letters: str, to: bool) -> _Flags:
        values = {name: getattr(self, name) for name in "imsx"}
        return _Flags(**(values | {name: to for name in letters if name in "imsx"}))


_BOUNDS = re.compile(r"\{(?=[0-9,])([0-9]*)(,?)([0-9]*)\}")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7}
_CLASSES = {"d": DIGITS, "D": ~DIGITS, "w": WORD, "W": ~WORD, "s": SPACES, "S": ~SPACES}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_LOOKS = {"=": "lookahead", "!": "lookahead", "<=": "lookbehind", "<!": "lookbehind"}
_BACKREFERENCE = "a backreference"
_FLAG_LETTERS = frozenset("imsxau")  # a, u: ASCII or Unicode classes; the dialect decides that


class _Parser:
    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.flags = _Flags()
        self.nest = e.Nest()
        self.outer: list[tuple[int, _Flags]] = []  # of each open group: its offset, the flags after it
        self.empty_class: int | None = None

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) * found
        return found

    def until(self, close: str, opened: int, what: str) -> str:
        """The text up to `close`, which is eaten too."""
        end = self.text.find(close, self.at)
        if end < 0:
            raise _invalid(opened, f"unclosed {what}")
        text, self.at = self.text[self.at : end], end + len(close)
        return text

    def parse(self) -> Expr:
        while self.at < len(self.text):
            if self.flags.x and self.skipped():
                continue
            start, char = self.at, self.text[self.at]
            self.at += 1
            if char == "(":
                self.group(start)
            elif char == ")":
                if not self.outer:
                    raise _invalid(start, "unmatched ')'")
                self.flags = self.outer.pop()[1]
                self.add(self.nest.close())
            elif char == "|":
                self.nest.alternative()
            elif char in "*+?" or _BOUNDS.match(self.text, start):
                raise _invalid(start, "nothing to repeat")
            else:
                self.atom(char, start)
        if self.outer:
            raise _invalid(self.outer[-1][0], "unclosed '('")
        return self.nest.close()

    def skipped(self) -> bool:
        """Skip white space or a comment under the flag x."""
        if self.text[self.at] in string.whitespace:
            self.at += 1
            return True
        if self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end + 1
            return True
        return False

    def add(self, item: Expr) -> None:
        """An item, with the quantifier that follows it."""
        while self.flags.x and self.at < len(self.text) and self.skipped():
            pass
        bounds = self.quantifier()
        if bounds is None:
            self.nest.items.append(item)
            return
        low, high = bounds
        self.nest.items.append(e.repeat(item, low, high))
        self.take("?")
        if self.peek("+"):
            raise _unsupported(self.at, f"a possessive quantifier, {_STREAM}")
        after = self.at
        if self.quantifier() is not None:
            raise _invalid(after, "multiple repeat")

    def quantifier(self) -> tuple[int, int] | None:
        """Eat a quantifier and tell its bounds; None if there is none (a brace may be a literal)."""
        for sign, bounds in (("*", (0, UNBOUNDED)), ("+", (1, UNBOUNDED)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        match = _BOUNDS.match(self.text, self.at)
        if match is None:
            return None
        low, comma, high = match.groups()
        if len(low) > MAX_DIGITS or len(high) > MAX_DIGITS:
            raise RegexError(Code.TOO_LARGE, self.at, f"has a repetition bound of more than {MAX_DIGITS} digits")
        least = int(low or 0)
        most = (int(high) if high else UNBOUNDED) if comma else least
        if UNBOUNDED < most < least:
            raise _invalid(self.at, "numbers out of order in a quantifier")
        self.at = match.end()
        return least, most

    def atom(self, char: str, start: int) -> None:
        if char == "^":
            self.assertion(e.LINE_START if self.flags.m else e.TEXT_START, start)
        elif char == "$":
            self.assertion(e.LINE_END if self.flags.m else e.TEXT_END, start)
        elif char == ".":
            self.add(e.Chars(ALL if self.flags.s else ~LINE_TERMINATORS))
        elif char == "[":
            self.add(e.Chars(self.char_class(start)))
        elif char == "\\":
            self.escape(start)
        elif char == "]" and self.empty_class is not None:
            raise _invalid(start, "']' after an empty class can mean two things; write '\\]'")
        else:
            self.add(e.Chars(self.cased(CharSet.chars(char))))

    def assertion(self, contexts: int, start: int) -> None:
        self.nest.items.append(e.Assert(contexts, start))
        if self.at < len(self.text) and self.quantifier() is not None:
            raise _invalid(start, "nothing to repeat")

    def cased(self, chars: CharSet) -> CharSet:
        return any_case(chars) if self.flags.i else chars

    # groups ---------------------------------------------------------------------------------------------------------

    def group(self, start: int) -> None:
        flags = self.flags
        if self.take("?"):
            if self.take("#"):
                self.until(")", start, "comment")
                return
            inner = self.prefix(start)
            if inner is None:  # flags for the rest of the enclosing group
                return
            flags = inner
        if self.nest.depth == e.MAX_NESTING:
            raise RegexError(Code.TOO_LARGE, start, f"has a nesting of more than {e.MAX_NESTING} groups")
        self.nest.open()
        self.outer.append((start, self.flags))
        self.flags = flags

    def prefix(self, start: int) -> _Flags | None:
        """Read what follows `(?` and opens a group; the flags in it, or None where `(?i)` stood."""
        for sign, name in _LOOKS.items():
            if self.peek(sign):
                raise _unsupported(start, f"{name}, {_STREAM}")
        if self.peek(">"):
            raise _unsupported(start, f"an atomic group, {_STREAM}")
        if self.peek("P=") or self.peek("P>"):
            raise _unsupported(start, f"{_BACKREFERENCE if self.peek('P=') else 'a recursive group'}, {_STREAM}")
        if self.peek("("):
            raise _unsupported(start, f"a conditional group, {_STREAM}")
        if self.take("P<") or self.take("<"):
            at = self.at
            name = self.until(">", start, "group name")
            if not name.replace("$", "_").isidentifier():
                raise _invalid(at, f"bad group name {name[:40]!r}")
            return self.flags
        return self.inline_flags(start)

    def inline_flags(self, start: int) -> _Flags | None:
        flags, on = self.flags, True
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == ":":
                return flags
            if char == ")" and self.text[self.at - 2] not in "?-":
                self.flags = flags
                return None
            if char == "-" and on:
                on = False
            elif char in _FLAG_LETTERS:
                flags = flags.changed(char, on)
            else:
                raise _invalid(self.at - 1, f"unknown group '(?{char}'")
        raise _invalid(start, "unclosed '('")

    # escapes --------------------------------------------------------------------------------------------------------

    def escape(self, start: int) -> None:
        """What follows a backslash outside a class."""
        char = self.text[self.at : self.at + 1]
        anchors = {"A": e.TEXT_START, "Z": e.TEXT_END, "z": e.TEXT_END, "b": e.WORD_EDGE, "B": e.NO_WORD_EDGE}
        if char in anchors:
            self.at += 1
            self.assertion(anchors[char], start)
        elif char == "k" or (char in "123456789" and char):
            raise _unsupported(start, f"{_BACKREFERENCE}, {_STREAM}")
        else:
            self.add(e.Chars(self.class_escape(start)))

    def class_escape(self, start: int) -> CharSet:
        """The set after an eaten backslash, in a class or not; single characters are sets of one."""
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char == "":
            raise _invalid(start, "pattern ends in a backslash")
        if char in _CLASSES:
            chars = self.cased(_CLASSES[char.lower()])
            return chars if char.islower() else ~chars
        if char in "pP":
            return self.property(char, start)
        return self.cased(CharSet.of((code := self.code_point(char, start), code)))

    def property(self, char: str, start: int) -> CharSet:
        if not self.take("{"):
            raise _invalid(start, f"'\\{char}' needs a property, as in '\\{char}{{L}}'")
        name = self.until("}", start, f"'\\{char}{{'")
        chars = property_set(name.strip())
        if chars is None:
            raise _unsupported(start, f"the Unicode property {name[:40]!r}, whose members are not known exactly here")
        return self.cased(~chars if char == "P" else chars)

    def code_point(self, char: str, start: int) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_LENGTHS:
            return self.hexadecimal(char, start)
        if char == "0":
            if self.text[self.at : self.at + 1] in tuple(string.digits):
                raise _invalid(start, "octal escape; write '\\xHH'")
            return 0
        if char == "c":
            letter = self.text[self.at : self.at + 1]
            if letter not in tuple(string.ascii_letters):
                raise _invalid(start, "'\\c' needs a letter")
            self.at += 1
            return ord(letter) % 32
        if char in string.ascii_letters + string.digits:
            raise _invalid(start, f"unknown escape '\\{char}'")
        return ord(char)

    def hexadecimal(self, char: str, start: int) -> int:
        if char == "u" and self.take("{"):
            return self.hex_number(self.until("}", start, "'\\u{'"), start)
        count = _HEX_LENGTHS[char]
        digits = self.text[self.at : self.at + count]
        self.at += count
        code = self.hex_number(digits if len(digits) == count else "", start)
        if char == "u" and 0xD800 <= code < 0xDC00 and self.peek("\\u"):
            low = self.text[self.at + 2 : self.at + 6]
            if len(low) == 4 and low[0] in "dD" and low[1] in "cdefCDEF" and all(c in string.hexdigits for c in low):
                self.at += 6
                return 0x10000 + ((code - 0xD800) << 10) + (int(low, 16) - 0xDC00)
        return code

    def hex_number(self, digits: str, start: int) -> int:
        if not digits or not all(c in string.hexdigits for c in digits) or int(digits[-9:], 16) > 0x10FFFF:
            raise _invalid(start, "bad hexadecimal escape")
        if len(digits) > 9 and digits[:-9].strip("0"):
            raise _invalid(start, "bad hexadecimal escape")
        return int(digits[-9:], 16)

    # classes --------------------------------------------------------------------------------------------------------

    def char_class(self, start: int) -> CharSet:
        """A class after its eaten '['."""
        negated, spans = self.take("^"), list[tuple[int, int]]()
        if self.peek("]"):
            self.empty_class = start
        while not self.take("]"):
            low, single = self.class_item(start)
            if not (self.peek("-") and not self.peek("-]")):
                spans += low.ranges
                continue
            dash = self.at
            self.at += 1
            high, also_single = self.class_item(start)
            if single is None or also_single is None:  # [\w-.]: three members, as web browsers read it
                spans += [*low.ranges, *high.ranges, (ord("-"), ord("-"))]
            elif single > also_single:
                raise _invalid(dash, "range out of order in a class")
            else:
                spans.append((single, also_single))
        chars = self.cased(CharSet.of(*spans))
        return ~chars if negated else chars

    def class_item(self, start: int) -> tuple[CharSet, int | None]:
        """A member of a class: its set, and its code point if it is a single character."""
        at, char = self.at, self.text[self.at : self.at + 1]
        if char == "":
            raise _invalid(start, "unclosed '['")
        self.at += 1
        if char == "[" and self.text[self.at : self.at + 1] in (":", ".", "=") and self.posix_end(at):
            raise _unsupported(at, "a POSIX class, which this dialect does not have; write '\\p{...}'")
        if char != "\\":
            return CharSet.chars(char), ord(char)
        kind = self.text[self.at : self.at + 1]
        if kind and kind in "dDwWsSpP":
            return self.class_escape(at), None
        if kind == "b":
            self.at += 1
            return CharSet.of((8, 8)), 8
        self.at += 1
        if kind == "":
            raise _invalid(start, "unclosed '['")
        code = self.code_point(kind, at)
        return CharSet.of((code, code)), code

    def posix_end(self, at: int) -> bool:
        """Does `[:name:]` stand at `at`?"""
        sign = self.text[at + 1]
        end = self.text.find(sign + "]", at + 2, at + 24)
        return end > at + 2 and self.text[at + 2 : end].strip("^").isalpha()
