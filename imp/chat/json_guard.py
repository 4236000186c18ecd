"""Arguments that are a JSON object whatever the model wrote: handed on as they come, and finished where they break."""

from __future__ import annotations

import re

_SPACE = frozenset(" \t\r\n")
_WORDS = ("true", "false", "null")
_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
# what a number may still become: its grammar with every tail optional
_NUMBER_PREFIX = re.compile(r"-?((0|[1-9][0-9]*)(\.([0-9]+([eE]([-+]?[0-9]*)?)?)?|[eE]([-+]?[0-9]*)?)?)?\Z")


class JsonGuard:
    """Takes one JSON object in pieces. `push` returns what may be passed on: all of it, until it stops being JSON.

    broken: a character came that no JSON object has there; it and everything after it were dropped.
    done: the object is complete; what follows it is dropped.
    """

    def __init__(self) -> None:
        self.broken = self.done = False
        self._stack: list[str] = []  # "{" and "["
        self._expect = "object"  # object value item key colon comma
        self._word = ""  # a number, or true, false, null, so far
        self._in_string = self._is_key = False
        self._escape = ""  # of a string, so far

    def push(self, text: str) -> str:
        at = 0
        while at < len(text) and not self.broken and not self.done:
            taken = self._take(text, at)
            if not taken:
                self.broken = True
                break
            at += taken
        return text[:at]

    def finish(self) -> str:
        """What is missing to a complete object, as little as possible."""
        if self.done:
            return ""
        out = []
        if self._in_string:
            out.append(self._rest_of_escape() + '"')
            self._after_string()
        elif self._word:
            out.append(self._rest_of_word())
            self._expect = "comma"
        if self._expect == "object":
            out.append("{}")
        elif self._expect == "colon":
            out.append(":null")
        elif self._expect == "value":
            out.append("null")
        elif self._expect in ("key", "item") and not self._opened:
            out.append('"":null' if self._stack[-1] == "{" else "null")
        out += ["}" if bracket == "{" else "]" for bracket in reversed(self._stack)]
        self._stack, self.done = [], True
        return "".join(out)

    _opened = False  # the bracket was opened just now, so it may close at once

    def _take(self, text: str, at: int) -> int:
        """Characters taken from `at`; 0: the one there is wrong."""
        char = text[at]
        if self._in_string:
            return self._take_in_string(text, at)
        if self._word:
            if char.isascii() and (char.isalnum() or char in "+-."):
                if not _may_be_word(self._word + char):
                    return 0
                self._word += char
                return 1
            if not self._word_is_whole():
                return 0
            self._word, self._expect = "", "comma"
        if char in _SPACE:
            return 1
        return int(self._take_token(char))

    def _take_token(self, char: str) -> bool:
        expect, opened, self._opened = self._expect, self._opened, False
        if char == "{" and expect in ("object", "value", "item"):
            self._stack.append("{")
            self._expect, self._opened = "key", True
        elif char == "[" and expect in ("value", "item"):
            self._stack.append("[")
            self._expect, self._opened = "item", True
        elif char in "}]" and self._stack and self._stack[-1] == "{["["}]".index(char)]:
            if expect != "comma" and not opened:
                self._opened = opened
                return False
            self._stack.pop()
            self._expect, self.done = "comma", not self._stack
        elif char == '"' and expect in ("key", "value", "item"):
            self._in_string, self._is_key = True, expect == "key"
        elif char == ":" and expect == "colon":
            self._expect = "value"
        elif char == "," and expect == "comma" and self._stack:
            self._expect = "key" if self._stack[-1] == "{" else "item"
        elif expect in ("value", "item") and (char in "-0123456789tfn"):
            self._word = char
        else:
            self._opened = opened
            return False
        return True

    def _take_in_string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escape:
            digits = self._escape[1:2] == "u"
            fits = char in "0123456789abcdefABCDEF" if digits else char in '"\\/bfnrtu'
            if not fits:
                return 0
            self._escape += char
            if (digits and len(self._escape) == 6) or (not digits and char != "u"):
                self._escape = ""
            return 1
        if char == '"':
            self._after_string()
            return 1
        if char == "\\":
            self._escape = "\\"
            return 1
        run = _RUN.match(text, at)
        return run.end() - at if run else 0

    def _after_string(self) -> None:
        self._in_string, self._escape = False, ""
        self._expect = "colon" if self._is_key else "comma"

    def _rest_of_escape(self) -> str:
        if self._escape == "\\":
            return "\\"
        return "0" * (6 - len(self._escape)) if self._escape else ""

    def _word_is_whole(self) -> bool:
        return self._word in _WORDS or _NUMBER.match(self._word) is not None

    def _rest_of_word(self) -> str:
        if self._word_is_whole():
            return ""
        return next((w[len(self._word) :] for w in _WORDS if w.startswith(self._word)), "0")


def _may_be_word(text: str) -> bool:
    return any(word.startswith(text) for word in _WORDS) or _NUMBER_PREFIX.match(text) is not None
