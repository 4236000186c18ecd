"""Granite 3: an array behind a marker, which nothing closes.

    <|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]

A template of these names the marker among its own roles. Granite 3.1 and 3.2 write `<tool_call>` instead; Granite 4
writes as Hermes does.
"""

from __future__ import annotations

from .base import Format
from .json_calls import array_envelope, list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|start_of_role|>", "<|tool_call|>")

OPENERS = ("<|tool_call|>", "<tool_call>")
FORMAT = Format(
    "granite", OPENERS, list_parser("</tool_call>"), (), tuple(array_envelope(opener, "") for opener in OPENERS)
)
