"""Muse Glimmer: messages, each with its recipient; what is said to `self` is reasoning, and calls stand in a block.

    to=self<|message|>The user asks ...<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>
    <atem:invoke name="weather">
    <atem:parameter name="city">Oslo</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts, alone
from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import Format, NotACall, Tools
from .markup import Markup, parser

TEMPLATE_MARKS = ("<atem:function_calls>", "<atem:invoke name=")

MARKUP = Markup(
    wrap=("<atem:function_calls>",),
    unwrap=("</atem:function_calls>",),
    call='<atem:invoke name="',
    named='">',
    key='<atem:parameter name="',
    keyed='">',
    value_end="</atem:parameter>",
    call_end="</atem:invoke>",
)
BEGIN, BODY, ENDS = "<|start|>", "<|message|>", ("<|eom|>", "<|eot|>")
_calls = parser(MARKUP)


def start(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    """The output goes on with a header that the prompt has begun."""
    yield from reader.space()
    if not (yield from reader.comes("to=")) or not (yield from _message(reader, answer)):
        raise NotACall


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == BEGIN:
        yield from _message(reader, answer)
    elif opener in MARKUP.openers:
        if tools:
            yield from _calls(opener, reader, answer, tools)
        else:
            answer.text(opener)


def _message(reader: Reader, answer: Answer) -> Reading[bool]:
    """A header, and reasoning behind it; text and calls are read by the answer's own program. False: it is cut off."""
    header: list[str] = []
    if not (yield from reader.until((BODY,), header.append)):
        return False
    if "".join(header).endswith("to=self"):
        yield from reader.before((*ENDS, BEGIN), answer.reasoning)
        answer.thought()
    else:
        answer.message()
    return True


ENVELOPE = Envelope(
    opener="<atem:function_calls>\n",
    before_name='<atem:invoke name="',
    after_name='">\n',
    after="</atem:invoke>\n",
    closer="</atem:function_calls>",
    trigger="<atem:function_calls>",
    parameters=ParameterTexts('<atem:parameter name="', '">', "</atem:parameter>", "\n", key=r'[^\s<>="]+'),
)
FORMAT = Format(
    "muse",
    (*MARKUP.openers, BEGIN, BODY, *ENDS),
    parse,
    MARKUP.closers,
    (ENVELOPE, alone(ENVELOPE)),
    start=start,
    always=True,
)
