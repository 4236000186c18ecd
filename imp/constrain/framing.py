"""What a model writes around an answer, and is none of it: reasoning before it, headers, tags. Texts are data here.

The whole output is `[reasoning] opener ANSWER [closer]`, where calls may stand in the place of the framed answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .charset import Encoding
from .free import CONTROL, free_text, spelled
from .language import Language
from .nfa import Nfa
from .tools import Pattern, Text, Vocabulary


@dataclass(frozen=True, slots=True)
class Frame:
    """opener: in front of an answer in words.  closer: may stand behind it, where the output does not end at once.
    calls: in front of calls that must come.  left: the same, where the prompt has begun an answer.
    thought: all of it stands only around an answer that reasoning came before.
    begun: the prompt ends with the opener.
    lines: the prompt ends with the mark that closes reasoning, so that line ends may come first."""

    opener: Text = ""
    closer: Text = ""
    calls: Text = ""
    left: Text = ""
    thought: bool = False
    begun: bool = False
    lines: bool = False


NO_FRAME = Frame()


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Reasoning in front of an answer, its markers `spelled`.  open: b"" where the prompt has begun it, else it may be
    left out.  turn: what begins the message behind it."""

    open: bytes
    close: bytes
    turn: bytes = b""


@dataclass(frozen=True, slots=True)
class Ways:
    """First nodes of what an output may be: an answer in words, calls; None: not that.
    free: the calls are text in which only calls have a form, so that nothing is asked of the output."""

    answer: int | None = None
    calls: int | None = None
    free: bool = False


def outputs(nfa: Nfa, ways: Ways, frame: Frame, thoughts: Thoughts | None, vocabulary: Vocabulary) -> int:
    """The first node of the whole output."""
    first = _framed(nfa, ways, _alone(frame), vocabulary)
    alone = _either(nfa, *(_next(nfa, b"", each) if frame.lines and not ways.free else each for each in first))
    if thoughts is None:
        return alone
    turn = b"" if ways.free else thoughts.turn
    behind = _either(nfa, *(_next(nfa, turn, each) for each in _framed(nfa, ways, frame, vocabulary)))
    reasoning = free_text(nfa, {thoughts.close: behind}, vocabulary.free, ends=ways.free)
    if not thoughts.open:
        return reasoning
    opened = nfa.literal(thoughts.open, reasoning)
    line = nfa.byte([(0x0A, 0x0A, opened)])
    return nfa.eps(alone, opened, nfa.byte([(0x20, 0x20, opened), (0x0A, 0x0A, nfa.eps(opened, line))]))


def _alone(frame: Frame) -> Frame:
    """What stands around an answer that the output begins with."""
    if frame.thought:
        return NO_FRAME
    return replace(frame, opener="", calls=frame.left) if frame.begun else frame


def _framed(nfa: Nfa, ways: Ways, frame: Frame, vocabulary: Vocabulary) -> Iterator[int]:
    if ways.answer is not None:
        answer = ways.answer
        if frame.closer:
            answer = nfa.call(answer, nfa.eps(nfa.ret, _written(nfa, frame.closer, nfa.ret, vocabulary)))
        yield _written(nfa, frame.opener, answer, vocabulary)
    if ways.calls is not None:
        yield ways.calls if ways.free else _written(nfa, frame.calls, ways.calls, vocabulary)


def _written(nfa: Nfa, text: Text, after: int, vocabulary: Vocabulary) -> int:
    for piece in reversed((text,) if isinstance(text, str) else text):
        if isinstance(piece, Pattern):
            after = Language.pattern(piece.regex, search=False).emit(nfa, after, Encoding.RAW)
        else:
            after = nfa.literal(spelled(piece, vocabulary.spellings), after)
    return after


def _next(nfa: Nfa, turn: bytes, start: int) -> int:
    """What begins at `start`, behind reasoning: perhaps with a line end or two before it, which no model writes in
    front of a control token."""
    start = nfa.literal(turn, start)
    if [first for first, _, _ in nfa.nodes[start].edges] == [CONTROL]:
        return start
    line = nfa.byte([(0x0A, 0x0A, start)])
    return nfa.eps(start, nfa.byte([(0x0A, 0x0A, nfa.eps(start, line))]))


def _either(nfa: Nfa, *starts: int) -> int:
    return starts[0] if len(starts) == 1 else nfa.eps(*starts)
