"""Kimi K3: text and calls each in an element of their own; arguments say their type.

    <|open|>response<|sep|>Let me look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"
    <|sep|><|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|><|close|>call<|sep|>
    <|close|>tools<|sep|>

(in one line). Arguments may also be one JSON object, in an element `json`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts, Pattern, alone
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .markup import Kinds, Markup, parser
from .typed import STRING

TEMPLATE_MARKS = ("<|open|>", "<|close|>", "<|sep|>")


def _open(element: str) -> str:
    return f"<|open|>{element}<|sep|>"


def _close(element: str) -> str:
    return f"<|close|>{element}<|sep|>"


def typing(attributes: str, admitted: Kinds) -> Kinds:
    """What the model says, as far as the schema admits it."""
    if 'type="string"' in attributes:
        return admitted & STRING or admitted
    return (admitted - STRING or admitted) if 'type="' in attributes else admitted


def unescaped(key: str) -> str:
    return key.replace("&quot;", '"').replace("&amp;", "&")


MARKUP = Markup(
    wrap=(_open("tools"),),
    unwrap=(_close("tools"),),
    call='<|open|>call tool="',
    named='"',
    opened="<|sep|>",
    key='<|open|>argument key="',
    keyed='"',
    value="<|sep|>",
    value_end=_close("argument"),
    call_end=_close("call"),
    json=_open('json type="object"'),
    json_end=_close("json"),
    typing=typing,
    unescaped=unescaped,
)
AROUND_TEXT = (_open("response"), _close("response"), _close("think"), _close("message"), "<|end_of_msg|>")
_calls = parser(MARKUP)


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == _open("response"):
        answer.message()
    elif opener in AROUND_TEXT:
        return
    elif opener == _open("think"):
        yield from reader.until((_close("think"),), answer.reasoning)
        answer.thought()
    elif tools:
        yield from _calls(opener, reader, answer, tools)
    else:
        answer.text(opener)


ENVELOPE = Envelope(
    opener=_open("tools"),
    before_name='<|open|>call tool="',
    after_name=('" index="', Pattern("[1-9][0-9]{0,2}"), '"<|sep|>'),
    after=_close("call"),
    closer=_close("tools"),
    parameters=ParameterTexts(
        '<|open|>argument key="',
        '" type="string"<|sep|>',
        _close("argument"),
        key=r'[^\s<>="&]+',
        after_key_json=('" type="', Pattern("number|boolean|null|object|array"), '"<|sep|>'),
    ),
)
FORMAT = Format(
    "kimi-k3",
    (*MARKUP.openers, *AROUND_TEXT, _open("think")),
    parse,
    ("<|open|>", "<|close|>", "<|sep|>", *MARKUP.closers),
    (ENVELOPE, alone(ENVELOPE)),
    always=True,
)
