"""Apriel 1.5 and 1.6: an array between tags.

    <tool_calls>[{"name": "weather", "arguments": {"city": "Oslo"}}]</tool_calls>

A template of these puts the array's bracket behind the tag. Ids that come behind the arguments give way to our own.
"""

from __future__ import annotations

from .base import Format
from .json_calls import array_envelope, list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<tool_calls>[", "</tool_calls>", '"arguments"')

OPEN, CLOSE = "<tool_calls>", "</tool_calls>"
FORMAT = Format("apriel", (OPEN,), list_parser(CLOSE), (CLOSE,), (array_envelope(OPEN, CLOSE),))
