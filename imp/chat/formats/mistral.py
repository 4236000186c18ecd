"""Mistral up to the third tokenizer (7B v0.3, Nemo, Small 2409, Large 2407): an array behind a marker.

    [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "a1B2c3D4e"}]

A template of these puts the array's bracket behind the marker. What later tokenizers write is read as well
(`mistral_args`). The id comes behind the arguments, which have gone out by then: calls get ids of our own.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, Pattern
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .json_calls import call_list, named_call

TEMPLATE_MARKS: tuple[str, ...] = ("[TOOL_CALLS][",)

OPEN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID = "[a-zA-Z0-9]{9}"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from reader.space()
    if (yield from reader.comes("[")) or (yield from reader.comes("{")):
        yield from call_list(reader, answer)
        return
    name = yield from reader.word("[{")
    id = ""
    if (yield from reader.match(CALL_ID)):
        id = yield from reader.word("[{")
    yield from reader.match(ARGUMENTS)
    yield from named_call(reader, answer, name, id)


ENVELOPE = Envelope(
    opener=OPEN + "[",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after=(', "id": "', Pattern(ID), '"}'),
    separator=", ",
    closer="]",
    trigger=OPEN,
    quoted_name=True,
)
FORMAT = Format("mistral", (OPEN,), parse, (ARGUMENTS, CALL_ID), (ENVELOPE,))
