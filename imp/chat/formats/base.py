"""What a format is, and the program that reads an answer with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...constrain.framing import Frame
from ...constrain.tools import Envelope
from ...text.thinking import LATE, SPACE
from ...types import Headers
from ..answer import Answer
from ..reader import Reader, Reading, Steps


@dataclass(frozen=True, slots=True)
class Thinking:
    """What stands around reasoning in the output.

    skipped: ends of a prompt that leave no room for any; (): the closing marker.
    around: texts the model puts around its answer behind reasoning, which belong to neither.
    frames: what stands around an answer; a template's is the first of which it has the opener, or else the last.
    headers, turn, again: of outputs that are several messages; see types.Headers and types.Reasoning.
    """

    open: str
    close: str
    skipped: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    headers: Headers | None = None
    turn: str = ""
    again: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. parameters: its JSON Schema, {} where none was given."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Tools = Mapping[str, Tool]  # by name
ParseCalls = Callable[[str, Reader, Answer, Tools], Steps]


@dataclass(frozen=True, slots=True)
class Format:
    """How a family of models writes calls.

    openers: texts that begin calls wherever they stand.
    parse(opener, reader, answer, tools): reads the calls behind an opener, their closing markers included. Where what
    follows is no call it raises NotACall, and what it read since the last complete call is text; where the output ends
    inside a call it returns.
    start: as `parse`, with the opener "", for calls that an answer may begin with; None: calls always have a marker.
    closers: further texts of the format that may be control tokens, and must be seen by `parse`.
    envelopes: how calls are written when they are enforced, the model's own way first; what they write, `parse` reads.
    always: the model writes markers around text too, which are to be read where there are no tools as well.
    frame, headers: what it puts around an answer in words, where its reasoning (Thinking) does not tell.
    """

    name: str
    openers: tuple[str, ...]
    parse: ParseCalls
    closers: tuple[str, ...] = ()
    envelopes: tuple[Envelope, ...] = ()
    start: ParseCalls | None = None
    always: bool = False
    frame: Frame | None = None
    headers: Headers | None = None


class NotACall(Exception):
    """What follows an opener is no call: it is text."""


def program(
    format: Format | None,
    thinking: Thinking | None,
    started: bool,
    answer: Answer,
    tools: Tools,
    splits: bool = True,
    late: bool = True,
) -> Callable[[Reader], Steps]:
    """The parser of an answer: reasoning first, where there is any, then text with calls in it.

    started: the prompt ends inside the reasoning.  splits: reasoning is no text; else it is, its markers too, also the
    one that the prompt has.  late: where the model closes at once what the prompt has opened, it may think all the same
    (types.Reasoning)."""
    resumes = started and late and thinking is not None and thinking.again is None

    def steps(reader: Reader) -> Steps:
        read = format if format is not None and (tools or format.always) else None
        openers = read.openers if read is not None else ()
        answer.on_called, answer.splits = reader.keep, splits
        again: tuple[str, ...] = ()  # closing markers that may come a second time
        around: tuple[str, ...] = ()
        if thinking is not None:
            thought = yield from _reasoning(reader, answer, thinking, started, splits)
            if thought is Thought.EMPTY and resumes and (yield from reader.soon(thinking.close, LATE)):
                yield from reader.until((thinking.close,), answer.reasoning)
                answer.thought()
                thought = Thought.SOME
            if splits:
                again = (thinking.close,) if thought is Thought.EMPTY else ()
                around = () if thought is Thought.NONE else thinking.around
        if read is not None and read.start is not None:
            yield from _calls(read.start, "", reader, answer, tools)
        while marker := (yield from reader.until(openers + again + around, answer.text)):
            if marker in again:
                again = ()
            elif marker in around:
                answer.edge()
            else:
                assert read is not None
                yield from _calls(read.parse, marker, reader, answer, tools)
        answer.finish()

    return steps


class Thought(Enum):
    """What there was of reasoning."""

    NONE = 0
    EMPTY = 1  # markers with nothing between them
    SOME = 2


def _reasoning(reader: Reader, answer: Answer, thinking: Thinking, started: bool, splits: bool) -> Reading[Thought]:
    """Reasoning, if the output begins with it or the prompt opened it. An opening marker that is written although the
    prompt has one is swallowed. Behind an empty one the model may think all the same, and close it again."""
    space = yield from reader.space()
    if not (yield from reader.match(thinking.open)) and not started:
        answer.text(space)
        return Thought.NONE
    if not splits:
        answer.text(thinking.open)
        answer.text((yield from reader.until((thinking.close,), answer.text)))
        return Thought.SOME
    empty = True

    def emit(text: str) -> None:
        nonlocal empty
        empty = empty and not text.strip(SPACE)
        answer.reasoning(text)

    closed = yield from reader.until((thinking.close,), emit)
    if closed:
        answer.thought()
    return Thought.EMPTY if closed and empty else Thought.SOME


def _calls(parse: ParseCalls, opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    reader.keep(opener)
    try:
        yield from parse(opener, reader, answer, tools)
    except NotACall:
        if not answer.in_call:
            answer.text(reader.kept())
            return
    if answer.in_call:
        answer.cut_off(reader.kept())
    reader.kept()
