"""What of a sequence's text is the answer, and what reasoning or a header between messages. Counts tokens of reasoning.

Text comes token by token. Where it cannot be told yet what a text is, it is held:

- an output that the prompt has not opened reasoning for, until it shows whether it does so itself;
- the answer behind reasoning that was closed with nothing in it, until it is clear that the marker does not come again
  soon: models that close at once and think all the same are understood (LATE);
- the beginning of a header, or of what begins an answer behind reasoning.
"""

from __future__ import annotations

from enum import Enum

from ..types import Headers, Reasoning

LATE = 200  # characters behind an empty block in which a second closing marker makes them its reasoning
SPACE = " \t\r\n"
Pieces = list[tuple[str, bool]]  # text, and whether it is the answer's


class State(Enum):
    BEGINNING = 0  # nothing but white space, or the beginning of a marker
    REASONING = 1
    DOUBT = 2  # behind reasoning with nothing in it
    OPENER = 3  # behind reasoning, in front of what may begin the answer
    ANSWER = 4
    HEADER = 5


class Outline:
    """Follows one sequence. `tokens`: those of reasoning so far, from the one that begins its opening marker, or the
    first one, to the one that ends its closing marker."""

    def __init__(self, reasoning: Reasoning | None, headers: Headers | None = None) -> None:
        self.tokens = 0
        self._rule, self._headers = reasoning, headers
        started = reasoning is not None and reasoning.started
        self._state = State.REASONING if started else State.BEGINNING
        if reasoning is None:
            self._state = State.HEADER if headers is not None and headers.begun else State.ANSWER
        self._doubtful = 0  # tokens that may still turn out to be reasoning
        self._held = ""  # text that cannot be told yet; in REASONING and HEADER what a marker may go on from
        self._inside: str | None = "" if started and reasoning is not None and reasoning.late else None
        self._counted = False  # the latest token, as reasoning

    @property
    def follows(self) -> bool:
        """What comes next may be something else than the answer."""
        return self._state is not State.ANSWER or self._headers is not None

    @property
    def thinks(self) -> bool:
        """The text ends inside the reasoning."""
        return self._state is State.REASONING

    def token(self) -> None:
        """One more token, before its text is pushed."""
        self._counted = self._state is State.REASONING
        if self._counted:
            self.tokens += 1
        elif self._state is not State.ANSWER or self._held:
            self._doubtful += 1

    def push(self, text: str) -> Pieces:
        """What can be told with this text, in its order."""
        pieces: Pieces = []
        rest: str | None = text
        while rest is not None:
            rest = _STEPS[self._state](self, rest, pieces)
        return [(text, answer) for text, answer in pieces if text]

    def flush(self) -> str:
        """No more text comes: what was held of the answer."""
        if self._state in (State.REASONING, State.HEADER):
            return ""
        held, self._held = self._held, ""
        self._state, self._doubtful = State.ANSWER, 0
        return held

    # -- one state each: takes the text, appends what it is sure of, returns what is left for another state

    def _beginning(self, text: str, pieces: Pieces) -> str | None:
        rule, headers = self._rule, self._headers
        assert rule is not None
        known, self._held = self._held + text, ""
        begun = known.lstrip(SPACE)
        if begun.startswith(rule.open):
            size = len(known) - len(begun) + len(rule.open)
            self._state = State.REASONING
            self._count()
            pieces.append((known[:size], False))
            return known[size:]
        begins = (rule.open, headers.first, *headers.begins) if headers else (rule.open,)
        if any(len(begun) < len(each) and each.startswith(begun) for each in begins):
            self._held = known
            return None
        if begun.startswith(tuple(filter(None, begins[1:]))):
            self._state = State.HEADER
        else:
            self._state, self._doubtful = State.ANSWER, 0
        return known

    def _reasoning(self, text: str, pieces: Pieces) -> str | None:
        assert self._rule is not None
        known, close = self._held + text, self._rule.close
        at = known.find(close)
        if at < 0:
            self._held = known[len(known) - _begun(known, close) :]
            self._look_inside(known[: len(known) - len(self._held)])
            pieces.append((text, False))
            return None
        self._look_inside(known[:at])
        rest = known[at + len(close) :]
        pieces.append((text[: len(text) - len(rest)], False))
        empty = self._inside is not None and self._inside.strip(SPACE) in ("", self._rule.open)
        self._held, self._inside = "", None
        self._state = State.DOUBT if empty else State.OPENER if self._rule.opener else State.ANSWER
        return rest

    def _look_inside(self, text: str) -> None:
        """Is there nothing in it but perhaps the opening marker, once more? `_inside`: so far; None: there is."""
        if self._inside is not None:
            assert self._rule is not None
            self._inside += text
            if not self._rule.open.startswith(self._inside.strip(SPACE)):
                self._inside = None

    def _doubt(self, text: str, pieces: Pieces) -> str | None:
        assert self._rule is not None
        known, close = self._held + text, self._rule.close
        at = known.find(close)
        if 0 <= at <= LATE:
            self._count()
            pieces.append((known[: at + len(close)], False))
            self._state, self._held = State.ANSWER, ""
            return known[at + len(close) :]
        if len(known) < LATE + len(close):
            self._held = known
            return None
        self._state, self._held, self._doubtful = State.ANSWER, "", 0
        return known

    def _opener(self, text: str, pieces: Pieces) -> str | None:
        assert self._rule is not None
        known, self._held = self._held + text, ""
        begun, opener = known.lstrip(SPACE), self._rule.opener
        if len(begun) < len(opener) and opener.startswith(begun):
            self._held = known
            return None
        size = len(known) - len(begun) + len(opener) if begun.startswith(opener) else 0
        pieces.append((known[:size], False))
        self._state, self._doubtful = State.ANSWER, 0
        return known[size:]

    def _answer(self, text: str, pieces: Pieces) -> str | None:
        if self._headers is None:
            pieces.append((text, True))
            return None
        known, before = self._held + text, len(self._held)
        at = min((known.find(each) for each in self._headers.begins if each in known), default=-1)
        begins = at if at >= 0 else len(known) - max(_begun(known, each) for each in self._headers.begins)
        if begins >= before:
            self._doubtful = 0 if self._counted else 1
        pieces.append((known[:begins], True))
        self._held = known[begins:]
        if at < 0:
            return None
        self._state, self._held = State.HEADER, ""
        return known[begins:]

    def _header(self, text: str, pieces: Pieces) -> str | None:
        assert self._headers is not None
        known = self._held + text
        found = [known.find(end) + len(end) for end in self._headers.ends if end in known]
        if not found:
            self._held = known
            pieces.append((text, False))
            return None
        rest = known[min(found) :]
        pieces.append((text[: len(text) - len(rest)], False))
        self._held = ""
        if self._rule is not None and self._rule.again is not None and known[: min(found)].endswith(self._rule.open):
            self._count()
            self._state = State.REASONING
        else:
            self._state, self._doubtful = State.ANSWER, 0
        return rest

    def _count(self) -> None:
        self.tokens, self._doubtful = self.tokens + self._doubtful, 0
        self._counted = True


def _begun(text: str, marker: str) -> int:
    """Characters at the end of the text that the marker begins with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)


_STEPS = {
    State.BEGINNING: Outline._beginning,
    State.REASONING: Outline._reasoning,
    State.DOUBT: Outline._doubt,
    State.OPENER: Outline._opener,
    State.ANSWER: Outline._answer,
    State.HEADER: Outline._header,
}
