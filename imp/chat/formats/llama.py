"""Llama 3.1, 3.2 and 3.3: an object as the answer, or behind a marker, where also a built-in tool may be called.

    {"name": "weather", "parameters": {"city": "Oslo"}}
    <|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}
    <|python_tag|>brave_search.call(query="weather in Oslo")
    <function=weather>{"city": "Oslo"}</function>

A template of these teaches the first, with the key `"parameters"`, in an environment called ipython. Code behind the
marker is a call of the tool `python`, where there is one.
"""

from __future__ import annotations

from dataclasses import replace

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall, Tools
from .json_calls import KEYS, call_list, close_text, named_call, text_argument
from .python_calls import python_call

TEMPLATE_MARKS: tuple[str, ...] = ("Environment: ipython", '{"name": function name, "parameters":')

TAG, FUNCTION, FUNCTION_CLOSE = "<|python_tag|>", "<function=", "</function>"
CODE_TOOLS = ("python", "ipython", "code_interpreter")


def start(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from call_list(reader, answer, KEYS, tools, ";,")


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if opener == FUNCTION:
        yield from _function(reader, answer)
        return
    yield from reader.space()
    if (yield from reader.comes("{")) or (yield from reader.comes("[{")):
        yield from call_list(reader, answer, separators=";,")
        return
    code_tool = next((name for name in CODE_TOOLS if name in tools), None)
    if code_tool is None:
        yield from python_call(reader, answer, tools, method="call")
    else:
        yield from code(reader, answer, tools, code_tool, (FUNCTION, TAG))


def code(reader: Reader, answer: Answer, tools: Tools, name: str, ends: tuple[str, ...]) -> Steps:
    """The call `name` whose only argument is the text up to the end, or in front of one of `ends`."""
    properties = tools[name].parameters.get("properties") if name in tools else None
    answer.call(name)
    key = next(iter(properties), "code") if isinstance(properties, dict) and len(properties) == 1 else "code"
    yield from reader.before(ends, text_argument(answer, key))
    close_text(answer)


def _function(reader: Reader, answer: Answer) -> Steps:
    name = yield from reader.word("<>{")
    if not (yield from reader.match(">")):
        raise NotACall
    yield from named_call(reader, answer, name, ends=(FUNCTION_CLOSE,))
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(FUNCTION_CLOSE)


OBJECT = Envelope(
    before_name='{"name": "',
    after_name='", "parameters": ',
    after="}",
    quoted_name=True,
    parallel=False,
    at_start=True,
    by_name=True,
)
OBJECTS = (
    OBJECT,
    *(
        replace(OBJECT, before_name=before)
        for before in ('{"name":"', '{"type": "function", "name": "', '{"type":"function","name":"', '{\n  "name": "')
    ),
    replace(OBJECT, before_name='{"type": "function", "function": {"name": "', after="}}"),
)
TAGGED = Envelope(
    before_name=TAG + '{"name": "',
    after_name='", "parameters": ',
    after="}",
    trigger=TAG,
    quoted_name=True,
    parallel=False,
)
FUNCTIONS = Envelope(before_name=FUNCTION, after_name=">", after=FUNCTION_CLOSE)
FORMAT = Format("llama", (TAG, FUNCTION), parse, (FUNCTION_CLOSE,), (*OBJECTS, TAGGED, FUNCTIONS), start=start)
