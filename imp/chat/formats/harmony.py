"""gpt-oss: messages in channels. What is said in `analysis` is reasoning; a message to a function is a call; all else,
preambles in `commentary` too, is text.

    <|channel|>analysis<|message|>The user asks ...<|end|><|start|>assistant<|channel|>commentary to=functions.weather
    <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

(in one line). The recipient may also stand before the channel.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import Format, NotACall, Tools
from .json_calls import arguments_value

TEMPLATE_MARKS = ("<|channel|>analysis<|message|>", "functions.")

BEGINS = ("<|start|>", "<|channel|>")
BODY = "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<>]+)")
_NO_FUNCTIONS = ("user", "assistant", "all", "self")
_REASONING = re.compile(r"(?:^|<\|channel\|>)\s*analysis\b")


def start(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    """The output goes on with a header that the prompt has begun, which may have a recipient before the channel."""
    yield from reader.space()
    if not (yield from reader.comes("to=")) or not (yield from _message(opener, reader, answer, tools)):
        raise NotACall


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener in BEGINS:
        yield from _message(opener, reader, answer, tools)


def _message(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Reading[bool]:
    """A header, and what follows unless it is text, which the answer's own program reads. False: the header is cut off,
    and says nothing."""
    pieces = [opener if opener == "<|channel|>" else ""]
    if not (yield from reader.until((BODY,), pieces.append)):
        return False
    header = "".join(pieces)
    recipient = _RECIPIENT.search(header)
    if tools and recipient and recipient[1] not in _NO_FUNCTIONS:
        yield from _call(recipient[1], reader, answer)
    elif _REASONING.search(header):
        yield from reader.before((*ENDS, *BEGINS), answer.reasoning)
        answer.thought()
    else:
        answer.message()
    return True


def _call(name: str, reader: Reader, answer: Answer) -> Steps:
    """The arguments, which may be missing; what is no object is text."""
    yield from reader.space()
    if (yield from reader.comes("{")):
        yield from arguments_value(reader, answer, name)
    elif (yield from reader.cut(ENDS)):
        answer.call(name)
        yield from reader.until((), list[str]().append)
    elif (yield from reader.first_of(ENDS)):
        answer.whole_call(name, {})
    else:
        answer.message()


TO_FUNCTION = "<|channel|>commentary to=functions."
CHANNELS = tuple(f"{channel}{BODY}" for channel in ("analysis", "commentary", "final"))
IN_CHANNEL = Envelope(
    before_name=TO_FUNCTION,
    after_name=f" <|constrain|>json{BODY}",
    after="",
    trigger="<|channel|>",
    others=CHANNELS,
    parallel=False,
)
TURN = replace(
    IN_CHANNEL,
    before_name="<|start|>assistant" + TO_FUNCTION,
    trigger="<|start|>",
    others=tuple(f"assistant<|channel|>{channel}" for channel in CHANNELS),
)
TO = Envelope(
    before_name="<|start|>assistant to=functions.",
    after_name=f"<|channel|>commentary <|constrain|>json{BODY}",
    after="",
    trigger="<|start|>",
    parallel=False,
)
TO_FIRST = replace(TO, before_name="to=functions.", trigger="to=", at_start=True)
FORMAT = Format(
    "harmony",
    (*BEGINS, BODY, *ENDS),
    parse,
    ("<|constrain|>",),
    (IN_CHANNEL, TURN, TO, TO_FIRST),
    start=start,
    always=True,
)
