"""Models that were taught no format: an object as the answer, or an array of them, in a fence or without one.

    {"name": "weather", "arguments": {"city": "Oslo"}}

For every template that no other format is known by. An object counts if it has no keys but those of a call, and either
arguments or the name of a tool; all else is the answer itself.
"""

from __future__ import annotations

from dataclasses import replace

from ...constrain.tools import Envelope
from ..answer import Answer
from ..reader import Reader, Steps
from .base import Format, Tools
from .json_calls import KEYS, call_list

TEMPLATE_MARKS: tuple[str, ...] = ()

FENCE = "```"


def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
    yield from reader.space()
    fenced = yield from reader.match(FENCE)
    if fenced:
        yield from reader.match("json")
    yield from call_list(reader, answer, KEYS, tools)
    if fenced and not answer.in_call:
        yield from reader.space()
        yield from reader.match(FENCE)


ENVELOPE = Envelope(
    before_name='{"name": "',
    after_name='", "arguments": ',
    after="}",
    separator="\n",
    quoted_name=True,
    at_start=True,
    by_name=True,
)
ENVELOPES = (
    ENVELOPE,
    *(replace(ENVELOPE, before_name=before, parallel=False) for before in ('{"name":"', '{\n  "name": "')),
    replace(ENVELOPE, opener="[", closer="]", separator=", "),
    *(replace(ENVELOPE, opener=f"{FENCE}{json}\n", closer=f"\n{FENCE}") for json in ("json", "")),
)
FORMAT = Format("plain", (), parse, (), ENVELOPES, start=parse)
