"""Text that arrives in pieces, read by a program that is written as if all of it were there.

A parser is a generator over a Reader: where it needs more text than has come, it yields, and `Feed.push` goes on with
it. Whatever it has handed to `emit` by then is out; what could be the beginning of a marker is not. So the result does
not depend on how the text was cut, as long as a parser looks at it through these methods only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

type Reading[T] = Generator[None, None, T]  # gives a T, when it has read it
type Steps = Reading[None]
Emit = Callable[[str], None]

_SPACE = " \t\r\n"
_IN_STRING = re.compile(r'[^"\\]+')
_PLAIN = re.compile(r'[^"{}\[\]]+')
_NUMBER_OR_WORD = re.compile(r"[-+.0-9A-Za-z]+")


class Reader:
    """A buffer with an end that may not be here yet. `at_end()` and what follows from it wait for the real end."""

    def __init__(self) -> None:
        self.text = ""  # arrived and not consumed
        self.closed = False
        self._kept: list[str] | None = None

    def keep(self, before: str = "") -> None:
        """From here on, remember what is consumed, and that `before` came before it."""
        self._kept = [before]

    def kept(self) -> str:
        """What was consumed since `keep()`; forgets it."""
        text, self._kept = "".join(self._kept or ()), None
        return text

    def more(self) -> Reading[bool]:
        """Wait for more text; False: there is none to come."""
        if self.closed:
            return False
        before = len(self.text)
        while not self.closed and len(self.text) == before:
            yield
        return len(self.text) > before

    def take(self, count: int) -> str:
        taken, self.text = self.text[:count], self.text[count:]
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def need(self, count: int) -> Reading[bool]:
        """Wait for `count` characters; False: they never come."""
        while len(self.text) < count:
            if not (yield from self.more()):
                return False
        return True

    def at_end(self) -> Reading[bool]:
        """Is nothing left, and nothing to come?"""
        return not (yield from self.need(1))

    def comes(self, marker: str) -> Reading[bool]:
        """Is this next? Consumes nothing. Waits only as long as it still may be."""
        while len(self.text) < len(marker):
            if not marker.startswith(self.text) or not (yield from self.more()):
                return False
        return self.text.startswith(marker)

    def match(self, marker: str) -> Reading[bool]:
        """Consume this if it is next."""
        if not (yield from self.comes(marker)):
            return False
        self.take(len(marker))
        return True

    def first_of(self, markers: tuple[str, ...]) -> Reading[str]:
        """Which of these is next (the longest that fits), consumed; "": none of them."""
        while True:
            waiting = any(len(self.text) < len(m) and m.startswith(self.text) for m in markers)
            if not waiting or not (yield from self.more()):
                break
        found = max((m for m in markers if self.text.startswith(m)), key=len, default="")
        self.take(len(found))
        return found

    def cut(self, markers: tuple[str, ...]) -> Reading[bool]:
        """Does the text end here, in the middle of one of these or before it? Consumes nothing."""
        while any(len(self.text) < len(m) and m.startswith(self.text) for m in markers):
            if not (yield from self.more()):
                return True
        return False

    def space(self) -> Reading[str]:
        """Consume white space; what it was."""
        taken = ""
        while True:
            rest = self.text.lstrip(_SPACE)
            taken += self.take(len(self.text) - len(rest))
            if rest or not (yield from self.more()):
                return taken

    def until(self, markers: tuple[str, ...], emit: Emit) -> Reading[str]:
        """Hand on text up to the first of `markers`, which is consumed and returned; "": the text ended without one.

        Of two that begin at the same place the longer one counts."""
        return self.take(len((yield from self.before(markers, emit))))

    def soon(self, marker: str, limit: int) -> Reading[bool]:
        """Does this come within so many characters? Consumes nothing. Waits until that is certain."""
        while True:
            if 0 <= self.text.find(marker) <= limit:
                return True
            if len(self.text) >= limit + len(marker) or not (yield from self.more()):
                return False

    def before(self, markers: tuple[str, ...], emit: Emit) -> Reading[str]:
        """As `until`, but the marker is still to come."""
        while True:
            at, found = self._find(markers)
            if found and (self.closed or not self._may_grow(at, found, markers)):
                self._emit(at, emit)
                return found
            self._emit(at if found else len(self.text) - held_back(self.text, markers), emit)
            if not (yield from self.more()):
                at, found = self._find(markers)
                self._emit(at if found else len(self.text), emit)
                return found

    def _find(self, markers: tuple[str, ...]) -> tuple[int, str]:
        best, found = len(self.text), ""
        for marker in markers:
            at = self.text.find(marker)
            if at >= 0 and (at < best or (at == best and len(marker) > len(found))):
                best, found = at, marker
        return best, found

    def _may_grow(self, at: int, found: str, markers: tuple[str, ...]) -> bool:
        """Could the marker found here still turn out to be a longer one, or one that began before it?"""
        rest = self.text[at:]
        if any(len(m) > len(rest) and m.startswith(rest) for m in markers):
            return True
        return any(
            len(m) > len(self.text) - start and m.startswith(self.text[start:])
            for m in markers
            for start in range(max(0, len(self.text) - len(m) + 1), at)
        )

    def _emit(self, count: int, emit: Emit) -> None:
        if count:
            emit(self.take(count))

    def word(self, stops: str, limit: int = 256) -> Reading[str]:
        """Consume characters up to one of `stops`, white space, or `limit`."""
        taken = ""
        while len(taken) < limit and (yield from self.need(1)):
            if self.text[0] in stops or self.text[0] in _SPACE:
                break
            taken += self.take(1)
        return taken

    def characters(self, allowed: str, limit: int) -> Reading[str]:
        """Consume up to `limit` of these characters."""
        taken = ""
        while len(taken) < limit and (yield from self.need(1)) and self.text[0] in allowed:
            taken += self.take(1)
        return taken

    # -- JSON ---------------------------------------------------------------------------------------------

    def json_value(self, emit: Emit) -> Reading[bool]:
        """Hand on one JSON value as it is written, piece by piece; False: the text ended, or no value begins here.

        Only brackets, strings and the words between them are told apart: what else is wrong, is handed on."""
        if not (yield from self.need(1)):
            return False
        if self.text[0] not in '{["':
            return (yield from self._json_scalar(emit))
        depth = 0
        while (yield from self.need(1)):
            char = self.text[0]
            if char == '"':
                if not (yield from self._json_string(emit)):
                    return False
            elif char in "{[":
                depth += 1
                emit(self.take(1))
            elif char in "}]":
                depth -= 1
                emit(self.take(1))
            else:
                plain = _PLAIN.match(self.text)
                assert plain
                emit(self.take(plain.end()))
            if not depth:
                return True
        return False

    def _json_scalar(self, emit: Emit) -> Reading[bool]:
        found = False
        while (yield from self.need(1)):
            match = _NUMBER_OR_WORD.match(self.text)
            if match is None:
                return found
            found = True
            emit(self.take(match.end()))
        return found

    def _json_string(self, emit: Emit) -> Reading[bool]:
        emit(self.take(1))
        while (yield from self.need(1)):
            char = self.text[0]
            if char == '"':
                emit(self.take(1))
                return True
            if char == "\\":
                if not (yield from self.need(2)):
                    emit(self.take(1))
                    return False
                emit(self.take(2))
            else:
                plain = _IN_STRING.match(self.text)
                assert plain
                emit(self.take(plain.end()))
        return False


def held_back(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        tail = text[-count:]
        if any(len(marker) > count and marker.startswith(tail) for marker in markers):
            return count
    return 0


class Feed:
    """Runs a parser over text that arrives in pieces."""

    def __init__(self, parser: Callable[[Reader], Steps]) -> None:
        self.reader = Reader()
        self._steps: Steps | None = parser(self.reader)
        self._go_on()

    def push(self, text: str) -> None:
        if text:
            self.reader.text += text
            self._go_on()

    def close(self) -> None:
        """No more text comes."""
        self.reader.closed = True
        self._go_on()

    def _go_on(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
