"""Command R and R+: a fenced array behind the word `Action:`.

    Action:
    ```json
    [
        {
            "tool_name": "weather",
            "parameters": {"city": "Oslo"}
        }
    ]```

A template of these tells the model to write `Action:`, with the tool `directly-answer` where it needs none.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, NotACall, Tools
from .json_calls import call_list

TEMPLATE_MARKS: tuple[str, ...] = ("Action:", "directly-answer")

OPEN, FENCE = "Action:", "```"
BEFORE = tuple(space + FENCE for space in ("\n", " ", "", " \n", "\n\n"))  # behind the word


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    if not (yield from reader.first_of(BEFORE)):
        raise NotACall
    yield from reader.match("json")
    yield from call_list(reader, answer)
    if not answer.in_call:
        yield from reader.space()
        yield from reader.match(FENCE)


ENVELOPES = tuple(
    Envelope(
        opener=f"{OPEN}{before}json\n[\n",
        before_name='    {\n        "tool_name": "',
        after_name='",\n        "parameters": ',
        after="\n    }",
        separator=",\n",
        closer="\n]" + FENCE,
        trigger=OPEN + before,
        quoted_name=True,
    )
    for before in BEFORE
)
FORMAT = Format("command-plus", (OPEN,), parse, (), ENVELOPES)
