"""Nemotron Nano v2: an array between tags.

    <TOOLCALL>[{"name": "weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>

A template of these names the tag.
"""

from __future__ import annotations

from .base import Format
from .json_calls import array_envelope, list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<TOOLCALL>",)

OPEN, CLOSE = "<TOOLCALL>", "</TOOLCALL>"
FORMAT = Format("nemotron", (OPEN,), list_parser(CLOSE), (CLOSE,), (array_envelope(OPEN, CLOSE),))
