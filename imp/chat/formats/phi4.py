"""Phi-4-mini: an array between markers, or behind the word that it was first taught.

    <|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>
    functools[{"name": "weather", "arguments": {"city": "Oslo"}}]

A template of these puts the tools between `<|tool|>` and `<|/tool|>`.
"""

from __future__ import annotations

from .base import Format
from .json_calls import array_envelope, list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("<|tool|>", "<|/tool|>")

OPEN, CLOSE, FUNCTOOLS = "<|tool_call|>", "<|/tool_call|>", "functools"
ENVELOPES = (array_envelope(OPEN, CLOSE), array_envelope(FUNCTOOLS, ""))
FORMAT = Format("phi4", (OPEN, FUNCTOOLS), list_parser(CLOSE), (CLOSE,), ENVELOPES)
